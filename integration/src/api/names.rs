//! Which names objects may have.

use super::resource::Resource;
use super::status::{self, FieldError, Outcome};

fn is_part(part: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

/// An RFC 1123 label.
pub fn is_dns_label(name: &str) -> bool {
    name.len() <= 63 && is_part(name)
}

/// An RFC 1123 subdomain: parts joined by dots.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_part)
}

/// Refuses a name that objects of the kind may not have.
pub fn check(resource: &Resource, name: &str) -> Outcome<()> {
    let (fits, what) = match (resource.id.group.as_str(), resource.id.plural.as_str()) {
        ("rbac.authorization.k8s.io", _) => {
            (!name.contains(['/', '%']) && !matches!(name, "" | "." | ".."), "a path segment")
        }
        ("", "namespaces") => (is_dns_label(name), "an RFC 1123 label"),
        _ => (is_dns_subdomain(name), "a lowercase RFC 1123 subdomain"),
    };
    if fits {
        return Ok(());
    }
    let detail = format!("must be {what}: lower case letters, digits, '-' and '.', alphanumeric at both ends");
    Err(status::invalid(resource, name, &[FieldError::invalid("metadata.name", format!("{name:?}"), detail)]))
}
