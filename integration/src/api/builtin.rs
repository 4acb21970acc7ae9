//! Checking objects of built-in kinds without a server.

use serde_json::Value;

use super::resource::Catalog;
use super::status::FieldError;
use super::{defaults, dra, shape};

/// Checks an object as the server would on creation; `None` if its kind is not built in.
pub fn validate_builtin(object: &Value) -> Option<Vec<FieldError>> {
    let catalog = Catalog::builtin();
    let fits = |version: &str, kind: &str| object["apiVersion"] == version && object["kind"] == kind;
    let resource = catalog.iter().find(|resource| fits(&resource.api_version(), &resource.kind))?;
    let mut object = object.clone();
    defaults::strip_nulls(&mut object);
    if let Err(status) = shape::check(resource, &object) {
        return Some(vec![FieldError::invalid("", "\"object\"", status.message)]);
    }
    defaults::fill(resource, &mut object);
    Some(dra::check(resource, &object, None))
}
