//! What the API server checks of `resource.k8s.io`: the limits and rules of Kubernetes 1.36.

use std::collections::BTreeSet;

use serde_json::Value;

use super::names::{is_dns_label, is_dns_subdomain};
use super::resource::Resource;
use super::status::FieldError;
use super::taints;

const MAX_DEVICES: usize = 128;
/// Where a device has taints or consumes counters.
const MAX_HEAVY_DEVICES: usize = 64;
const MAX_ATTRIBUTES: usize = 32;
const MAX_ATTRIBUTE_BYTES: usize = 64;
const MAX_TAINTS: usize = 16;
const MAX_REQUESTS: usize = 32;
const MAX_RESULTS: usize = 32;
const MAX_RESERVED_FOR: usize = 256;
const MAX_CONFIGS: usize = 32;
const MAX_SELECTORS: usize = 32;
const MAX_FIRST_AVAILABLE: usize = 8;
const MAX_PARAMETER_BYTES: usize = 10 * 1024;

/// Checks an object of one of the kinds; others pass.
pub fn check(resource: &Resource, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match resource.storage.plural.as_str() {
        _ if resource.storage.group != "resource.k8s.io" => {}
        "resourceslices" => slice(&object["spec"], old.map(|old| &old["spec"]), &mut errors),
        "resourceclaims" => {
            match old {
                Some(old) if old["spec"] != object["spec"] => {
                    errors.push(FieldError::invalid("spec", "\"object\"", "field is immutable"));
                }
                Some(_) => {}
                None => claim_spec(&object["spec"], "spec", &mut errors),
            }
            claim_status(&object["status"], old.map(|old| &old["status"]), &mut errors);
        }
        "resourceclaimtemplates" => match old {
            Some(old) if old["spec"] != object["spec"] => {
                errors.push(FieldError::invalid("spec", "\"object\"", "field is immutable"));
            }
            Some(_) => {}
            None => claim_spec(&object["spec"]["spec"], "spec.spec", &mut errors),
        },
        "deviceclasses" => {
            limit(&object["spec"]["selectors"], "spec.selectors", MAX_SELECTORS, &mut errors);
            limit(&object["spec"]["config"], "spec.config", MAX_CONFIGS, &mut errors);
        }
        _ => {}
    }
    errors
}

/// Takes what is said about devices out of a claim that no longer has them.
pub fn drop_deallocated(resource: &Resource, object: &mut Value) {
    if resource.is("resource.k8s.io", "resourceclaims")
        && object["status"].get("allocation").is_none()
        && let Some(status) = object.get_mut("status").and_then(Value::as_object_mut)
    {
        status.remove("devices");
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn limit(value: &Value, path: &str, most: usize, errors: &mut Vec<FieldError>) {
    let found = list(value).len();
    if found > most {
        errors.push(FieldError::too_many(path, found, most));
    }
}

fn label(value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if !is_dns_label(text(value)) {
        let detail = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                      start and end with an alphanumeric character";
        errors.push(FieldError::invalid(path, value, detail));
    }
}

fn driver_name(value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let name = text(value);
    if name.is_empty() {
        errors.push(FieldError::required(path));
    } else if name.len() > 63 || !is_dns_subdomain(name) {
        errors.push(FieldError::invalid(path, value, "must be a DNS subdomain of at most 63 characters"));
    }
}

fn slice(spec: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    driver_name(&spec["driver"], "spec.driver", errors);
    let pool = &spec["pool"];
    let name = text(&pool["name"]);
    if name.is_empty() {
        errors.push(FieldError::required("spec.pool.name"));
    } else if name.len() > 253 || !name.split('/').all(is_dns_subdomain) {
        errors.push(FieldError::invalid("spec.pool.name", &pool["name"], "must be DNS subdomains separated by '/'"));
    }
    if pool["generation"].as_i64().unwrap_or_default() < 0 {
        let detail = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("spec.pool.generation", &pool["generation"], detail));
    }
    if pool["resourceSliceCount"].as_i64().unwrap_or_default() <= 0 {
        let shown = pool["resourceSliceCount"].as_i64().unwrap_or_default();
        errors.push(FieldError::invalid("spec.pool.resourceSliceCount", shown, "must be greater than zero"));
    }
    let places = [
        spec["nodeName"].as_str().is_some_and(|node| !node.is_empty()),
        !spec["nodeSelector"].is_null(),
        spec["allNodes"] == true,
        spec["perDeviceNodeSelection"] == true,
    ];
    match places.iter().filter(|set| **set).count() {
        1 => {}
        0 => errors.push(FieldError {
            message: "Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, \
                      `perDeviceNodeSelection` is required"
                .to_owned(),
            ..FieldError::required("spec")
        }),
        _ => {
            let detail = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
            errors.push(FieldError::invalid("spec", "\"object\"", detail));
        }
    }
    if spec.get("nodeSelector").is_some() && list(&spec["nodeSelector"]["nodeSelectorTerms"]).len() != 1 {
        let path = "spec.nodeSelector.nodeSelectorTerms";
        errors.push(FieldError::invalid(path, "\"array\"", "must have exactly one node selector term"));
    }
    if !list(&spec["devices"]).is_empty() && !list(&spec["sharedCounters"]).is_empty() {
        let detail = "only one of `sharedCounters` or `devices` is allowed";
        errors.push(FieldError::invalid("spec", "\"object\"", detail));
    }
    devices(list(&spec["devices"]), errors);
    if let Some(old) = old {
        for (path, new, old) in [
            ("spec.driver", &spec["driver"], &old["driver"]),
            ("spec.pool.name", &pool["name"], &old["pool"]["name"]),
            ("spec.nodeName", &spec["nodeName"], &old["nodeName"]),
        ] {
            if new != old {
                errors.push(FieldError::invalid(path, new, "field is immutable"));
            }
        }
    }
}

fn devices(devices: &[Value], errors: &mut Vec<FieldError>) {
    let heavy = |device: &Value| !list(&device["taints"]).is_empty() || !list(&device["consumesCounters"]).is_empty();
    let most = if devices.iter().any(heavy) { MAX_HEAVY_DEVICES } else { MAX_DEVICES };
    if devices.len() > most {
        errors.push(FieldError::too_many("spec.devices", devices.len(), most));
    }
    let mut names = BTreeSet::new();
    for (at, device) in devices.iter().enumerate() {
        let path = format!("spec.devices[{at}]");
        label(&device["name"], &format!("{path}.name"), errors);
        if !names.insert(text(&device["name"])) {
            errors.push(FieldError::duplicate(format!("{path}.name"), &device["name"]));
        }
        limit(&device["taints"], &format!("{path}.taints"), MAX_TAINTS, errors);
        taints::check(&device["taints"], &format!("{path}.taints"), errors);
        attributes(device, &path, errors);
    }
}

fn attributes(device: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let size = |field: &str| device[field].as_object().map_or(0, serde_json::Map::len);
    let total = size("attributes") + size("capacity");
    if total > MAX_ATTRIBUTES {
        errors.push(FieldError::too_many(path, total, MAX_ATTRIBUTES));
    }
    for (name, value) in device["attributes"].as_object().into_iter().flatten() {
        let path = format!("{path}.attributes[{name}]");
        let (domain, id) = name.split_once('/').map_or((None, name.as_str()), |(domain, id)| (Some(domain), id));
        let identifier = |id: &str| {
            let start = id.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            start && id.len() <= 32 && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if !identifier(id) || domain.is_some_and(|domain| domain.len() > 63 || !is_dns_subdomain(domain)) {
            let detail = "must be a C identifier of at most 32 characters, optionally behind a DNS subdomain and '/'";
            errors.push(FieldError::invalid(&path, format!("{name:?}"), detail));
        }
        let kinds = ["bool", "int", "string", "version"];
        if kinds.iter().filter(|kind| value.get(**kind).is_some()).count() != 1 {
            errors.push(FieldError::invalid(&path, "\"object\"", "exactly one value must be specified"));
        }
        for kind in ["string", "version"] {
            if text(&value[kind]).len() > MAX_ATTRIBUTE_BYTES {
                let message = format!("Too long: may not be more than {MAX_ATTRIBUTE_BYTES} bytes");
                errors.push(FieldError { message, ..FieldError::invalid(format!("{path}.{kind}"), "", "") });
            }
        }
    }
}

fn claim_spec(spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let devices = &spec["devices"];
    let path = format!("{path}.devices");
    limit(&devices["requests"], &format!("{path}.requests"), MAX_REQUESTS, errors);
    limit(&devices["config"], &format!("{path}.config"), MAX_CONFIGS, errors);
    let mut names = BTreeSet::new();
    for (at, request) in list(&devices["requests"]).iter().enumerate() {
        let path = format!("{path}.requests[{at}]");
        label(&request["name"], &format!("{path}.name"), errors);
        if !names.insert(text(&request["name"])) {
            errors.push(FieldError::duplicate(format!("{path}.name"), &request["name"]));
        }
        let alternatives = list(&request["firstAvailable"]);
        match (request.get("exactly"), alternatives.is_empty()) {
            (Some(exactly), true) => exact_request(exactly, &format!("{path}.exactly"), errors),
            (None, false) => {
                limit(&request["firstAvailable"], &format!("{path}.firstAvailable"), MAX_FIRST_AVAILABLE, errors);
                for (at, alternative) in alternatives.iter().enumerate() {
                    let path = format!("{path}.firstAvailable[{at}]");
                    label(&alternative["name"], &format!("{path}.name"), errors);
                    exact_request(alternative, &path, errors);
                }
            }
            (None, true) => errors.push(FieldError {
                message: "Required value: exactly one of `exactly` or `firstAvailable` is required".to_owned(),
                ..FieldError::required(path)
            }),
            (Some(_), false) => {
                let detail = "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set";
                errors.push(FieldError::invalid(path, "\"object\"", detail));
            }
        }
    }
    for (at, config) in list(&devices["config"]).iter().enumerate() {
        let path = format!("{path}.config[{at}]");
        for (at, name) in list(&config["requests"]).iter().enumerate() {
            let main = text(name).split('/').next().unwrap_or_default();
            if !names.contains(main) {
                let path = format!("{path}.requests[{at}]");
                errors.push(FieldError::invalid(path, name, "must be the name of a request in the claim"));
            }
        }
        match config.get("opaque") {
            Some(opaque) => {
                driver_name(&opaque["driver"], &format!("{path}.opaque.driver"), errors);
                let path = format!("{path}.opaque.parameters");
                match &opaque["parameters"] {
                    Value::Null => errors.push(FieldError::required(path)),
                    Value::Object(_) if opaque["parameters"].to_string().len() <= MAX_PARAMETER_BYTES => {}
                    Value::Object(_) => {
                        let message = format!("Too long: may not be more than {MAX_PARAMETER_BYTES} bytes");
                        errors.push(FieldError { message, ..FieldError::invalid(path, "", "") });
                    }
                    _ => errors.push(FieldError::invalid(path, "<value omitted>", "must be a valid JSON object")),
                }
            }
            None => errors.push(FieldError::required(format!("{path}.opaque"))),
        }
    }
}

fn exact_request(request: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if text(&request["deviceClassName"]).is_empty() {
        errors.push(FieldError::required(format!("{path}.deviceClassName")));
    }
    limit(&request["selectors"], &format!("{path}.selectors"), MAX_SELECTORS, errors);
    let count = request["count"].as_i64();
    match text(&request["allocationMode"]) {
        "ExactCount" if count.is_some_and(|count| count <= 0) => {
            errors.push(FieldError::invalid(format!("{path}.count"), &request["count"], "must be greater than zero"));
        }
        "All" if count.is_some_and(|count| count != 0) => {
            let detail = "must not be specified when allocationMode is 'All'";
            errors.push(FieldError::invalid(format!("{path}.count"), &request["count"], detail));
        }
        "ExactCount" | "All" => {}
        _ => {
            let modes = ["\"All\"".to_owned(), "\"ExactCount\"".to_owned()];
            let path = format!("{path}.allocationMode");
            errors.push(FieldError::unsupported(path, &request["allocationMode"], &modes));
        }
    }
}

fn claim_status(status: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let results = list(&status["allocation"]["devices"]["results"]);
    limit(&status["allocation"]["devices"]["results"], "status.allocation.devices.results", MAX_RESULTS, errors);
    limit(&status["reservedFor"], "status.reservedFor", MAX_RESERVED_FOR, errors);
    let mut consumers = BTreeSet::new();
    for (at, consumer) in list(&status["reservedFor"]).iter().enumerate() {
        if !consumers.insert(text(&consumer["uid"])) {
            errors.push(FieldError::duplicate(format!("status.reservedFor[{at}].uid"), &consumer["uid"]));
        }
    }
    if !consumers.is_empty() && status.get("allocation").is_none() {
        let detail = "may not be specified when `allocated` is not set";
        errors.push(FieldError::forbidden("status.reservedFor", detail));
    }
    if let Some(before) = old.map(|old| &old["allocation"]).filter(|before| !before.is_null())
        && status.get("allocation").is_some_and(|now| now != before)
    {
        errors.push(FieldError::invalid("status.allocation", "\"object\"", "field is immutable"));
    }
    let allocated = results.iter().map(|r| (text(&r["driver"]), text(&r["pool"]), text(&r["device"])));
    let allocated = allocated.collect::<BTreeSet<_>>();
    for (at, device) in list(&status["devices"]).iter().enumerate() {
        let path = format!("status.devices[{at}]");
        let key = (text(&device["driver"]), text(&device["pool"]), text(&device["device"]));
        if !allocated.contains(&key) {
            errors.push(FieldError::invalid(&path, "\"object\"", "must be an allocated device in the claim"));
        }
        limit(&device["conditions"], &format!("{path}.conditions"), 8, errors);
        match &device["data"] {
            Value::Null => {}
            Value::Object(_) if device["data"].to_string().len() <= MAX_PARAMETER_BYTES => {}
            _ => {
                let detail = "must be a JSON object of at most 10 KiB";
                errors.push(FieldError::invalid(format!("{path}.data"), "<value omitted>", detail));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resource::Catalog;
    use super::*;

    fn paths(plural: &str, object: &Value, old: Option<&Value>) -> Vec<String> {
        let resource = Catalog::builtin().find("resource.k8s.io", "v1", plural).unwrap();
        check(&resource, object, old).into_iter().map(|error| error.path).collect()
    }

    fn slice_of(devices: usize) -> Value {
        let devices = (0..devices).map(|at| json!({"name": format!("slot-{at}")})).collect::<Vec<_>>();
        json!({"spec": {
            "driver": "d.example", "nodeName": "n", "devices": devices,
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        }})
    }

    #[test]
    fn slices_have_limits() {
        assert_eq!(paths("resourceslices", &slice_of(128), None), Vec::<String>::new());
        assert_eq!(paths("resourceslices", &slice_of(129), None), ["spec.devices"]);
        let mut tainted = slice_of(65);
        tainted["spec"]["devices"][0]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
        assert_eq!(paths("resourceslices", &tainted, None), ["spec.devices"]);

        let mut wrong = slice_of(2);
        wrong["spec"]["devices"][1]["name"] = "Slot_1".into();
        wrong["spec"]["devices"][0]["attributes"] = json!({"a-b": {"int": 1}, "c": {"int": 1, "bool": true}});
        wrong["spec"]["allNodes"] = true.into();
        assert_eq!(
            paths("resourceslices", &wrong, None),
            ["spec", "spec.devices[0].attributes[a-b]", "spec.devices[0].attributes[c]", "spec.devices[1].name"]
        );

        let mut moved = slice_of(1);
        moved["spec"]["nodeName"] = "m".into();
        moved["spec"]["pool"]["generation"] = 2.into();
        assert_eq!(paths("resourceslices", &moved, Some(&slice_of(1))), ["spec.nodeName"]);
    }

    #[test]
    fn claims_have_rules() {
        let exactly = json!({"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1});
        let claim = json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
        assert_eq!(paths("resourceclaims", &claim, None), Vec::<String>::new());
        let mut other = claim.clone();
        other["spec"]["devices"]["requests"][0]["exactly"]["count"] = 2.into();
        assert_eq!(paths("resourceclaims", &other, Some(&claim)), ["spec"]);

        let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "slot-0"});
        let mut allocated = claim.clone();
        allocated["status"] = json!({
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"uid": "1"}, {"uid": "1"}],
            "devices": [{"driver": "d", "pool": "p", "device": "slot-1", "data": "text"}],
        });
        assert_eq!(
            paths("resourceclaims", &allocated, Some(&claim)),
            ["status.reservedFor[1].uid", "status.devices[0]", "status.devices[0].data"]
        );
        let config = json!([{"requests": ["x"], "opaque": {"driver": "d", "parameters": []}}]);
        let mut configured = claim;
        configured["spec"]["devices"]["config"] = config;
        assert_eq!(
            paths("resourceclaims", &configured, None),
            ["spec.devices.config[0].requests[0]", "spec.devices.config[0].opaque.parameters"]
        );
    }
}
