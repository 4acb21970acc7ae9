//! In which form answers go out: whole objects, metadata alone, or tables for people.

use std::sync::Arc;

use axum::body::Bytes;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::convert;
use super::resource::Resource;
use super::table::{self, Include};
use super::watch::{Change, EventType, Object, line};

/// The form that a client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Objects as they are.
    Whole,
    /// `PartialObjectMetadata`.
    Metadata,
    /// `Table`.
    Table(Include),
}

impl Form {
    /// The first acceptable one of an `Accept` header. Whatever else is asked for gets JSON.
    pub fn parse(accept: &str, include: Include) -> Self {
        for choice in accept.split(',').map(str::trim).filter(|choice| choice.starts_with("application/json")) {
            let form = choice.split(';').find_map(|part| part.trim().strip_prefix("as="));
            match form {
                Some("Table") => return Self::Table(include),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => return Self::Metadata,
                Some(_) => {}
                None => return Self::Whole,
            }
        }
        Self::Whole
    }
}

/// Objects of one kind on their way to one client.
#[derive(Clone)]
pub struct View {
    resource: Arc<Resource>,
    form: Form,
    clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// Only the first table of a watch has headings.
    headed: bool,
}

impl View {
    /// Shows objects of `resource`.
    pub fn new(resource: Arc<Resource>, form: Form, clock: Arc<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        Self { resource, form, clock, headed: false }
    }

    /// One object.
    pub fn object(&mut self, object: &Object) -> Bytes {
        match self.form {
            Form::Whole if convert::is_identity(&self.resource) => object.bytes(),
            _ => self.value(&object.value).to_string().into(),
        }
    }

    fn value(&mut self, object: &Value) -> Value {
        let shown = convert::to_shown(&self.resource, object);
        match self.form {
            Form::Whole => shown,
            Form::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": shown["metadata"],
            }),
            Form::Table(include) => {
                let row = table::row(&self.resource, &shown, (self.clock)(), include);
                let version = shown["metadata"]["resourceVersion"].clone();
                self.table(&json!({"resourceVersion": version}), vec![row])
            }
        }
    }

    fn table(&mut self, metadata: &Value, rows: Vec<Value>) -> Value {
        let headings = if self.headed { Value::Null } else { table::headings(&self.resource) };
        self.headed = true;
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": headings,
            "rows": rows,
        })
    }

    /// A list with its metadata.
    pub fn list<'a>(&mut self, items: impl Iterator<Item = &'a Object>, metadata: &Value) -> Bytes {
        let (kind, version) = match self.form {
            Form::Whole => (format!("{}List", self.resource.kind), self.resource.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
            Form::Table(include) => {
                let now = (self.clock)();
                let row = |object: &Object| {
                    table::row(&self.resource, &convert::to_shown(&self.resource, &object.value), now, include)
                };
                let rows = items.map(row).collect();
                return self.table(metadata, rows).to_string().into();
            }
        };
        let mut text = json!({"kind": kind, "apiVersion": version, "metadata": metadata}).to_string().into_bytes();
        text.pop();
        text.extend_from_slice(b",\"items\":[");
        for (at, object) in items.enumerate() {
            if at > 0 {
                text.push(b',');
            }
            text.extend_from_slice(&self.object(object));
        }
        text.extend_from_slice(b"]}");
        text.into()
    }

    /// One event of a watch.
    pub fn event(&mut self, change: &Change, event: EventType) -> Bytes {
        match self.form {
            Form::Whole if convert::is_identity(&self.resource) => change.line(event),
            _ => line(event.as_str(), self.value(&change.seen_object(event)).to_string().as_bytes()),
        }
    }

    /// A bookmark; `end` is the one that closes the initial events of a streaming list.
    pub fn bookmark(&mut self, version: u64, end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.form {
            Form::Whole => {
                json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata})
            }
            Form::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            Form::Table(_) => self.table(&metadata, Vec::new()),
        };
        line("BOOKMARK", object.to_string().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_is_known_wins() {
        let parse = |accept: &str| Form::parse(accept, Include::Metadata);
        assert_eq!(parse("*/*"), Form::Whole);
        assert_eq!(parse("application/json"), Form::Whole);
        assert_eq!(parse("application/vnd.kubernetes.protobuf, application/json"), Form::Whole);
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                       application/json";
        assert_eq!(parse(kubectl), Form::Table(Include::Metadata));
        assert_eq!(parse("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"), Form::Metadata);
        assert_eq!(parse("application/json;as=APIGroupDiscoveryList;v=v2,application/json"), Form::Whole);
    }
}
