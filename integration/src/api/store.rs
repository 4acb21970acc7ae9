//! The objects, their order of writes, and what must be found without a search.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::Options;
use super::policy::Policies;
use super::resource::{Catalog, GroupResource};
use super::selector::Filter;
use super::status::{Outcome, expired};
use super::watch::{Change, Delivery, EventType, Object, Watchers};

/// Namespace and name; the namespace is empty for cluster-wide objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of an object's own metadata.
    pub fn of(object: &Value) -> Self {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Self { namespace: text("namespace"), name: text("name") }
    }
}

#[derive(Debug, Default)]
struct Collection {
    /// As they are shown.
    objects: BTreeMap<Key, Arc<Object>>,
    watchers: Watchers,
    /// As they are stored, those of which the served schema shows something else.
    stored: BTreeMap<Key, Value>,
    /// The version at which all of them began to be shown otherwise, without a write.
    reshaped: u64,
}

/// A page of a list.
pub struct Page {
    /// The objects.
    pub items: Vec<Arc<Object>>,
    /// Where the next page begins, and how many objects are left for it.
    pub rest: Option<(Key, usize)>,
    /// The version of the store.
    pub version: u64,
}

/// Everything behind the lock.
pub struct Store {
    pub(super) catalog: Catalog,
    collections: HashMap<GroupResource, Collection>,
    version: u64,
    history: VecDeque<Arc<Change>>,
    capacity: usize,
    newest: watch::Sender<u64>,
    uids: HashMap<String, (GroupResource, Key)>,
    dependents: HashMap<String, BTreeSet<(GroupResource, Key)>>,
    population: HashMap<String, usize>,
    /// What CRDs say of their versions.
    schemas: HashMap<GroupResource, Value>,
    pub(super) minor: u32,
    pub(super) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    random: fastrand::Rng,
    pub(super) policies: Policies,
}

impl Store {
    /// An empty store that serves the built-in kinds.
    pub fn new(options: Options) -> Self {
        Self {
            catalog: Catalog::builtin(),
            collections: HashMap::new(),
            // A client takes 0 for "any version", so the first write must not be it.
            version: 1,
            history: VecDeque::new(),
            capacity: options.history.max(1),
            newest: watch::Sender::new(1),
            uids: HashMap::new(),
            dependents: HashMap::new(),
            population: HashMap::new(),
            schemas: HashMap::new(),
            minor: options.minor,
            clock: Arc::from(options.clock),
            random: options.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed),
            policies: Policies::default(),
        }
    }

    /// The version of the last write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Now, as metadata spells it.
    pub fn now(&self) -> String {
        (self.clock)().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// So many seconds from now.
    pub fn later(&self, seconds: i64) -> String {
        let now = (self.clock)();
        let then = now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(now);
        then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    /// A UUID of version 4.
    pub fn new_uid(&mut self) -> String {
        uuid::Builder::from_random_bytes(self.random.u128(..).to_be_bytes()).into_uuid().to_string()
    }

    /// The end of a generated name, from the letters that Kubernetes uses: no vowels, so no words.
    pub fn new_suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.random.usize(..LETTERS.len())])).collect()
    }

    /// Reads one object.
    pub fn get(&self, id: &GroupResource, key: &Key) -> Option<Arc<Object>> {
        self.collections.get(id)?.objects.get(key).cloned()
    }

    /// Reads a page of those that `filter` means, from `start` on, all if `limit` is 0.
    pub fn list(&self, id: &GroupResource, filter: &Filter, start: Option<&Key>, limit: usize) -> Page {
        let mut page = Page { items: Vec::new(), rest: None, version: self.version };
        let Some(collection) = self.collections.get(id) else { return page };
        // Every agent lists its own object by name: that must not cost what all agents are.
        let clusterwide = collection.objects.keys().next().is_some_and(|key| key.namespace.is_empty());
        let namespace = filter.namespace.clone().or(clusterwide.then(String::new));
        if let (Some(name), Some(namespace)) = (filter.name(), namespace) {
            let key = Key { namespace, name: name.to_owned() };
            page.items.extend(collection.objects.get(&key).filter(|o| filter.matches(&o.value)).cloned());
            return page;
        }
        let first = Key { namespace: filter.namespace.clone().unwrap_or_default(), name: String::new() };
        let from = Bound::Included(start.unwrap_or(&first));
        let mut matching = collection
            .objects
            .range::<Key, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| filter.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace))
            .filter(|(_, object)| filter.matches(&object.value));
        while let Some((key, object)) = matching.next() {
            if limit > 0 && page.items.len() == limit {
                page.rest = Some((key.clone(), 1 + matching.count()));
                break;
            }
            page.items.push(object.clone());
        }
        page
    }

    /// Everything of a namespace, for its removal.
    pub fn contents(&self, namespace: &str) -> Vec<(GroupResource, Key)> {
        let first = Key { namespace: namespace.to_owned(), name: String::new() };
        let mut found = Vec::new();
        for (id, collection) in &self.collections {
            let keys = collection.objects.range(first.clone()..).map(|(key, _)| key);
            found.extend(keys.take_while(|key| key.namespace == namespace).map(|key| (id.clone(), key.clone())));
        }
        found.sort();
        found
    }

    /// All keys of a collection.
    pub fn keys(&self, id: &GroupResource) -> Vec<Key> {
        self.collections.get(id).map(|collection| collection.objects.keys().cloned().collect()).unwrap_or_default()
    }

    /// How many objects a namespace holds.
    pub fn population(&self, namespace: &str) -> usize {
        self.population.get(namespace).copied().unwrap_or_default()
    }

    /// Whether an object of this UID exists.
    pub fn by_uid(&self, uid: &str) -> Option<&(GroupResource, Key)> {
        self.uids.get(uid)
    }

    /// The objects that name `uid` as an owner.
    pub fn dependents(&self, uid: &str) -> Vec<(GroupResource, Key)> {
        self.dependents.get(uid).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Follows a collection: what happened since `version` (all that is there if `None`), and what will.
    pub fn watch(
        &mut self,
        id: &GroupResource,
        filter: Filter,
        version: Option<u64>,
        bookmarks: bool,
    ) -> Outcome<(Vec<Delivery>, mpsc::Receiver<Delivery>)> {
        let backlog = match version {
            // A new schema has a new watch cache, which knows nothing of before.
            Some(version) if self.collections.get(id).is_some_and(|known| version < known.reshaped) => {
                return Err(expired(version, self.collections[id].reshaped));
            }
            Some(version) => self
                .since(version)?
                .filter(|change| change.resource == *id)
                .filter_map(|change| Some(Delivery::Event(change.clone(), change.as_seen(&filter)?)))
                .collect(),
            None => {
                let page = self.list(id, &filter, None, 0);
                let added = |object: Arc<Object>| {
                    let change = Change::new(self.version, EventType::Added, id.clone(), object, None);
                    Delivery::Event(Arc::new(change), EventType::Added)
                };
                page.items.into_iter().map(added).collect()
            }
        };
        Ok((backlog, self.collections.entry(id.clone()).or_default().watchers.add(filter, bookmarks)))
    }

    /// The changes after `version`.
    pub fn since(&self, version: u64) -> Outcome<impl Iterator<Item = &Arc<Change>>> {
        let oldest = self.oldest();
        if version < oldest || version > self.version {
            return Err(expired(version, oldest));
        }
        Ok(self.history.iter().skip((version - oldest) as usize))
    }

    /// The version from which on every change is remembered.
    pub fn oldest(&self) -> u64 {
        self.version - self.history.len() as u64
    }

    /// Tells of every new version.
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Forgets the history: who watches from an earlier version must list again.
    pub fn compact(&mut self) {
        self.history.clear();
    }

    /// Ends every watch; their clients come back by themselves.
    pub fn disconnect(&mut self) {
        for collection in self.collections.values_mut() {
            collection.watchers = Watchers::default();
        }
    }

    /// A CRD says this of its versions from now on; whether that is new.
    pub fn learn_schemas(&mut self, id: &GroupResource, versions: &Value) -> bool {
        self.schemas.insert(id.clone(), versions.clone()).as_ref() != Some(versions)
    }

    /// Shows the objects of a collection by another schema. What is stored stays as it is, until an object is written.
    pub fn reshape(&mut self, id: &GroupResource, shape: impl Fn(&mut Value)) {
        let version = self.version;
        let Some(collection) = self.collections.get_mut(id) else { return };
        for (key, object) in &mut collection.objects {
            let stored = collection.stored.remove(key).unwrap_or_else(|| object.value.clone());
            let mut shown = stored.clone();
            shape(&mut shown);
            if shown != stored {
                collection.stored.insert(key.clone(), stored);
            }
            if shown != object.value {
                *object = Arc::new(Object::new(shown));
            }
        }
        collection.reshaped = version;
        collection.watchers = Watchers::default();
    }

    /// Makes a write durable and known: `next` replaces whatever is at its key.
    pub fn put(&mut self, id: &GroupResource, mut next: Value) -> Arc<Object> {
        let key = Key::of(&next);
        let version = self.version + 1;
        next["metadata"]["resourceVersion"] = version.to_string().into();
        let object = Arc::new(Object::new(next));
        let collection = self.collections.entry(id.clone()).or_default();
        let previous = collection.objects.insert(key.clone(), object.clone());
        collection.stored.remove(&key);
        match &previous {
            None => *self.population.entry(key.namespace.clone()).or_default() += 1,
            Some(previous) => self.forget_owners(&previous.value, id, &key),
        }
        if let Some(uid) = object.value["metadata"]["uid"].as_str() {
            self.uids.insert(uid.to_owned(), (id.clone(), key.clone()));
        }
        for uid in owners(&object.value) {
            self.dependents.entry(uid.to_owned()).or_default().insert((id.clone(), key.clone()));
        }
        let event = if previous.is_some() { EventType::Modified } else { EventType::Added };
        self.publish(Change::new(version, event, id.clone(), object.clone(), previous));
        object
    }

    /// Takes an object away; `last` is how it looked at the end.
    pub fn take(&mut self, id: &GroupResource, mut last: Value) -> Option<Arc<Object>> {
        let key = Key::of(&last);
        let collection = self.collections.get_mut(id)?;
        let previous = collection.objects.remove(&key)?;
        collection.stored.remove(&key);
        let version = self.version + 1;
        last["metadata"]["resourceVersion"] = version.to_string().into();
        self.forget_owners(&previous.value, id, &key);
        if let Some(uid) = previous.value["metadata"]["uid"].as_str() {
            self.uids.remove(uid);
        }
        if let Some(count) = self.population.get_mut(&key.namespace) {
            *count -= 1;
            if *count == 0 {
                self.population.remove(&key.namespace);
            }
        }
        let object = Arc::new(Object::new(last));
        self.publish(Change::new(version, EventType::Deleted, id.clone(), object.clone(), Some(previous)));
        Some(object)
    }

    fn forget_owners(&mut self, object: &Value, id: &GroupResource, key: &Key) {
        for uid in owners(object) {
            if let Some(set) = self.dependents.get_mut(uid) {
                set.remove(&(id.clone(), key.clone()));
                if set.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
    }

    fn publish(&mut self, change: Change) {
        self.version = change.resource_version;
        let change = Arc::new(change);
        if self.history.len() == self.capacity {
            self.history.pop_front();
        }
        self.history.push_back(change.clone());
        if let Some(collection) = self.collections.get_mut(&change.resource) {
            collection.watchers.notify(&change);
        }
        // Often enough that a watcher of a quiet collection never falls out of the history, and without a timer.
        if self.version.is_multiple_of((self.capacity as u64 / 4).max(1)) {
            for collection in self.collections.values_mut() {
                collection.watchers.bookmark(self.version);
            }
        }
        self.newest.send_replace(self.version);
    }
}

/// The UIDs of an object's owners.
pub fn owners(object: &Value) -> impl Iterator<Item = &str> {
    let references = object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    references.iter().filter_map(|reference| reference["uid"].as_str())
}
