//! Which groups, versions and kinds there are, and the server's own paths.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::resource::{Catalog, Resource};
use super::{csr, openapi, scale};

/// The answer at a path that names no objects.
pub fn answer(catalog: &Catalog, minor: u32, path: &str) -> Option<Value> {
    let parts = path.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>();
    match parts.as_slice() {
        [] => Some(json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})),
        ["version"] => Some(version(minor)),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups(catalog)})),
        ["api", version] => resources(catalog, "", version),
        ["apis", group] => groups(catalog).into_iter().find(|found| found["name"] == *group),
        ["apis", group, version] => resources(catalog, group, version),
        ["openapi", "v3"] => Some(openapi::index(catalog)),
        ["openapi", "v3", "api", version] => openapi::document(catalog, "", version),
        ["openapi", "v3", "apis", group, version] => openapi::document(catalog, group, version),
        _ => None,
    }
}

fn version(minor: u32) -> Value {
    json!({
        "major": "1",
        "minor": minor.to_string(),
        "gitVersion": format!("v1.{minor}.0-heddle"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

fn groups(catalog: &Catalog) -> Vec<Value> {
    let mut versions = BTreeMap::<&str, Vec<&str>>::new();
    for resource in catalog.iter().filter(|resource| !resource.id.group.is_empty()) {
        let list = versions.entry(&resource.id.group).or_default();
        if !list.contains(&resource.version.as_str()) {
            list.push(&resource.version);
        }
    }
    let group = |(name, versions): (&str, Vec<&str>)| {
        let mut versions = versions
            .into_iter()
            .map(|version| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
            .collect::<Vec<_>>();
        versions.reverse();
        json!({
            "kind": "APIGroup", "apiVersion": "v1", "name": name, "preferredVersion": versions[0], "versions": versions,
        })
    };
    versions.into_iter().map(group).collect()
}

fn resources(catalog: &Catalog, group: &str, version: &str) -> Option<Value> {
    let served = catalog.iter().filter(|r| r.id.group == group && r.version == version).collect::<Vec<_>>();
    let first = served.first()?;
    let group_version = first.api_version();
    let list = served.iter().flat_map(|resource| entries(resource)).collect::<Vec<_>>();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list,
    }))
}

fn entries(resource: &Resource) -> Vec<Value> {
    let plural = &resource.id.plural;
    let mut main = json!({
        "name": plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    });
    if !resource.short_names.is_empty() {
        main["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        main["categories"] = json!(resource.categories);
    }
    let below = |name: &str, kind: &str, verbs: &[&str]| {
        json!({
            "name": format!("{plural}/{name}"),
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": kind,
            "verbs": verbs,
        })
    };
    let mut entries = vec![main];
    if resource.has_status {
        entries.push(below("status", &resource.kind, &["get", "patch", "update"]));
    }
    if csr::is_request(resource) {
        entries.push(below("approval", &resource.kind, &["get", "patch", "update"]));
    }
    if scale::is_scalable(resource) {
        let mut entry = below("scale", "Scale", &["get", "patch", "update"]);
        entry["group"] = "autoscaling".into();
        entry["version"] = "v1".into();
        entries.push(entry);
    }
    if resource.is("", "pods") {
        entries.push(below("binding", "Binding", &["create"]));
        entries.push(below("eviction", "Eviction", &["create"]));
    }
    entries
}
