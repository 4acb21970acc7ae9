//! One kind of object as the API shows it, kept up to date by a watch.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt, pin_mut};
use kube::api::Api;
use kube::runtime::reflector::{self, Store, store::Writer};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Wakes one component. Many events may become one wake.
pub type Wake = Arc<Notify>;

/// A component's own view of a kind. Each clone remembers the writes of its owner, so that the owner can wait until
/// it sees them: deciding on a view older than one's own writes would do everything twice.
#[derive(Clone)]
pub struct Watched<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Store<K>,
    seen: Arc<Seen>,
    written: Option<Written>,
}

#[derive(Default)]
struct Seen {
    /// Highest resource version among the events.
    version: AtomicU64,
    events: AtomicU64,
    lists_started: AtomicU64,
    lists_done: AtomicU64,
}

#[derive(Clone, Copy)]
struct Written {
    version: u64,
    /// Lists that had begun by then: a later one shows the write whatever became of it.
    lists: u64,
}

impl<K> Watched<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Begins to watch `api` in a task of `tasks`; every event wakes `wakes`.
    pub fn start(api: Api<K>, wakes: Vec<Wake>, tasks: &mut JoinSet<anyhow::Error>) -> Self {
        let (store, writer) = reflector::store();
        let seen = Arc::new(Seen::default());
        tasks.spawn(follow(api, writer, Arc::clone(&seen), wakes));
        Self { store, seen, written: None }
    }

    /// All objects, by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        let mut objects = self.store.state();
        objects.sort_by(|a, b| (&a.meta().namespace, &a.meta().name).cmp(&(&b.meta().namespace, &b.meta().name)));
        objects
    }

    /// Remembers what the API answered to a write.
    pub fn wrote(&mut self, object: &K) {
        let Some(version) = version(object) else { return };
        let lists = self.seen.lists_started.load(Ordering::Acquire);
        let version = self.written.map_or(version, |written| written.version.max(version));
        self.written = Some(Written { version, lists });
    }

    /// Has the kind been listed, and are the owner's writes in view?
    pub fn caught_up(&self) -> bool {
        let lists = self.seen.lists_done.load(Ordering::Acquire);
        lists > 0
            && self.written.is_none_or(|written| {
                lists > written.lists || self.seen.version.load(Ordering::Acquire) >= written.version
            })
    }

    /// Events so far: equal counts mean an equal view.
    pub fn events(&self) -> u64 {
        self.seen.events.load(Ordering::Acquire)
    }
}

/// Resource versions are ordered numbers, which Kubernetes promises since 1.35 and has always kept.
fn version<K: Resource>(object: &K) -> Option<u64> {
    object.meta().resource_version.as_ref()?.parse().ok()
}

async fn follow<K>(api: Api<K>, mut writer: Writer<K>, seen: Arc<Seen>, wakes: Vec<Wake>) -> anyhow::Error
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let kind = K::kind(&());
    let events = watch(api, watcher::Config::default()).default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::debug!(%kind, %error, "the watch broke, it is taken up again");
                continue;
            }
        };
        writer.apply_watcher_event(&event);
        match &event {
            Event::Apply(object) | Event::Delete(object) | Event::InitApply(object) => {
                tracing::trace!(%kind, name = %object.name_any(), "seen");
                seen.version.fetch_max(version(object).unwrap_or(0), Ordering::AcqRel);
            }
            Event::Init => {
                seen.lists_started.fetch_add(1, Ordering::AcqRel);
            }
            Event::InitDone => {
                seen.lists_done.store(seen.lists_started.load(Ordering::Acquire), Ordering::Release);
            }
        }
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            seen.events.fetch_add(1, Ordering::AcqRel);
            wakes.iter().for_each(|wake| wake.notify_one());
        }
    }
    anyhow::anyhow!("the watch of {kind} ended")
}
