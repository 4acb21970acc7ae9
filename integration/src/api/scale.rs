//! The `scale` subresource of what has replicas.

use serde_json::{Value, json};

use super::resource::Resource;
use super::status::{Outcome, bad_request};

/// Whether a kind has it.
pub fn is_scalable(resource: &Resource) -> bool {
    ["deployments", "replicasets", "statefulsets"].iter().any(|plural| resource.is("apps", plural))
}

/// An object's scale.
pub fn shown(object: &Value) -> Value {
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let selector = labels.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default()));
    let metadata = &object["metadata"];
    let mut kept = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        kept[field] = metadata[field].clone();
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": kept,
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or_default()},
        "status": {
            "replicas": object["status"]["replicas"].as_i64().unwrap_or_default(),
            "selector": selector.collect::<Vec<_>>().join(","),
        },
    })
}

/// The object after its scale was written.
pub fn written(object: &Value, scale: &Value) -> Outcome<Value> {
    let replicas = scale["spec"]["replicas"].as_i64().filter(|replicas| *replicas >= 0);
    let replicas = replicas.ok_or_else(|| bad_request("spec.replicas: Required value: a number not below 0"))?;
    let mut next = object.clone();
    next["spec"]["replicas"] = replicas.into();
    next["metadata"]["resourceVersion"] = scale["metadata"]["resourceVersion"].clone();
    Ok(next)
}
