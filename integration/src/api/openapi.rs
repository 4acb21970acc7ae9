//! As much of `/openapi/v3` as tells `kubectl` that the server validates fields and knows dry runs.
//!
//! `kubectl apply` refuses to send anything to a server of which it does not know that. There are no schemas in it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::resource::{Catalog, Resource};

/// Which documents there are.
pub fn index(catalog: &Catalog) -> Value {
    let documents = catalog.iter().map(|resource| {
        let path = root(resource);
        (path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}")}))
    });
    json!({"paths": documents.collect::<BTreeMap<_, _>>()})
}

/// The document of one version of a group.
pub fn document(catalog: &Catalog, group: &str, version: &str) -> Option<Value> {
    let served = catalog.iter().filter(|r| r.id.group == group && r.version == version);
    let paths = served.map(|resource| (path(resource), item(resource))).collect::<Map<_, _>>();
    (!paths.is_empty()).then(|| {
        let info = json!({"title": "Heddle's embedded cluster", "version": "unversioned"});
        json!({"openapi": "3.0.0", "info": info, "paths": paths})
    })
}

fn root(resource: &Resource) -> String {
    match resource.id.group.as_str() {
        "" => format!("api/{}", resource.version),
        group => format!("apis/{group}/{}", resource.version),
    }
}

fn path(resource: &Resource) -> String {
    let namespace = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
    format!("/{}/{namespace}{}/{{name}}", root(resource), resource.id.plural)
}

fn item(resource: &Resource) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
    json!({
        "patch": {
            "operationId": format!("patch{}", resource.kind),
            "parameters": [parameter("dryRun"), parameter("fieldManager"), parameter("fieldValidation")],
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {
                "group": resource.id.group, "version": resource.version, "kind": resource.kind,
            },
        },
    })
}
