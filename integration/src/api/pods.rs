//! What only pods have.

use serde_json::{Value, json};

use super::resource::Resource;
use super::status::{self, Outcome, bad_request};
use super::store::{Key, Store};
use super::write::WriteOptions;

/// `pods/binding`: gives a pod its node, once.
pub fn bind(store: &mut Store, resource: &Resource, key: &Key, binding: &Value) -> Outcome<()> {
    let node = binding["target"]["name"].as_str().filter(|name| !name.is_empty());
    let node = node.ok_or_else(|| bad_request("target.name: Required value: the node"))?;
    let wanted = binding["metadata"]["uid"].as_str().unwrap_or_default();
    let change = |old: &Value| {
        if !wanted.is_empty() && old["metadata"]["uid"] != wanted {
            return Err(status::conflict(&resource.id, &key.name, "the pod of that UID is gone"));
        }
        if old["metadata"].get("deletionTimestamp").is_some() {
            let why = format!("pod {} is being deleted, cannot be assigned to a host", key.name);
            return Err(status::conflict(&resource.id, &key.name, why));
        }
        if let Some(there) = old["spec"]["nodeName"].as_str().filter(|there| !there.is_empty()) {
            let why = format!("pod {} is already assigned to node {there:?}", key.name);
            return Err(status::conflict(&resource.id, &key.name, why));
        }
        let mut next = old.clone();
        next["spec"]["nodeName"] = node.into();
        for (name, value) in binding["metadata"]["annotations"].as_object().into_iter().flatten() {
            next["metadata"]["annotations"][name] = value.clone();
        }
        Ok(next)
    };
    let bound = store.update(resource, key, None, change, &WriteOptions::default())?;
    let mut next = bound.value.clone();
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": store.now(),
    });
    match next["status"]["conditions"].as_array_mut() {
        Some(list) => {
            list.retain(|condition| condition["type"] != "PodScheduled");
            list.push(condition);
        }
        None => next["status"]["conditions"] = json!([condition]),
    }
    store.update(resource, key, Some("status"), |_| Ok(next), &WriteOptions::default())?;
    Ok(())
}
