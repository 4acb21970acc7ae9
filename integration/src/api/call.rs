//! What each verb does.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};

use super::delete::{Deleted, Deletion};
use super::follow::Follow;
use super::http::{Response, ok, respond, respond_with};
use super::patch::{PatchKind, patched};
use super::policy::Asked;
use super::represent::View;
use super::request::{Request, Verb};
use super::resource::Resource;
use super::selector::Filter;
use super::status::{self, Outcome, bad_request};
use super::store::{Key, Store};
use super::watch::{Object, line};
use super::write::WriteOptions;
use super::{apply, convert, csr, pods, scale};

/// One request on its way through.
pub struct Call<'a> {
    /// The objects.
    pub store: &'a mut Store,
    /// What is asked for.
    pub request: &'a Request,
    /// The kind it is asked of.
    pub resource: &'a Arc<Resource>,
    /// The form of the answer.
    pub view: View,
    /// What the body is.
    pub content_type: &'a str,
}

impl Call<'_> {
    /// Does it.
    pub fn run(&mut self, body: Value) -> Outcome<Response> {
        let subresource = self.request.subresource.as_deref();
        if subresource == Some("status") && !self.resource.has_status {
            return Err(status::no_such_path());
        }
        match (self.request.verb, subresource) {
            (Verb::Get, None) => self.get(),
            (Verb::Get, Some("status")) => self.get(),
            (Verb::Get, Some("approval")) if csr::is_request(self.resource) => self.get(),
            (_, Some("scale")) if scale::is_scalable(self.resource) => self.scale(&body),
            (Verb::List, None) => self.list(),
            (Verb::Watch, None) => self.watch(),
            (Verb::Create, None) if self.request.name.is_none() => self.create(body),
            (Verb::Create, Some("binding")) if self.resource.is("", "pods") => {
                pods::bind(self.store, self.resource, &self.key()?, &body)?;
                self.done(StatusCode::CREATED)
            }
            (Verb::Create, Some("eviction")) if self.resource.is("", "pods") => {
                let deletion = Deletion::parse(&self.request.query, &body["deleteOptions"])?;
                self.store.delete(&self.resource.storage, &self.key()?, &deletion)?;
                self.done(StatusCode::CREATED)
            }
            (Verb::Update, None | Some("status")) => self.update(subresource, body),
            (Verb::Update, Some("finalize")) if self.resource.is("", "namespaces") => self.update(None, body),
            (Verb::Patch, None | Some("status")) => self.patch(subresource, &body),
            (Verb::Update, Some("approval")) if csr::is_request(self.resource) => self.update(subresource, body),
            (Verb::Patch, Some("approval")) if csr::is_request(self.resource) => self.patch(subresource, &body),
            (Verb::Delete, None) => self.delete(&body),
            (Verb::DeleteCollection, None) => self.delete_collection(&body),
            (_, Some("log" | "exec" | "attach" | "portforward")) if self.resource.is("", "pods") => {
                Err(status::bad_request(
                    "containers of this cluster run no program: look at the pod's status and Events instead",
                ))
            }
            (_, Some(_)) => Err(status::no_such_path()),
            _ => Err(status::method_not_allowed()),
        }
    }

    fn key(&self) -> Outcome<Key> {
        let name = self.request.name.clone().ok_or_else(status::method_not_allowed)?;
        match (&self.request.namespace, self.resource.namespaced) {
            (Some(namespace), true) => Ok(Key { namespace: namespace.clone(), name }),
            (None, false) => Ok(Key { namespace: String::new(), name }),
            _ => Err(status::no_such_path()),
        }
    }

    fn filter(&self) -> Outcome<Filter> {
        let query = &self.request.query;
        let namespace = self.request.namespace.as_deref();
        let filter = Filter::parse(self.resource, namespace, query.get("labelSelector"), query.get("fieldSelector"))?;
        Ok(match &self.request.name {
            Some(name) => filter.named(name),
            None => filter,
        })
    }

    fn options(&self) -> WriteOptions {
        let query = &self.request.query;
        let strict = query.get("fieldValidation") == Some("Strict");
        WriteOptions { dry_run: query.dry_run(), strict, user: self.request.user.clone() }
    }

    fn object(&mut self, code: StatusCode, object: &Object) -> Outcome<Response> {
        Ok(respond(code, self.view.object(object)))
    }

    fn done(&self, code: StatusCode) -> Outcome<Response> {
        let body =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code.as_u16()});
        Ok(respond(code, body.to_string().into()))
    }

    fn get(&mut self) -> Outcome<Response> {
        let key = self.key()?;
        let found = self.store.get(&self.resource.storage, &key);
        self.object(StatusCode::OK, &*found.ok_or_else(|| status::not_found(&self.resource.id, &key.name))?)
    }

    fn list(&mut self) -> Outcome<Response> {
        let query = &self.request.query;
        let filter = self.filter()?;
        let limit = query.number("limit")?.unwrap_or_default() as usize;
        let (start, first_version) = match query.get("continue") {
            Some(token) => {
                let (key, version) = read_continue(token)?;
                (Some(key), Some(version))
            }
            None => (None, None),
        };
        if let Some(version) = first_version {
            // Told to list anew exactly when a watch from this version would be.
            let _changes = self.store.since(version)?;
        }
        let page = self.store.list(&self.resource.storage, &filter, start.as_ref(), limit);
        let version = first_version.unwrap_or(page.version);
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let Some((key, left)) = &page.rest {
            metadata["continue"] = write_continue(key, version).into();
            metadata["remainingItemCount"] = (*left).into();
        }
        ok(self.view.list(page.items.iter().map(|object| &**object), &metadata))
    }

    fn watch(&mut self) -> Outcome<Response> {
        let query = &self.request.query;
        let initial = query.flag("sendInitialEvents");
        let version = query.resource_version()?.filter(|version| *version > 0 && !initial);
        let bookmarks = query.flag("allowWatchBookmarks");
        let filter = self.filter()?;
        let (backlog, receiver) = match self.store.watch(&self.resource.storage, filter, version, bookmarks) {
            Ok(found) => found,
            // A watch that cannot begin says so in its stream.
            Err(status) => return ok(line("ERROR", status::body(&status).to_string().as_bytes())),
        };
        let end = (initial && bookmarks).then(|| self.store.version());
        let timeout = query.timeout()?;
        let follow = Follow { backlog: backlog.into(), end, receiver, view: self.view.clone() };
        Ok(respond_with(StatusCode::OK, follow.into_body(timeout)))
    }

    fn create(&mut self, body: Value) -> Outcome<Response> {
        let stored = convert::to_stored(self.resource, self.checked(body)?);
        let namespace = self.request.namespace.as_deref();
        let made = self.store.create(self.resource, namespace, stored, &self.options())?;
        self.object(StatusCode::CREATED, &made)
    }

    /// An object of the kind and version of the path; both may be left out.
    fn checked(&self, mut body: Value) -> Outcome<Value> {
        if !body.is_object() {
            return Err(bad_request("the body is no object"));
        }
        let (version, kind) = (self.resource.api_version(), self.resource.kind.clone());
        for (field, wanted) in [("apiVersion", version), ("kind", kind)] {
            match body[field].as_str() {
                Some(found) if found != wanted => {
                    return Err(bad_request(format!(
                        "{field} {found:?} in the object does not fit {wanted:?} of the URL"
                    )));
                }
                Some(_) => {}
                None => body[field] = wanted.into(),
            }
        }
        Ok(body)
    }

    fn update(&mut self, subresource: Option<&str>, body: Value) -> Outcome<Response> {
        let key = self.key()?;
        let body = convert::to_stored(self.resource, self.checked(body)?);
        if self.resource.custom.is_some() && body["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty()
        {
            let missing =
                status::FieldError::invalid("metadata.resourceVersion", "0x0", "must be specified for an update");
            return Err(status::invalid(self.resource, &key.name, &[missing]));
        }
        let options = self.options();
        let stored = self.store.update(self.resource, &key, subresource, |_| Ok(body), &options)?;
        self.object(StatusCode::OK, &stored)
    }

    fn patch(&mut self, subresource: Option<&str>, body: &Value) -> Outcome<Response> {
        let key = self.key()?;
        let kind = PatchKind::parse(self.content_type)?;
        let resource = self.resource.clone();
        let options = self.options();
        if kind == PatchKind::Apply {
            let (code, stored) = apply::apply(self.store, &resource, &key, subresource, body, self.request, &options)?;
            return self.object(code, &stored);
        }
        let change = |old: &Value| {
            let next = patched(&resource, kind, &convert::to_shown(&resource, old), body)?;
            Ok(convert::to_stored(&resource, next))
        };
        let stored = self.store.update(&resource, &key, subresource, change, &options)?;
        self.object(StatusCode::OK, &stored)
    }

    fn scale(&mut self, body: &Value) -> Outcome<Response> {
        let key = self.key()?;
        let resource = self.resource.clone();
        let change = |old: &Value| match self.request.verb {
            Verb::Update => scale::written(old, body),
            _ => {
                let kind = PatchKind::parse(self.content_type)?;
                scale::written(old, &patched(&resource, kind, &scale::shown(old), body)?)
            }
        };
        let object = match self.request.verb {
            Verb::Get => self.store.get(&resource.storage, &key),
            Verb::Update | Verb::Patch => {
                let options = self.options();
                Some(self.store.update(&resource, &key, None, change, &options)?)
            }
            _ => return Err(status::method_not_allowed()),
        };
        let object = object.ok_or_else(|| status::not_found(&resource.id, &key.name))?;
        ok(scale::shown(&object.value).to_string().into())
    }

    fn delete(&mut self, body: &Value) -> Outcome<Response> {
        let key = self.key()?;
        let deletion = Deletion::parse(&self.request.query, body)?;
        self.review_deletion(&key)?;
        match self.store.delete(&self.resource.storage, &key, &deletion)? {
            Deleted::Pending(object) => self.object(StatusCode::OK, &object),
            Deleted::Gone(object) if self.resource.is("", "pods") => self.object(StatusCode::OK, &object),
            Deleted::Gone(object) => {
                let details = json!({
                    "name": key.name,
                    "group": self.resource.id.group,
                    "kind": self.resource.id.plural,
                    "uid": object.value["metadata"]["uid"],
                });
                let body = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
                });
                ok(body.to_string().into())
            }
        }
    }

    fn review_deletion(&mut self, key: &Key) -> Outcome<()> {
        let Some(old) = self.store.get(&self.resource.storage, key) else { return Ok(()) };
        let (resource, user) = (self.resource, &self.request.user);
        let old = Some(&old.value);
        self.store.review(Asked { operation: "DELETE", resource, subresource: None, user, object: None, old })
    }

    fn delete_collection(&mut self, body: &Value) -> Outcome<Response> {
        let filter = self.filter()?;
        let deletion = Deletion::parse(&self.request.query, body)?;
        let page = self.store.list(&self.resource.storage, &filter, None, 0);
        for object in &page.items {
            let key = Key::of(&object.value);
            // One may have gone with its owner, another one of this list.
            if self.store.get(&self.resource.storage, &key).is_some() {
                self.review_deletion(&key)?;
                self.store.delete(&self.resource.storage, &key, &deletion)?;
            }
        }
        let metadata = json!({"resourceVersion": self.store.version().to_string()});
        ok(self.view.list(page.items.iter().map(|object| &**object), &metadata))
    }
}

/// Pages after the first are read from the present state, under the version of the first page: a watch from there
/// tells of all that changed between them.
fn write_continue(key: &Key, version: u64) -> String {
    format!("{version}/{}/{}", key.namespace, key.name)
}

fn read_continue(token: &str) -> Outcome<(Key, u64)> {
    let mut parts = token.splitn(3, '/');
    let read = (|| {
        let version = parts.next()?.parse().ok()?;
        Some((Key { namespace: parts.next()?.to_owned(), name: parts.next()?.to_owned() }, version))
    })();
    read.ok_or_else(|| bad_request("continue key is not valid"))
}
