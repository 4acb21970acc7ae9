//! Who is told of which change.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use axum::body::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use super::resource::GroupResource;
use super::selector::{Filter, field_text};

/// An object as it was after one write. Shared by the store, the history and every watcher.
#[derive(Debug)]
pub struct Object {
    /// The object, in its storage version.
    pub value: Value,
    encoded: OnceLock<Bytes>,
}

impl Object {
    /// Wraps a finished object.
    pub fn new(value: Value) -> Self {
        Self { value, encoded: OnceLock::new() }
    }

    /// Its JSON, made once.
    pub fn bytes(&self) -> Bytes {
        self.encoded.get_or_init(|| self.value.to_string().into()).clone()
    }
}

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EventType {
    /// It came.
    Added,
    /// It changed.
    Modified,
    /// It went.
    Deleted,
}

impl EventType {
    /// As watch streams spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One committed write.
#[derive(Debug)]
pub struct Change {
    /// Position in the order of all writes.
    pub resource_version: u64,
    /// What happened.
    pub event: EventType,
    /// The collection.
    pub resource: GroupResource,
    pub(super) object: Arc<Object>,
    pub(super) previous: Option<Arc<Object>>,
    lines: [OnceLock<Bytes>; 3],
}

impl Change {
    pub(super) fn new(
        resource_version: u64,
        event: EventType,
        resource: GroupResource,
        object: Arc<Object>,
        previous: Option<Arc<Object>>,
    ) -> Self {
        Self { resource_version, event, resource, object, previous, lines: Default::default() }
    }

    /// The object after the write; after a deletion as it was last.
    pub fn object(&self) -> &Value {
        &self.object.value
    }

    /// The object before the write.
    pub fn previous(&self) -> Option<&Value> {
        self.previous.as_deref().map(|object| &object.value)
    }

    /// Bytes of the object after the write, in JSON.
    pub fn size(&self) -> usize {
        self.object.bytes().len()
    }

    /// The object's kind.
    pub fn kind(&self) -> &str {
        self.object.value["kind"].as_str().unwrap_or_default()
    }

    /// What a watcher with a filter sees: an object that begins to match is added, one that ends to is deleted.
    pub(super) fn as_seen(&self, filter: &Filter) -> Option<EventType> {
        let now = self.event != EventType::Deleted && filter.matches(&self.object.value);
        let before = self.previous.as_deref().is_some_and(|object| filter.matches(&object.value));
        match (before, now) {
            (false, true) => Some(EventType::Added),
            (true, true) => Some(EventType::Modified),
            (true, false) => Some(EventType::Deleted),
            (false, false) => None,
        }
    }

    /// The object that goes with an event as seen.
    pub(super) fn seen_object(&self, event: EventType) -> Value {
        match &self.previous {
            // It goes on existing, but no longer matches: the watcher gets what it knows, with the new version.
            Some(previous) if event == EventType::Deleted && self.event != EventType::Deleted => {
                let mut value = previous.value.clone();
                value["metadata"]["resourceVersion"] = self.resource_version.to_string().into();
                value
            }
            _ => self.object.value.clone(),
        }
    }

    /// The line of a watch stream, made once for all watchers.
    pub(super) fn line(&self, event: EventType) -> Bytes {
        let make = || {
            if event == EventType::Deleted && self.event != EventType::Deleted {
                return line(event.as_str(), self.seen_object(event).to_string().as_bytes());
            }
            line(event.as_str(), &self.object.bytes())
        };
        self.lines[event as usize].get_or_init(make).clone()
    }
}

/// One event as a line of JSON.
pub fn line(event: &str, object: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(object.len() + event.len() + 24);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(event.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// What a watcher is sent.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// A change, as this watcher sees it.
    Event(Arc<Change>, EventType),
    /// Nothing happened for it up to here.
    Bookmark(u64),
}

/// Events that may wait for one slow reader before its stream is closed. It then watches anew from where it was, as
/// it would after any broken connection. A relist of 72 nodes with 16 pods each fits several times.
const BACKLOG: usize = 8192;

#[derive(Debug)]
struct Watcher {
    filter: Filter,
    bookmarks: bool,
    sender: mpsc::Sender<Delivery>,
}

impl Watcher {
    /// False once nobody can be told any more.
    fn offer(&self, change: &Arc<Change>) -> bool {
        match change.as_seen(&self.filter) {
            Some(event) => self.sender.try_send(Delivery::Event(change.clone(), event)).is_ok(),
            None => !self.sender.is_closed(),
        }
    }
}

/// The watchers of one collection. Those that want one value of one field are found by that value, so that a
/// change costs what it concerns and not what is connected.
#[derive(Debug, Default)]
pub struct Watchers {
    all: Vec<Watcher>,
    by_field: HashMap<String, HashMap<String, Vec<Watcher>>>,
}

impl Watchers {
    /// Tells of all matching changes from now on.
    pub fn add(&mut self, filter: Filter, bookmarks: bool) -> mpsc::Receiver<Delivery> {
        let (sender, receiver) = mpsc::channel(BACKLOG);
        let list = match filter.index() {
            Some((field, value)) => {
                self.by_field.entry(field.to_owned()).or_default().entry(value.to_owned()).or_default()
            }
            None => &mut self.all,
        };
        list.push(Watcher { filter, bookmarks, sender });
        receiver
    }

    /// Tells those concerned.
    pub fn notify(&mut self, change: &Arc<Change>) {
        self.all.retain(|watcher| watcher.offer(change));
        for (field, by_value) in &mut self.by_field {
            let now = field_text(&change.object.value, field);
            let before = change.previous.as_deref().map(|object| field_text(&object.value, field));
            for value in before.into_iter().filter(|before| *before != now).chain([now.clone()]) {
                if let Some(list) = by_value.get_mut(&value) {
                    list.retain(|watcher| watcher.offer(change));
                    if list.is_empty() {
                        by_value.remove(&value);
                    }
                }
            }
        }
    }

    /// Tells those who asked for it how far the history has come, and forgets those who left.
    pub fn bookmark(&mut self, version: u64) {
        let keep = |watcher: &Watcher| match watcher.bookmarks {
            true => watcher.sender.try_send(Delivery::Bookmark(version)).is_ok(),
            false => !watcher.sender.is_closed(),
        };
        self.all.retain(keep);
        for by_value in self.by_field.values_mut() {
            by_value.retain(|_, list| {
                list.retain(keep);
                !list.is_empty()
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change(version: u64) -> Arc<Change> {
        let object = Arc::new(Object::new(json!({"kind": "ConfigMap", "metadata": {"name": "a"}})));
        let id = GroupResource::new("", "configmaps");
        Arc::new(Change::new(version, EventType::Modified, id, object.clone(), Some(object)))
    }

    #[test]
    fn a_slow_reader_gets_what_waited_for_it_and_then_the_end() {
        let mut watchers = Watchers::default();
        let mut slow = watchers.add(Filter::default(), false);
        let (mut version, sent) = (0, BACKLOG as u64 + 1);
        (1..=sent).for_each(|version| watchers.notify(&change(version)));
        while let Some(Delivery::Event(change, _)) = slow.blocking_recv() {
            version += 1;
            assert_eq!(change.resource_version, version);
        }
        assert_eq!(version, sent - 1, "a new watch from here misses nothing");
    }

    #[test]
    fn a_change_costs_only_those_whom_it_concerns() {
        let mut watchers = Watchers::default();
        let mut named = |name: &str| watchers.add(Filter::default().named(name), false);
        let (mut a, mut b) = (named("a"), named("b"));
        watchers.notify(&change(1));
        assert!(a.try_recv().is_ok() && b.try_recv().is_err());
        drop(a);
        watchers.notify(&change(2));
        assert_eq!(watchers.by_field["metadata.name"].len(), 1, "who left is forgotten");
    }

    #[test]
    fn lines_are_made_once_and_shared() {
        let change = change(1);
        assert_eq!(change.line(EventType::Modified).as_ptr(), change.line(EventType::Modified).as_ptr());
        assert!(change.line(EventType::Modified).starts_with(b"{\"type\":\"MODIFIED\",\"object\":{"));
    }
}
