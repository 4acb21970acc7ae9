use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::{LazyLock, Mutex, PoisonError};

use serde::Serialize;

/// An object of the API. There is one of each content in the process, so a state costs a pointer for each copy that
/// somebody has of an object, and two states are compared without looking into it.
///
/// What was met once is kept for the life of the process: a model meets few contents in many states.
pub struct Held<K: 'static>(&'static Entry<K>);

struct Entry<K> {
    object: K,
    hash: u64,
}

type Known = HashMap<(TypeId, Vec<u8>), &'static (dyn Any + Send + Sync)>;
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

impl<K: Serialize + Send + Sync + 'static> Held<K> {
    /// The one object of this content.
    pub fn new(object: K) -> Self {
        let bytes = serde_json::to_vec(&object).expect("objects of the API are written as JSON");
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let hash = hasher.finish();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = known.entry((TypeId::of::<K>(), bytes)).or_insert_with(|| {
            let entry: &'static Entry<K> = Box::leak(Box::new(Entry { object, hash }));
            entry
        });
        Self(entry.downcast_ref::<Entry<K>>().expect("the type is part of the key"))
    }
}

impl<K> Clone for Held<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Held<K> {}

impl<K> PartialEq for Held<K> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl<K> Eq for Held<K> {}

impl<K> Hash for Held<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl<K> PartialOrd for Held<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Held<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.hash.cmp(&other.0.hash)
    }
}

impl<K> Deref for Held<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.0.object
    }
}

impl<K: Serialize> fmt::Debug for Held<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0.object).unwrap_or_default())
    }
}
