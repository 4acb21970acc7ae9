//! Creating and updating objects, with all that the server itself decides about them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::policy::Asked;
use super::resource::Resource;
use super::status::{self, FieldError, Outcome};
use super::store::{Key, Store, owners};
use super::user::User;
use super::watch::Object;
use super::{crd, csr, defaults, dra, names, shape, taints};

/// How a write is meant.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Nothing is kept.
    pub dry_run: bool,
    /// Unknown fields are an error instead of being dropped.
    pub strict: bool,
    /// Who writes.
    pub user: User,
}

/// Metadata that only the server writes.
const SERVER_FIELDS: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
    "managedFields",
    "resourceVersion",
];

impl Store {
    /// Makes an object. It comes and goes in the stored version.
    pub fn create(
        &mut self,
        resource: &Resource,
        namespace: Option<&str>,
        mut object: Value,
        options: &WriteOptions,
    ) -> Outcome<Arc<Object>> {
        self.check_envelope(resource, &object)?;
        let applied = object["metadata"].get("managedFields").cloned();
        let metadata = metadata_of(&mut object)?;
        for field in SERVER_FIELDS.iter().filter(|field| **field != "generateName") {
            metadata.remove(*field);
        }
        place(resource, metadata, namespace)?;
        if metadata.get("name").and_then(Value::as_str).unwrap_or_default().is_empty() {
            let Some(prefix) = metadata.get("generateName").and_then(Value::as_str).filter(|p| !p.is_empty()) else {
                let missing = FieldError {
                    message: "Required value: name or generateName is required".to_owned(),
                    ..FieldError::required("metadata.name")
                };
                return Err(status::invalid(resource, "", &[missing]));
            };
            // The longest prefix still leaves room for the suffix.
            let prefix = prefix.chars().take(58).collect::<String>();
            let name = format!("{prefix}{}", self.new_suffix());
            metadata.insert("name".to_owned(), name.into());
        }
        let (uid, now) = (self.new_uid(), self.now());
        let counted = object.get("spec").is_some();
        let metadata = metadata_of(&mut object)?;
        metadata.insert("uid".to_owned(), uid.into());
        metadata.insert("creationTimestamp".to_owned(), now.into());
        if counted {
            metadata.insert("generation".to_owned(), 1.into());
        }
        if let Some(applied) = applied {
            metadata.insert("managedFields".to_owned(), applied);
        }
        let key = Key::of(&object);
        names::check(resource, &key.name)?;
        self.check_namespace(resource, &key)?;
        if resource.has_status
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        csr::sign_in(resource, &mut object, &options.user);
        self.admit(resource, &mut object, None, None, options)?;
        self.review(Asked {
            operation: "CREATE",
            resource,
            subresource: None,
            user: &options.user,
            object: Some(&object),
            old: None,
        })?;
        if self.get(&resource.storage, &key).is_some() {
            return Err(status::already_exists(&resource.id, &key.name));
        }
        if options.dry_run {
            return Ok(Arc::new(Object::new(object)));
        }
        let stored = self.put(&resource.storage, object);
        self.after_write(resource, &stored);
        Ok(stored)
    }

    /// Changes an object: `change` makes the wanted one of the present one.
    pub fn update(
        &mut self,
        resource: &Resource,
        key: &Key,
        subresource: Option<&str>,
        change: impl FnOnce(&Value) -> Outcome<Value>,
        options: &WriteOptions,
    ) -> Outcome<Arc<Object>> {
        let old = self.get(&resource.storage, key).ok_or_else(|| status::not_found(&resource.id, &key.name))?;
        let mut next = change(&old.value)?;
        self.check_envelope(resource, &next)?;
        let before = &old.value["metadata"];
        let metadata = metadata_of(&mut next)?;
        place(resource, metadata, Some(&key.namespace).filter(|n| !n.is_empty()).map(String::as_str))?;
        let text = |field: &str| metadata.get(field).and_then(Value::as_str).unwrap_or_default();
        if text("name") != key.name {
            let (sent, name) = (text("name"), &key.name);
            return Err(status::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({name})"
            )));
        }
        if !matches!(text("uid"), "") && before["uid"] != text("uid") {
            let why = format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                text("uid"),
                before["uid"].as_str().unwrap_or_default()
            );
            return Err(status::conflict(&resource.id, &key.name, why));
        }
        if !text("resourceVersion").is_empty() && before["resourceVersion"] != text("resourceVersion") {
            return Err(status::modified(&resource.id, &key.name));
        }
        let applied = metadata.get("managedFields").cloned();
        for field in SERVER_FIELDS {
            match before.get(*field) {
                Some(value) => metadata.insert((*field).to_owned(), value.clone()),
                None => metadata.remove(*field),
            };
        }
        let mut next =
            csr::keep(resource, subresource, &old.value, keep_apart(resource, subresource, &old.value, next));
        check_finalizers(resource, &old.value, &next)?;
        self.admit(resource, &mut next, Some(&old.value), subresource, options)?;
        self.review(Asked {
            operation: "UPDATE",
            resource,
            subresource,
            user: &options.user,
            object: Some(&next),
            old: Some(&old.value),
        })?;
        if let Some(generation) = old.value["metadata"]["generation"].as_i64()
            && differs_in_spec(&old.value, &next)
        {
            next["metadata"]["generation"] = (generation + 1).into();
        }
        // Only server-side apply changes the list of managers, and a request that changes nothing else keeps it.
        if next == old.value && !crate::api::apply::manages_more(before.get("managedFields"), applied.as_ref()) {
            return Ok(old);
        }
        if let Some(applied) = applied {
            next["metadata"]["managedFields"] = applied;
        }
        if options.dry_run {
            return Ok(Arc::new(Object::new(next)));
        }
        if self.is_finished(&resource.storage, &next) {
            return Ok(self.remove(&resource.storage, next).unwrap_or(old));
        }
        let stored = self.put(&resource.storage, next);
        self.after_write(resource, &stored);
        Ok(stored)
    }

    fn check_envelope(&self, resource: &Resource, object: &Value) -> Outcome<()> {
        let kind = object["kind"].as_str().unwrap_or_default();
        if kind != resource.kind {
            let message = format!("{kind:?} in the object does not fit {:?} of the URL", resource.kind);
            return Err(status::bad_request(message));
        }
        Ok(())
    }

    fn check_namespace(&self, resource: &Resource, key: &Key) -> Outcome<()> {
        if !resource.namespaced {
            return Ok(());
        }
        let namespaces = super::resource::GroupResource::new("", "namespaces");
        let found = self.get(&namespaces, &Key { namespace: String::new(), name: key.namespace.clone() });
        let namespace = found.ok_or_else(|| status::not_found(&namespaces, &key.namespace))?;
        if namespace.value["metadata"].get("deletionTimestamp").is_some() {
            let why =
                format!("unable to create new content in namespace {} because it is being terminated", key.namespace);
            return Err(status::forbidden(&resource.id, &key.name, why));
        }
        Ok(())
    }

    /// Pruning, defaults and validation.
    fn admit(
        &self,
        resource: &Resource,
        object: &mut Value,
        old: Option<&Value>,
        subresource: Option<&str>,
        options: &WriteOptions,
    ) -> Outcome<()> {
        tidy_metadata(object);
        if resource.custom.is_none() {
            defaults::strip_nulls(object);
        }
        shape::check(resource, object)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let errors = match &resource.custom {
            Some(custom) => {
                let unknown = custom.schema.prune(object);
                if options.strict && !unknown.is_empty() {
                    let fields = unknown.iter().map(|path| format!("unknown field {path:?}")).collect::<Vec<_>>();
                    return Err(status::bad_request(format!("strict decoding error: {}", fields.join(", "))));
                }
                custom.schema.apply_defaults(object);
                custom.schema.check(object, old)
            }
            None => {
                defaults::fill(resource, object);
                if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
                    crd::check(object, &self.now())
                } else {
                    dra::drop_deallocated(resource, object);
                    taints::admit(resource, object, self.minor, &self.now());
                    let mut errors = dra::check(resource, object, old);
                    errors.extend(csr::check(resource, object, old, subresource));
                    errors
                }
            }
        };
        if errors.is_empty() { Ok(()) } else { Err(status::invalid(resource, &name, &errors)) }
    }

    fn after_write(&mut self, resource: &Resource, object: &Arc<Object>) {
        if resource.is("apiextensions.k8s.io", "customresourcedefinitions") {
            self.serve(&object.value);
        }
        let has_owner = owners(&object.value).next().is_some();
        if has_owner && owners(&object.value).all(|uid| self.by_uid(uid).is_none()) {
            self.collect(&resource.storage, &Key::of(&object.value));
        }
    }
}

fn metadata_of(object: &mut Value) -> Outcome<&mut serde_json::Map<String, Value>> {
    if !object.is_object() {
        return Err(status::bad_request("the body is no object"));
    }
    if object["metadata"].is_null() {
        object["metadata"] = json!({});
    }
    object["metadata"].as_object_mut().ok_or_else(|| status::bad_request("metadata is no object"))
}

/// Sees to it that the object's namespace is that of the URL.
fn place(resource: &Resource, metadata: &mut serde_json::Map<String, Value>, namespace: Option<&str>) -> Outcome<()> {
    let sent = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned();
    match namespace {
        Some(namespace) if resource.namespaced => {
            if !sent.is_empty() && sent != namespace {
                return Err(status::bad_request(format!(
                    "the namespace of the provided object does not match the namespace sent on the request ({sent:?}, {namespace:?})"
                )));
            }
            metadata.insert("namespace".to_owned(), namespace.into());
        }
        _ if resource.namespaced => {
            return Err(status::bad_request("an empty namespace may not be set during creation"));
        }
        _ => {
            metadata.remove("namespace");
        }
    }
    Ok(())
}

/// A write to `/status` changes the status alone, any other write everything else.
fn keep_apart(resource: &Resource, subresource: Option<&str>, old: &Value, mut next: Value) -> Value {
    let take_status = |from: &Value, to: &mut Value| {
        let Some(map) = to.as_object_mut() else { return };
        match from.get("status").filter(|status| !status.is_null()) {
            Some(status) => map.insert("status".to_owned(), status.clone()),
            None => map.remove("status"),
        };
    };
    match subresource {
        // Of an approval its own rules keep what is to be kept.
        Some("approval") => next,
        Some("status") => {
            let mut kept = old.clone();
            take_status(&next, &mut kept);
            kept
        }
        _ if resource.has_status => {
            take_status(old, &mut next);
            next
        }
        _ => next,
    }
}

fn check_finalizers(resource: &Resource, old: &Value, next: &Value) -> Outcome<()> {
    if old["metadata"].get("deletionTimestamp").is_none() {
        return Ok(());
    }
    let list = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = list(old);
    let new = list(next).into_iter().filter(|f| !before.contains(f)).collect::<Vec<_>>();
    if new.is_empty() {
        return Ok(());
    }
    let names = new.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let detail =
        format!("no new finalizers can be added if the object is being deleted, found new finalizers [{names}]");
    let name = old["metadata"]["name"].as_str().unwrap_or_default();
    Err(status::invalid(resource, name, &[FieldError::forbidden("metadata.finalizers", detail)]))
}

/// Empty metadata is no metadata: otherwise writing `finalizers: []` would be a change.
fn tidy_metadata(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|_, value| match value {
            Value::Null => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            Value::String(text) => !text.is_empty(),
            _ => true,
        });
    }
}

/// Whether anything but metadata and status differs.
fn differs_in_spec(old: &Value, next: &Value) -> bool {
    let empty = serde_json::Map::new();
    let (old, next) = (old.as_object().unwrap_or(&empty), next.as_object().unwrap_or(&empty));
    let matters = |key: &&String| !matches!(key.as_str(), "metadata" | "status" | "apiVersion" | "kind");
    old.keys().chain(next.keys()).filter(matters).any(|key| old.get(key) != next.get(key))
}
