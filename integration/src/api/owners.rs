//! What becomes of objects whose owners go: the garbage collector, at work within the write that makes garbage.

use serde_json::Value;

use super::delete::{Deletion, FOREGROUND, finalizers, owned_uid};
use super::resource::GroupResource;
use super::store::{Key, Store, owners};

impl Store {
    /// Follows the removal of an object: to what it owned, and to owners that waited for it.
    pub(super) fn after_owner(&mut self, object: &Value) {
        if let Some(uid) = owned_uid(object) {
            for (id, key) in self.dependents(uid) {
                self.lose_owner(&id, &key, uid);
            }
        }
        for uid in owners(object).map(str::to_owned).collect::<Vec<_>>() {
            self.unblock(&uid);
        }
    }

    /// Deletes an object because its owners are gone.
    pub fn collect(&mut self, id: &GroupResource, key: &Key) {
        if let Err(status) = self.delete(id, key, &Deletion::default()) {
            tracing::debug!(resource = %id, name = key.name, why = status.message, "not collected");
        }
    }

    /// One owner is gone: with the last one the object goes, otherwise only the reference does.
    fn lose_owner(&mut self, id: &GroupResource, key: &Key, uid: &str) {
        let Some(object) = self.get(id, key) else { return };
        if owners(&object.value).any(|owner| self.by_uid(owner).is_some()) {
            let mut next = object.value.clone();
            drop_owner(&mut next, uid);
            self.put(id, next);
        } else {
            self.collect(id, key);
        }
    }

    /// Takes the references to an owner out of all its dependents.
    pub(super) fn release(&mut self, owner: &Value) {
        let Some(uid) = owned_uid(owner) else { return };
        for (id, key) in self.dependents(uid) {
            if let Some(object) = self.get(&id, &key) {
                let mut next = object.value.clone();
                drop_owner(&mut next, uid);
                self.put(&id, next);
            }
        }
    }

    /// Lets an owner go that waited for its dependents, if none is left that it must wait for.
    pub(super) fn unblock(&mut self, uid: &str) {
        let Some((id, key)) = self.by_uid(uid).cloned() else { return };
        let Some(owner) = self.get(&id, &key) else { return };
        if !finalizers(&owner.value).contains(&FOREGROUND) {
            return;
        }
        let blocks = |object: &Value| {
            let references = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            references.iter().any(|r| r["uid"] == uid && r["blockOwnerDeletion"] == true)
        };
        let blocked = self.dependents(uid).iter().any(|(id, key)| self.get(id, key).is_some_and(|o| blocks(&o.value)));
        if !blocked {
            self.drop_finalizer(&id, &owner.value, FOREGROUND);
        }
    }
}

fn drop_owner(object: &mut Value, uid: &str) {
    if let Some(list) = object["metadata"]["ownerReferences"].as_array_mut() {
        list.retain(|reference| reference["uid"] != uid);
        if list.is_empty() {
            object["metadata"].as_object_mut().map(|metadata| metadata.remove("ownerReferences"));
        }
    }
}
