//! `certificates.k8s.io`: who has asked is the server's word, and each subresource changes its own part alone.

use serde_json::{Value, json};

use super::resource::Resource;
use super::status::FieldError;
use super::user::User;

/// Shorter lives are refused.
const SHORTEST: i64 = 600;
/// Conditions that, once there, stay.
const FINAL: [&str; 3] = ["Approved", "Denied", "Failed"];

/// Whether these are CertificateSigningRequests.
pub fn is_request(resource: &Resource) -> bool {
    resource.is("certificates.k8s.io", "certificatesigningrequests")
}

/// Writes down who asks, whatever the object says of it.
pub fn sign_in(resource: &Resource, object: &mut Value, user: &User) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut).filter(|_| is_request(resource)) else {
        return;
    };
    for field in ["username", "uid", "groups", "extra"] {
        spec.remove(field);
    }
    spec.insert("username".into(), user.username.clone().into());
    spec.insert("groups".into(), json!(user.groups));
    if !user.uid.is_empty() {
        spec.insert("uid".into(), user.uid.clone().into());
    }
    if !user.extra.is_empty() {
        spec.insert("extra".into(), json!(user.extra));
    }
}

/// The new object with what this path does not write as it was.
pub fn keep(resource: &Resource, subresource: Option<&str>, old: &Value, mut next: Value) -> Value {
    if !is_request(resource) {
        return next;
    }
    next["spec"] = old["spec"].clone();
    if subresource == Some("approval") {
        let conditions = next["status"]["conditions"].take();
        next = old.clone();
        if next["status"].is_null() {
            next["status"] = json!({});
        }
        if conditions.is_null() {
            next["status"].as_object_mut().map(|status| status.remove("conditions"));
        } else {
            next["status"]["conditions"] = conditions;
        }
    }
    next
}

/// What is wrong with an object of this kind.
pub fn check(resource: &Resource, object: &Value, old: Option<&Value>, subresource: Option<&str>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !is_request(resource) {
        return errors;
    }
    let spec = &object["spec"];
    let signer = spec["signerName"].as_str().unwrap_or_default();
    if signer.is_empty() {
        errors.push(FieldError::required("spec.signerName"));
    } else if !signer.split_once('/').is_some_and(|(domain, path)| domain.contains('.') && !path.is_empty()) {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid("spec.signerName", &spec["signerName"], detail));
    }
    if spec["usages"].as_array().is_none_or(Vec::is_empty) {
        errors.push(FieldError::required("spec.usages"));
    }
    if spec["expirationSeconds"].as_i64().is_some_and(|seconds| seconds < SHORTEST) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid("spec.expirationSeconds", &spec["expirationSeconds"], detail));
    }
    let (has, had) = (|type_| condition(object, type_), |type_| old.and_then(|old| condition(old, type_)));
    if has("Approved").is_some() && has("Denied").is_some() {
        let detail = "Approved and Denied conditions are mutually exclusive";
        errors.push(FieldError::invalid("status.conditions", "\"Denied\"", detail));
    }
    for type_ in FINAL {
        let path = "status.conditions";
        match (had(type_), has(type_)) {
            (Some(_), None) => {
                errors
                    .push(FieldError::forbidden(path, format!("updates may not remove a condition of type {type_:?}")));
            }
            (old, new) if old != new && type_ != "Failed" && subresource != Some("approval") => {
                errors.push(FieldError::forbidden(path, format!("updates may not add a condition of type {type_:?}")));
            }
            _ => {}
        }
    }
    let certificate = |object: &Value| object["status"]["certificate"].as_str().unwrap_or_default().to_owned();
    if let Some(old) = old.map(certificate).filter(|old| !old.is_empty() && *old != certificate(object)) {
        errors.push(FieldError::invalid("status.certificate", format!("{:.20}…", old), "field is immutable"));
    }
    errors
}

fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == type_)
}
