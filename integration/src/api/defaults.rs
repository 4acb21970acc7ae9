//! What the server fills in for built-in kinds.

use serde_json::{Value, json};

use super::resource::Resource;

/// Takes out fields that are null: for typed objects that is the same as absent.
pub fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(strip_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

fn default(object: &mut Value, field: &str, value: Value) {
    if let Some(map) = object.as_object_mut() {
        map.entry(field).or_insert(value);
    }
}

/// Fills in the defaults of a kind.
pub fn fill(resource: &Resource, object: &mut Value) {
    match (resource.storage.group.as_str(), resource.storage.plural.as_str()) {
        ("", "namespaces") => {
            let name = object["metadata"]["name"].clone();
            default(&mut object["metadata"], "labels", json!({}));
            default(&mut object["metadata"]["labels"], "kubernetes.io/metadata.name", name);
            default(object, "spec", json!({}));
            default(&mut object["spec"], "finalizers", json!(["kubernetes"]));
            default(object, "status", json!({}));
            default(&mut object["status"], "phase", json!("Active"));
        }
        ("", "pods") => {
            pod_spec(&mut object["spec"]);
            default(object, "status", json!({}));
            default(&mut object["status"], "phase", json!("Pending"));
        }
        ("", "secrets") => {
            default(object, "type", json!("Opaque"));
            take_string_data(object);
        }
        ("apps", "deployments" | "statefulsets" | "replicasets") => {
            default(object, "spec", json!({}));
            default(&mut object["spec"], "replicas", json!(1));
            if resource.storage.plural == "deployments" {
                default(&mut object["spec"], "strategy", json!({}));
                default(&mut object["spec"]["strategy"], "type", json!("RollingUpdate"));
                default(&mut object["spec"], "revisionHistoryLimit", json!(10));
                default(&mut object["spec"], "progressDeadlineSeconds", json!(600));
            }
            template(&mut object["spec"]);
        }
        ("apps", "daemonsets") => template(&mut object["spec"]),
        ("batch", "jobs") => job(object),
        ("resource.k8s.io", "resourceclaims") => {
            claim_spec(&mut object["spec"]);
            default(object, "status", json!({}));
        }
        ("resource.k8s.io", "resourceclaimtemplates") => claim_spec(&mut object["spec"]["spec"]),
        _ => {}
    }
}

fn template(spec: &mut Value) {
    if spec.get("template").is_some() {
        pod_spec(&mut spec["template"]["spec"]);
    }
}

fn job(object: &mut Value) {
    let uid = object["metadata"]["uid"].clone();
    let name = object["metadata"]["name"].clone();
    let spec = &mut object["spec"];
    // A Job with neither runs one pod; one with only `parallelism` is a work queue.
    if spec.get("completions").is_none() && spec.get("parallelism").is_none() {
        default(spec, "completions", json!(1));
    }
    default(spec, "parallelism", json!(1));
    default(spec, "backoffLimit", json!(6));
    default(spec, "completionMode", json!("NonIndexed"));
    default(spec, "suspend", json!(false));
    if spec["manualSelector"] != true {
        let labels = json!({"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name});
        default(spec, "selector", json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
        default(spec, "template", json!({}));
        default(&mut spec["template"], "metadata", json!({}));
        default(&mut spec["template"]["metadata"], "labels", json!({}));
        for (key, value) in labels.as_object().into_iter().flatten() {
            default(&mut spec["template"]["metadata"]["labels"], key, value.clone());
        }
    }
    template(spec);
}

fn pod_spec(spec: &mut Value) {
    if !spec.is_object() {
        return;
    }
    default(spec, "restartPolicy", json!("Always"));
    default(spec, "terminationGracePeriodSeconds", json!(30));
    default(spec, "schedulerName", json!("default-scheduler"));
    default(spec, "dnsPolicy", json!("ClusterFirst"));
    default(spec, "serviceAccountName", json!("default"));
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            default(container, "imagePullPolicy", json!("IfNotPresent"));
        }
    }
}

fn claim_spec(spec: &mut Value) {
    let exact = |request: &mut Value| {
        default(request, "allocationMode", json!("ExactCount"));
        if request["allocationMode"] == "ExactCount" {
            default(request, "count", json!(1));
        }
    };
    for request in spec["devices"]["requests"].as_array_mut().into_iter().flatten() {
        if request.get("exactly").is_some() {
            exact(&mut request["exactly"]);
        }
        for alternative in request["firstAvailable"].as_array_mut().into_iter().flatten() {
            exact(alternative);
        }
    }
}

/// `stringData` is written only; what is read is `data`, in base64.
fn take_string_data(secret: &mut Value) {
    let Some(Value::Object(plain)) = secret.as_object_mut().and_then(|map| map.remove("stringData")) else { return };
    default(secret, "data", json!({}));
    for (key, text) in plain {
        secret["data"][key] = base64(text.as_str().unwrap_or_default().as_bytes()).into();
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().chain([0; 2].iter()).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_come_out_in_base64() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
