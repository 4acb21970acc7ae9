//! Server-side apply. Managers that apply are told apart and keep their fields; writes of other kinds are not
//! recorded as owners, so they never conflict.

use std::sync::Arc;

use serde_json::{Value, json};

use super::convert;
use super::fields::{Guide, conflicts, fields, merge, withdraw};
use super::request::Request;
use super::resource::Resource;
use super::status::{self, Outcome, bad_request};
use super::store::{Key, Store};
use super::watch::Object;
use super::write::WriteOptions;

/// Makes an object, or merges into it what its manager wants of it.
pub fn apply(
    store: &mut Store,
    resource: &Resource,
    key: &Key,
    subresource: Option<&str>,
    applied: &Value,
    request: &Request,
    options: &WriteOptions,
) -> Outcome<(http::StatusCode, Arc<Object>)> {
    let manager = request.query.get("fieldManager").ok_or_else(|| {
        bad_request("PatchOptions is invalid: fieldManager: Required value: is required for apply patch")
    })?;
    let mut applied = applied.clone();
    let metadata = applied["metadata"].as_object_mut().ok_or_else(|| bad_request("metadata: Required value"))?;
    if metadata.contains_key("managedFields") {
        return Err(bad_request("metadata.managedFields must be nil"));
    }
    let version = metadata.remove("resourceVersion");
    metadata.remove("uid");
    metadata.insert("name".to_owned(), key.name.clone().into());
    restrict(resource, &mut applied, subresource);
    let own = own_fields(resource, &applied);
    let entry = json!({
        "manager": manager,
        "operation": "Apply",
        "apiVersion": resource.api_version(),
        "time": store.now(),
        "fieldsType": "FieldsV1",
        "fieldsV1": own,
    });
    let entry = match subresource {
        Some(name) => with(entry, "subresource", name),
        None => entry,
    };
    let applied = convert::to_stored(resource, applied);
    if store.get(&resource.storage, key).is_none() {
        if subresource.is_some() {
            return Err(status::not_found(&resource.id, &key.name));
        }
        let mut object = applied;
        object["metadata"]["managedFields"] = json!([entry]);
        let namespace = Some(key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        return Ok((http::StatusCode::CREATED, store.create(resource, namespace, object, options)?));
    }
    let force = request.query.flag("force");
    let change = |old: &Value| {
        let mut next = old.clone();
        let managers = merge_for(resource, &mut next, &applied, &entry, force, key)?;
        next["metadata"]["managedFields"] = managers;
        match &version {
            Some(version) => next["metadata"]["resourceVersion"] = version.clone(),
            None => {
                next["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
            }
        }
        Ok(next)
    };
    Ok((http::StatusCode::OK, store.update(resource, key, subresource, change, options)?))
}

fn with(mut entry: Value, name: &str, value: &str) -> Value {
    entry[name] = value.into();
    entry
}

/// Leaves what the request can write: the status alone, or everything else.
fn restrict(resource: &Resource, applied: &mut Value, subresource: Option<&str>) {
    let Some(map) = applied.as_object_mut() else { return };
    match subresource {
        Some(_) => map.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status")),
        None if resource.has_status => map.retain(|name, _| name != "status"),
        None => {}
    }
    if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
        let kept = |name: &str| matches!(name, "name" | "namespace");
        let owned = |name: &str| matches!(name, "labels" | "annotations" | "finalizers" | "ownerReferences");
        metadata.retain(|name, _| kept(name) || (owned(name) && subresource.is_none()));
    }
}

/// The fields that a request sets, without those that only name the object.
fn own_fields(resource: &Resource, applied: &Value) -> Value {
    let mut own = applied.clone();
    if let Some(map) = own.as_object_mut() {
        map.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|name, _| !matches!(name.as_str(), "name" | "namespace"));
        }
        map.retain(|name, value| name != "metadata" || value.as_object().is_some_and(|map| !map.is_empty()));
    }
    fields(Guide::of(resource), &own)
}

/// Merges into `next` and gives the new list of managers.
fn merge_for(
    resource: &Resource,
    next: &mut Value,
    applied: &Value,
    entry: &Value,
    force: bool,
    key: &Key,
) -> Outcome<Value> {
    let guide = Guide::of(resource);
    let same = |other: &Value| ["manager", "operation", "subresource"].iter().all(|f| other.get(f) == entry.get(f));
    let managers = next["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let (mine, mut others) = managers.into_iter().partition::<Vec<_>, _>(same);
    let mut refused = Vec::new();
    for other in &mut others {
        let found = conflicts(guide, next, applied, &other["fieldsV1"]);
        if !found.is_empty() && !force {
            refused.push(format!("conflict with {}: {}", other["manager"], found.join(", ")));
        } else if !found.is_empty() {
            // Who is overruled owns nothing of what was applied over it.
            other["fieldsV1"] = without(&other["fieldsV1"], &entry["fieldsV1"]);
        }
    }
    if !refused.is_empty() {
        let why = format!("Apply failed with {} conflicts: {}", refused.len(), refused.join("; "));
        return Err(status::conflict(&resource.id, &key.name, why));
    }
    if let Some(before) = mine.first() {
        let theirs = others.iter().map(|other| &other["fieldsV1"]).collect::<Vec<_>>();
        withdraw(guide, next, &before["fieldsV1"], &entry["fieldsV1"], &theirs);
    }
    merge(guide, next, applied);
    let kept = mine.into_iter().next().filter(|before| before["fieldsV1"] == entry["fieldsV1"]);
    others.push(kept.unwrap_or_else(|| entry.clone()));
    // An order that does not depend on who came last, so that applying the same again is no change.
    others.sort_by_key(|other| (other["manager"].to_string(), other["subresource"].to_string()));
    Ok(others.into())
}

fn without(theirs: &Value, mine: &Value) -> Value {
    let Some(map) = theirs.as_object() else { return theirs.clone() };
    let kept = map.iter().filter_map(|(step, below)| match mine.get(step) {
        None => Some((step.clone(), below.clone())),
        Some(mine) => {
            let rest = without(below, mine);
            (rest.as_object().is_some_and(|map| !map.is_empty())).then(|| (step.clone(), rest))
        }
    });
    kept.collect()
}

/// Whether a request's list of managers says more than the stored one.
pub fn manages_more(stored: Option<&Value>, sent: Option<&Value>) -> bool {
    sent.is_some_and(|sent| stored != Some(sent))
}

#[cfg(test)]
mod tests {
    use super::super::request::{Query, Verb};
    use super::super::server::{ApiServer, Options};
    use super::*;

    fn request(manager: &str, force: bool) -> Request {
        Request {
            verb: Verb::Patch,
            group: String::new(),
            version: "v1".into(),
            plural: "pods".into(),
            namespace: Some("default".into()),
            name: Some("p".into()),
            subresource: None,
            user_agent: String::new(),
            user: Default::default(),
            query: Query::of(&[("fieldManager", manager), ("force", if force { "true" } else { "false" })]),
        }
    }

    fn apply_pod(server: &ApiServer, manager: &str, force: bool, mut object: Value) -> Outcome<Value> {
        let mut store = server.store();
        let pods = store.catalog.find("", "v1", "pods").unwrap();
        let key = Key { namespace: "default".into(), name: "p".into() };
        object["apiVersion"] = "v1".into();
        object["kind"] = "Pod".into();
        let request = request(manager, force);
        let made = apply(&mut store, &pods, &key, None, &object, &request, &WriteOptions::default())?;
        Ok(made.1.value.clone())
    }

    #[test]
    fn each_manager_has_its_fields_and_takes_only_them_back() {
        let server = ApiServer::new(Options::default());
        let container = |image: &str| json!([{"name": "c", "image": image}]);
        let first = json!({
            "metadata": {"labels": {"a": "1", "b": "1"}, "finalizers": ["x/x"]},
            "spec": {"containers": container("one")},
        });
        apply_pod(&server, "one", false, first).unwrap();
        let second = json!({
            "metadata": {"labels": {"c": "2"}, "finalizers": ["y/y"]},
            "spec": {"containers": [{"name": "d", "image": "two"}]},
        });
        let both = apply_pod(&server, "two", false, second.clone()).unwrap();
        assert_eq!(both["metadata"]["labels"], json!({"a": "1", "b": "1", "c": "2"}));
        assert_eq!(both["metadata"]["finalizers"], json!(["x/x", "y/y"]));
        assert_eq!(both["spec"]["containers"].as_array().unwrap().len(), 2);

        let less = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"containers": container("one")}});
        let rest = apply_pod(&server, "one", false, less).unwrap();
        assert_eq!(rest["metadata"]["labels"], json!({"a": "1", "c": "2"}));
        assert_eq!(rest["metadata"]["finalizers"], json!(["y/y"]));
        let version = rest["metadata"]["resourceVersion"].clone();
        let again = apply_pod(&server, "two", false, second).unwrap();
        assert_eq!(again["metadata"]["resourceVersion"], version, "applying the same is no write");
    }

    #[test]
    fn a_field_of_another_manager_is_taken_only_by_force() {
        let server = ApiServer::new(Options::default());
        let pod = |image: &str| json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": image}]}});
        apply_pod(&server, "one", false, pod("one")).unwrap();
        let refused = apply_pod(&server, "two", false, pod("two")).unwrap_err();
        assert_eq!(refused.reason, "Conflict");
        assert!(
            refused.message.contains("spec.containers") && refused.message.contains("image"),
            "{}",
            refused.message
        );
        let taken = apply_pod(&server, "two", true, pod("two")).unwrap();
        assert_eq!(taken["spec"]["containers"][0]["image"], "two");
        let managers = taken["metadata"]["managedFields"].as_array().unwrap();
        assert!(!managers[0].to_string().contains("f:image"), "the first one no longer has it: {}", managers[0]);
    }
}
