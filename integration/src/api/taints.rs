//! Device taints and tolerations: kept by servers that have the feature on (beta since 1.36), dropped without a word by
//! others.

use serde_json::{Value, json};

use super::resource::Resource;
use super::status::FieldError;

/// The first release that keeps them unless told otherwise.
const SINCE: u32 = 36;

/// Drops what the release does not keep, and stamps new taints with the time.
pub fn admit(resource: &Resource, object: &mut Value, minor: u32, now: &str) {
    match resource.storage.plural.as_str() {
        _ if resource.storage.group != "resource.k8s.io" => {}
        "resourceslices" => each(object, "/spec/devices", |device| {
            if minor < SINCE {
                remove(device, "taints");
            }
            each(device, "/taints", |taint| {
                if taint["timeAdded"].is_null() {
                    taint["timeAdded"] = json!(now);
                }
            });
        }),
        "resourceclaims" if minor < SINCE => tolerations(object, "/spec/devices/requests"),
        "resourceclaimtemplates" if minor < SINCE => tolerations(object, "/spec/spec/devices/requests"),
        _ => {}
    }
}

fn tolerations(object: &mut Value, requests: &str) {
    each(object, requests, |request| {
        if let Some(exactly) = request.get_mut("exactly") {
            remove(exactly, "tolerations");
        }
        each(request, "/firstAvailable", |alternative| remove(alternative, "tolerations"));
    });
}

fn each(object: &mut Value, list: &str, act: impl FnMut(&mut Value)) {
    object.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten().for_each(act);
}

fn remove(object: &mut Value, field: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove(field);
    }
}

/// What is wrong with the taints of a device.
pub fn check(taints: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (at, taint) in taints.as_array().into_iter().flatten().enumerate() {
        let path = format!("{path}[{at}]");
        let text = |field: &str| taint[field].as_str().unwrap_or_default();
        if !is_label_key(text("key")) {
            errors.push(FieldError::invalid(format!("{path}.key"), &taint["key"], "must be a label name"));
        }
        if !is_label_value(text("value")) {
            errors.push(FieldError::invalid(format!("{path}.value"), &taint["value"], "must be a label value"));
        }
        if !matches!(text("effect"), "None" | "NoSchedule" | "NoExecute") {
            let effects = ["\"NoExecute\"", "\"NoSchedule\"", "\"None\""].map(str::to_owned);
            errors.push(FieldError::unsupported(format!("{path}.effect"), &taint["effect"], &effects));
        }
    }
}

fn is_label_key(key: &str) -> bool {
    let (domain, name) = key.split_once('/').map_or((None, key), |(domain, name)| (Some(domain), name));
    !name.is_empty() && is_label_value(name) && domain.is_none_or(super::names::is_dns_subdomain)
}

fn is_label_value(value: &str) -> bool {
    let edge = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::super::resource::Catalog;
    use super::*;

    fn admitted(plural: &str, mut object: Value, minor: u32) -> Value {
        let resource = Catalog::builtin().find("resource.k8s.io", "v1", plural).unwrap();
        admit(&resource, &mut object, minor, "2026-01-01T00:00:00Z");
        object
    }

    #[test]
    fn an_older_server_drops_taints_and_tolerations() {
        let slice = json!({"spec": {"devices": [{"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]}]}});
        assert_eq!(admitted("resourceslices", slice.clone(), 35), json!({"spec": {"devices": [{"name": "a"}]}}));
        let kept = admitted("resourceslices", slice, 36);
        assert_eq!(kept["spec"]["devices"][0]["taints"][0]["timeAdded"], "2026-01-01T00:00:00Z");
        assert_eq!(admitted("resourceslices", kept.clone(), 37), kept, "a time that is there stays");

        let tolerant = json!({"deviceClassName": "c", "tolerations": [{"operator": "Exists"}]});
        let claim = json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": tolerant}, {"name": "b", "firstAvailable": [tolerant]}]}}});
        assert_eq!(admitted("resourceclaims", claim.clone(), 36), claim);
        let dropped = admitted("resourceclaims", claim, 34);
        assert!(!dropped.to_string().contains("tolerations"), "{dropped}");
    }

    #[test]
    fn taints_have_rules() {
        let paths = |taint: Value| {
            let mut errors = Vec::new();
            check(&json!([taint]), "taints", &mut errors);
            errors.into_iter().map(|error| error.path).collect::<Vec<_>>()
        };
        assert!(paths(json!({"key": "d.example/k", "value": "A-1", "effect": "NoSchedule"})).is_empty());
        assert_eq!(paths(json!({"key": "a b", "value": "x y", "effect": "PreferNoSchedule"})).len(), 3);
    }
}
