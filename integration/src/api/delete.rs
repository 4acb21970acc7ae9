//! Deleting: finalizers, grace, owners, namespaces.

use std::sync::Arc;

use serde_json::Value;

use super::request::Query;
use super::resource::GroupResource;
use super::status::{self, Outcome, bad_request};
use super::store::{Key, Store};
use super::watch::Object;

/// Holds an object until what it owns is gone.
pub const FOREGROUND: &str = "foregroundDeletion";
const CRD_CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const PROTECTED_NAMESPACES: &[&str] = &["default", "kube-system", "kube-public", "kube-node-lease"];

/// What becomes of the objects that name the deleted one as their owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// They go after it.
    #[default]
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    Orphan,
}

/// How a deletion is meant.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    grace: Option<i64>,
    propagation: Propagation,
    uid: Option<String>,
    resource_version: Option<String>,
    dry_run: bool,
}

impl Deletion {
    /// Reads the `DeleteOptions` of a body and the parameters of a query; the body has precedence.
    pub fn parse(query: &Query, body: &Value) -> Outcome<Self> {
        let text = |name: &str| body[name].as_str().or_else(|| query.get(name)).map(str::to_owned);
        let propagation = match text("propagationPolicy").as_deref() {
            Some("Background") => Propagation::Background,
            Some("Foreground") => Propagation::Foreground,
            Some("Orphan") => Propagation::Orphan,
            Some(other) => return Err(bad_request(format!("propagationPolicy: unknown policy {other:?}"))),
            None if body["orphanDependents"] == true || query.flag("orphanDependents") => Propagation::Orphan,
            None => Propagation::Background,
        };
        let from_query = query.number("gracePeriodSeconds")?.and_then(|n| i64::try_from(n).ok());
        let precondition = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        Ok(Self {
            grace: body["gracePeriodSeconds"].as_i64().or(from_query),
            propagation,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            dry_run: query.dry_run() || body["dryRun"].as_array().is_some_and(|list| !list.is_empty()),
        })
    }

    fn check(&self, id: &GroupResource, key: &Key, object: &Value) -> Outcome<()> {
        let differs = |wanted: &Option<String>, field: &str| {
            wanted.as_deref().is_some_and(|wanted| object["metadata"][field] != wanted)
        };
        let refuse = |what: &str, wanted: &Option<String>, field: &str| {
            let (wanted, found) = (wanted.as_deref().unwrap_or_default(), &object["metadata"][field]);
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({}). \
                 The object might have been deleted and then recreated",
                found.as_str().unwrap_or_default()
            );
            Err(status::conflict(id, &key.name, why))
        };
        if differs(&self.uid, "uid") {
            return refuse("UID", &self.uid, "uid");
        }
        if differs(&self.resource_version, "resourceVersion") {
            return refuse("ResourceVersion", &self.resource_version, "resourceVersion");
        }
        Ok(())
    }
}

/// What came of a deletion.
pub enum Deleted {
    /// The object is gone.
    Gone(Arc<Object>),
    /// It stays until its finalizers or its grace period are through.
    Pending(Arc<Object>),
}

impl Store {
    /// Deletes an object, or marks it if something must come first.
    pub fn delete(&mut self, id: &GroupResource, key: &Key, deletion: &Deletion) -> Outcome<Deleted> {
        let old = self.get(id, key).ok_or_else(|| status::not_found(id, &key.name))?;
        deletion.check(id, key, &old.value)?;
        let is = |group: &str, plural: &str| id.group == group && id.plural == plural;
        let namespace = is("", "namespaces");
        if namespace && PROTECTED_NAMESPACES.contains(&key.name.as_str()) {
            return Err(status::forbidden(id, &key.name, "this namespace may not be deleted"));
        }
        if deletion.dry_run {
            return Ok(Deleted::Gone(old));
        }
        let crd = is("apiextensions.k8s.io", "customresourcedefinitions");
        let dependents = owned_uid(&old.value).map(|uid| self.dependents(uid)).unwrap_or_default();
        let mut next = old.value.clone();
        match deletion.propagation {
            Propagation::Foreground if !dependents.is_empty() => add_finalizer(&mut next, FOREGROUND),
            Propagation::Orphan => self.release(&old.value),
            _ => {}
        }
        if crd && !self.keys(&defined(&old.value)).is_empty() {
            add_finalizer(&mut next, CRD_CLEANUP);
        }
        let grace = if is("", "pods") { pod_grace(&old.value, deletion.grace) } else { 0 };
        if finalizers(&next).is_empty() && grace == 0 && !(namespace && self.population(&key.name) > 0) {
            return Ok(self.remove(id, next).map_or(Deleted::Gone(old), Deleted::Gone));
        }
        let marked = next["metadata"].get("deletionTimestamp").is_some();
        let shorter = next["metadata"]["deletionGracePeriodSeconds"].as_i64().is_none_or(|before| grace < before);
        if !marked || shorter || finalizers(&next) != finalizers(&old.value) {
            if !marked || shorter {
                next["metadata"]["deletionTimestamp"] = self.later(grace).into();
                next["metadata"]["deletionGracePeriodSeconds"] = grace.into();
            }
            if !marked && let Some(generation) = next["metadata"]["generation"].as_i64() {
                next["metadata"]["generation"] = (generation + 1).into();
            }
            if namespace {
                next["status"]["phase"] = "Terminating".into();
            }
            self.put(id, next);
        }
        let first = match deletion.propagation {
            _ if namespace => self.contents(&key.name),
            _ if crd => {
                let id = defined(&old.value);
                self.keys(&id).into_iter().map(|key| (id.clone(), key)).collect()
            }
            Propagation::Foreground => dependents,
            _ => Vec::new(),
        };
        let further = Deletion {
            propagation: if namespace || crd { Propagation::Background } else { deletion.propagation },
            ..Deletion::default()
        };
        for (id, key) in first {
            // It may have gone with another one meanwhile.
            if self.get(&id, &key).is_some() {
                self.delete(&id, &key, &further)?;
            }
        }
        // Dependents that the owner need not wait for may all be left.
        if let Some(uid) = owned_uid(&old.value) {
            self.unblock(uid);
        }
        Ok(match self.get(id, key) {
            Some(object) => Deleted::Pending(object),
            None => Deleted::Gone(old),
        })
    }

    /// Whether an object is marked and nothing keeps it any more.
    pub fn is_finished(&self, id: &GroupResource, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let marked = metadata.get("deletionTimestamp").is_some();
        let waits = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() > 0;
        let namespace = id.group.is_empty() && id.plural == "namespaces";
        let full = || namespace && self.population(metadata["name"].as_str().unwrap_or_default()) > 0;
        marked && !waits && finalizers(object).is_empty() && !full()
    }

    /// Removes an object that is finished.
    fn settle(&mut self, id: &GroupResource, key: &Key) {
        if let Some(object) = self.get(id, key).filter(|object| self.is_finished(id, &object.value)) {
            self.remove(id, object.value.clone());
        }
    }

    /// Takes an object away, with all that follows from it; `last` is how it looked at the end.
    pub(super) fn remove(&mut self, id: &GroupResource, last: Value) -> Option<Arc<Object>> {
        let key = Key::of(&last);
        let removed = self.take(id, last)?;
        let object = &removed.value;
        if id.group == "apiextensions.k8s.io" {
            self.catalog.remove(&defined(object));
        }
        self.after_owner(object);
        if !key.namespace.is_empty() {
            let namespace = Key { namespace: String::new(), name: key.namespace };
            self.settle(&GroupResource::new("", "namespaces"), &namespace);
        }
        self.finish_crd(id);
        Some(removed)
    }

    /// Lets a CRD go that waited for its objects.
    fn finish_crd(&mut self, id: &GroupResource) {
        let crds = GroupResource::new("apiextensions.k8s.io", "customresourcedefinitions");
        let key = Key { namespace: String::new(), name: id.to_string() };
        if let Some(crd) = self.get(&crds, &key)
            && finalizers(&crd.value).contains(&CRD_CLEANUP)
            && self.keys(id).is_empty()
        {
            self.drop_finalizer(&crds, &crd.value, CRD_CLEANUP);
        }
    }

    pub(super) fn drop_finalizer(&mut self, id: &GroupResource, object: &Value, finalizer: &str) {
        let mut next = object.clone();
        if let Some(list) = next["metadata"]["finalizers"].as_array_mut() {
            list.retain(|entry| entry != finalizer);
        }
        if self.is_finished(id, &next) {
            self.remove(id, next);
        } else {
            self.put(id, next);
        }
    }
}

/// The collection that a CRD defines.
fn defined(crd: &Value) -> GroupResource {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    GroupResource { group: text(&crd["spec"]["group"]), plural: text(&crd["spec"]["names"]["plural"]) }
}

/// The UID of an object.
pub fn owned_uid(object: &Value) -> Option<&str> {
    object["metadata"]["uid"].as_str()
}

/// What an object's removal waits for.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = object["metadata"]["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).collect()
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    if !finalizers(object).contains(&finalizer) {
        match object["metadata"]["finalizers"].as_array_mut() {
            Some(list) => list.push(finalizer.into()),
            None => object["metadata"]["finalizers"] = vec![finalizer].into(),
        }
    }
}

/// How long a kubelet gets for a pod: none if no kubelet has it or its containers have ended.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let bound = pod["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if !bound || ended {
        return 0;
    }
    asked.or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30).max(0)
}
