//! Answers that say no, in the words of a real API server.

use kube::core::Status;
use kube::core::response::{StatusCause, StatusDetails};

use super::resource::{GroupResource, Resource};

/// What an operation gives, or the `Status` that refuses it.
pub type Outcome<T> = Result<T, Box<Status>>;

/// One thing that is wrong with one field of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    /// Where: `spec.channel.resourceClaimTemplate.name`.
    pub path: String,
    /// What, and what was expected.
    pub message: String,
    /// `FieldValueInvalid`, `FieldValueRequired`, …
    pub reason: &'static str,
}

impl std::fmt::Display for FieldError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl FieldError {
    /// A value that is not allowed.
    pub fn invalid(path: impl Into<String>, value: impl std::fmt::Display, detail: impl std::fmt::Display) -> Self {
        Self { path: path.into(), message: format!("Invalid value: {value}: {detail}"), reason: "FieldValueInvalid" }
    }

    /// A value of the wrong type.
    pub fn wrong_type(path: impl Into<String>, found: &str, expected: &str) -> Self {
        let path = path.into();
        let message = format!("Invalid value: \"{found}\": {path} in body must be of type {expected}: \"{found}\"");
        Self { path, message, reason: "FieldValueTypeInvalid" }
    }

    /// A missing value.
    pub fn required(path: impl Into<String>) -> Self {
        Self { path: path.into(), message: "Required value".into(), reason: "FieldValueRequired" }
    }

    /// A field that the schema does not have.
    pub fn unknown(path: impl Into<String>) -> Self {
        Self { path: path.into(), message: "Unknown field".into(), reason: "FieldValueForbidden" }
    }

    /// A value outside the listed ones.
    pub fn unsupported(path: impl Into<String>, value: impl std::fmt::Display, supported: &[String]) -> Self {
        Self {
            path: path.into(),
            message: format!("Unsupported value: {value}: supported values: {}", supported.join(", ")),
            reason: "FieldValueNotSupported",
        }
    }

    /// Something that may not be done.
    pub fn forbidden(path: impl Into<String>, detail: impl std::fmt::Display) -> Self {
        Self { path: path.into(), message: format!("Forbidden: {detail}"), reason: "FieldValueForbidden" }
    }

    /// A list or map with too many entries.
    pub fn too_many(path: impl Into<String>, found: usize, most: usize) -> Self {
        Self {
            path: path.into(),
            message: format!("Too many: {found}: must have at most {most} items"),
            reason: "FieldValueTooMany",
        }
    }

    /// The same key twice.
    pub fn duplicate(path: impl Into<String>, value: impl std::fmt::Display) -> Self {
        Self { path: path.into(), message: format!("Duplicate value: {value}"), reason: "FieldValueDuplicate" }
    }
}

/// Any failure.
pub fn failure(code: u16, reason: &str, message: impl std::fmt::Display) -> Box<Status> {
    Status::failure(&message.to_string(), reason).with_code(code).boxed()
}

fn named(code: u16, reason: &str, resource: &GroupResource, name: &str, what: String) -> Box<Status> {
    let details = StatusDetails {
        name: name.to_owned(),
        group: resource.group.clone(),
        kind: resource.plural.clone(),
        ..no_details()
    };
    Status::failure(&what, reason).with_code(code).with_details(details).boxed()
}

fn no_details() -> StatusDetails {
    StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    }
}

/// 404 for an object.
pub fn not_found(resource: &GroupResource, name: &str) -> Box<Status> {
    named(404, "NotFound", resource, name, format!("{resource} {name:?} not found"))
}

/// 404 for a path that nothing is served at.
pub fn no_such_path() -> Box<Status> {
    failure(404, "NotFound", "the server could not find the requested resource")
}

/// 409: the name is taken.
pub fn already_exists(resource: &GroupResource, name: &str) -> Box<Status> {
    named(409, "AlreadyExists", resource, name, format!("{resource} {name:?} already exists"))
}

/// 409: the write is based on another version of the object.
pub fn conflict(resource: &GroupResource, name: &str, why: impl std::fmt::Display) -> Box<Status> {
    let what = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
    named(409, "Conflict", resource, name, what)
}

/// The usual [`conflict`].
pub fn modified(resource: &GroupResource, name: &str) -> Box<Status> {
    conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )
}

/// 403.
pub fn forbidden(resource: &GroupResource, name: &str, why: impl std::fmt::Display) -> Box<Status> {
    named(403, "Forbidden", resource, name, format!("{resource} {name:?} is forbidden: {why}"))
}

/// 422 with one cause for each error.
pub fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Box<Status> {
    let all = errors.iter().map(ToString::to_string).collect::<Vec<_>>();
    let list = if all.len() == 1 { all.concat() } else { format!("[{}]", all.join(", ")) };
    let kind = if resource.id.group.is_empty() {
        resource.kind.clone()
    } else {
        format!("{}.{}", resource.kind, resource.id.group)
    };
    let details = StatusDetails {
        name: name.to_owned(),
        group: resource.id.group.clone(),
        kind: resource.kind.clone(),
        causes: errors
            .iter()
            .map(|e| StatusCause { reason: e.reason.to_owned(), message: e.message.clone(), field: e.path.clone() })
            .collect(),
        ..no_details()
    };
    Status::failure(&format!("{kind} {name:?} is invalid: {list}"), "Invalid")
        .with_code(422)
        .with_details(details)
        .boxed()
}

/// 400.
pub fn bad_request(message: impl std::fmt::Display) -> Box<Status> {
    failure(400, "BadRequest", message)
}

/// 405.
pub fn method_not_allowed() -> Box<Status> {
    failure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

/// 410: the history behind a resourceVersion is gone; the client must list again.
pub fn expired(asked: u64, oldest: u64) -> Box<Status> {
    failure(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
}

/// 415.
pub fn unsupported_media(message: impl std::fmt::Display) -> Box<Status> {
    failure(415, "UnsupportedMediaType", message)
}

/// The JSON body of a `Status`.
pub fn body(status: &Status) -> serde_json::Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    value["kind"] = "Status".into();
    value["apiVersion"] = "v1".into();
    if value.get("metadata").is_none() {
        value["metadata"] = serde_json::json!({});
    }
    value
}
