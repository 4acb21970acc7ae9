//! In which form answers go out: whole objects, metadata alone, or tables for people.

use axum::body::Bytes;
use serde_json::{Value, json};

use super::convert;
use super::resource::Resource;
use super::watch::{Change, EventType, Object, line};

/// The form that a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Objects as they are.
    Whole,
    /// `PartialObjectMetadata`.
    Metadata,
}

impl Form {
    /// The first acceptable one of an `Accept` header. Whatever else is asked for gets JSON.
    pub fn parse(accept: &str) -> Self {
        for choice in accept.split(',') {
            let wants = |name: &str| choice.split(';').any(|part| part.trim().strip_prefix("as=") == Some(name));
            if !choice.trim().starts_with("application/json") {
                continue;
            }
            if wants("PartialObjectMetadata") || wants("PartialObjectMetadataList") {
                return Self::Metadata;
            }
            if !choice.contains("as=") {
                return Self::Whole;
            }
        }
        Self::Whole
    }

    /// One object.
    pub fn object(self, resource: &Resource, object: &Object) -> Bytes {
        match self {
            Self::Whole if convert::is_identity(resource) => object.bytes(),
            _ => self.value(resource, &object.value).to_string().into(),
        }
    }

    fn value(self, resource: &Resource, object: &Value) -> Value {
        let shown = convert::to_shown(resource, object);
        match self {
            Self::Whole => shown,
            Self::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": shown["metadata"],
            }),
        }
    }

    /// A list with its metadata.
    pub fn list<'a>(self, resource: &Resource, items: impl Iterator<Item = &'a Object>, metadata: &Value) -> Bytes {
        let (kind, version) = match self {
            Self::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            Self::Whole => (format!("{}List", resource.kind), resource.api_version()),
        };
        let head = json!({"kind": kind, "apiVersion": version, "metadata": metadata}).to_string();
        let mut text = head.into_bytes();
        text.pop();
        text.extend_from_slice(b",\"items\":[");
        for (at, object) in items.enumerate() {
            if at > 0 {
                text.push(b',');
            }
            text.extend_from_slice(&self.object(resource, object));
        }
        text.extend_from_slice(b"]}");
        text.into()
    }

    /// One event of a watch.
    pub fn event(self, resource: &Resource, change: &Change, event: EventType) -> Bytes {
        match self {
            Self::Whole if convert::is_identity(resource) => change.line(event),
            _ => {
                let value = self.value(resource, &change.seen_object(event));
                line(event.as_str(), value.to_string().as_bytes())
            }
        }
    }

    /// A bookmark; `end` is the one that closes the initial events of a streaming list.
    pub fn bookmark(self, resource: &Resource, version: u64, end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let (kind, api_version) = match self {
            Self::Metadata => ("PartialObjectMetadata".to_owned(), "meta.k8s.io/v1".to_owned()),
            Self::Whole => (resource.kind.clone(), resource.api_version()),
        };
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        line("BOOKMARK", object.to_string().as_bytes())
    }
}
