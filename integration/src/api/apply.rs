//! Server-side apply.

use std::sync::Arc;

use serde_json::Value;

use super::convert;
use super::patch::{PatchKind, patched};
use super::request::Request;
use super::resource::Resource;
use super::status::{Outcome, bad_request};
use super::store::{Key, Store};
use super::watch::Object;
use super::write::WriteOptions;

/// Makes or merges an object.
pub fn apply(
    store: &mut Store,
    resource: &Resource,
    key: &Key,
    subresource: Option<&str>,
    applied: &Value,
    request: &Request,
    options: &WriteOptions,
) -> Outcome<(http::StatusCode, Arc<Object>)> {
    request.query.get("fieldManager").ok_or_else(|| {
        bad_request(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        )
    })?;
    if store.get(&resource.storage, key).is_none() && subresource.is_none() {
        let mut object = applied.clone();
        object["metadata"]["name"] = key.name.clone().into();
        let namespace = Some(key.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let made = store.create(resource, namespace, convert::to_stored(resource, object), options)?;
        return Ok((http::StatusCode::CREATED, made));
    }
    let change = |old: &Value| {
        let next = patched(resource, PatchKind::Apply, &convert::to_shown(resource, old), applied)?;
        Ok(convert::to_stored(resource, next))
    };
    Ok((http::StatusCode::OK, store.update(resource, key, subresource, change, options)?))
}

/// Whether a request's list of managers says more than the stored one.
pub fn manages_more(stored: Option<&Value>, sent: Option<&Value>) -> bool {
    sent.is_some_and(|sent| stored != Some(sent))
}
