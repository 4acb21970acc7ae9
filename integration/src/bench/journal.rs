//! What was written to the embedded API server, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::Value;

use crate::api::{ApiServer, Change, EventType, Verb};

/// One committed write.
#[derive(Clone)]
pub struct Entry {
    /// When it was seen, which is at once.
    pub at: Instant,
    /// What it did.
    pub change: Arc<Change>,
}

impl Entry {
    /// The kind of the object.
    pub fn kind(&self) -> &str {
        self.change.kind()
    }

    /// The name of the object.
    pub fn name(&self) -> &str {
        self.change.object()["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The fields of `spec` and `status` that it changed, as `spec.domain`.
    pub fn changed(&self) -> BTreeSet<String> {
        let (before, after) = (self.change.previous(), self.change.object());
        let mut changed = BTreeSet::new();
        for part in ["spec", "status"] {
            let fields = |object: Option<&Value>| object.and_then(|object| object[part].as_object()).cloned();
            let (before, after) = (fields(before).unwrap_or_default(), fields(Some(after)).unwrap_or_default());
            let names = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name));
            changed.extend(names.map(|name| format!("{part}.{name}")));
        }
        changed
    }

    /// A field of the object after the write, by its JSON pointer; none if the object went.
    pub fn field(&self, pointer: &str) -> Option<&Value> {
        self.change.object().pointer(pointer).filter(|_| self.change.event != EventType::Deleted)
    }
}

/// Follows an API server from its beginning.
pub struct Journal {
    entries: Arc<Mutex<Vec<Entry>>>,
    requests: Arc<Mutex<u64>>,
}

impl Journal {
    /// Begins to follow. The thread that does so lives as long as the process.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(server: &ApiServer) -> anyhow::Result<Self> {
        let (entries, requests) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(0)));
        let (kept, mut history) = (entries.clone(), server.history());
        std::thread::Builder::new().name("journal".into()).spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
            runtime.block_on(async move {
                // A history that was forgotten unread is seen in the numbers: versions have no gaps.
                loop {
                    if let Ok(change) = history.next().await {
                        lock(&kept).push(Entry { at: Instant::now(), change });
                    }
                }
            });
        })?;
        let counted = requests.clone();
        server.fail_requests(move |request| {
            if !matches!(request.verb, Verb::Get | Verb::List | Verb::Watch) {
                *lock(&counted) += 1;
            }
            None
        });
        Ok(Self { entries, requests })
    }

    /// The place behind the last entry.
    pub fn now(&self) -> usize {
        lock(&self.entries).len()
    }

    /// The entries from a place on.
    pub fn since(&self, place: usize) -> Vec<Entry> {
        lock(&self.entries)[place..].to_vec()
    }

    /// Write requests so far, those that were refused or changed nothing among them.
    pub fn requests(&self) -> u64 {
        *lock(&self.requests)
    }

    /// When `wanted` was first so of each name, from a place on.
    pub fn first(&self, place: usize, kind: &str, wanted: impl Fn(&Entry) -> bool) -> BTreeMap<String, Instant> {
        let mut found = BTreeMap::new();
        for entry in self.since(place).iter().filter(|entry| entry.kind() == kind && wanted(entry)) {
            found.entry(entry.name().to_owned()).or_insert(entry.at);
        }
        found
    }

    /// How many writes there were of each kind since a place, in the order of the kinds' names. Leases are renewed for
    /// ever, and are nobody's object; they are counted as their own kind.
    pub fn by_kind(&self, place: usize) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for entry in self.since(place) {
            *counts.entry(entry.kind().to_owned()).or_default() += 1;
        }
        counts
    }

    /// How many writes of a kind since a place changed each of its fields. One write may change several.
    pub fn by_field(&self, place: usize, kind: &str) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for entry in self.since(place).iter().filter(|entry| entry.kind() == kind) {
            for field in entry.changed() {
                *counts.entry(field).or_default() += 1;
            }
        }
        counts
    }

    /// How many writes each object of a kind has had since a place, by name.
    pub fn by_name(&self, place: usize, kind: &str) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for entry in self.since(place).iter().filter(|entry| entry.kind() == kind) {
            *counts.entry(entry.name().to_owned()).or_default() += 1;
        }
        counts
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
