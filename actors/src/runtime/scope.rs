//! Kill scopes: a tree of actors that end together, with the first cause kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use heddle_core::fault::Fault;
use tokio::sync::watch;

use super::actor::{Actor, Spec};
use super::address::Addr;
use super::life::Exit;
use super::mailbox::{Gauge, Mailbox};
use super::metrics::Metrics;
use super::readiness::Readiness;
use super::supervise::{Orders, Supervised};
use super::watchdog::Hand;

/// A part of the process that ends as a whole. An actor that fails too often ends the scope it was started in; at the
/// root that is the process.
#[derive(Clone)]
pub struct Scope {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    shared: Shared,
    parent: Option<Scope>,
    children: Mutex<Vec<Weak<Inner>>>,
    end: watch::Sender<Option<End>>,
}

/// That a scope has ended, and why: nothing is said when it was stopped on purpose.
#[derive(Clone, Debug)]
pub(super) struct End {
    cause: Option<Fault>,
}

/// What all scopes of a runtime have in common.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) actors: Actors,
    pub(super) metrics: Metrics,
    pub(super) readiness: Readiness,
    pub(super) hand: Hand,
}

impl std::fmt::Debug for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Scope({})", self.inner.name)
    }
}

impl Scope {
    pub(super) fn root(shared: Shared) -> Self {
        Self::build("process".to_owned(), shared, None, None)
    }

    fn build(name: String, shared: Shared, parent: Option<Scope>, end: Option<End>) -> Self {
        let end = watch::Sender::new(end);
        Self { inner: Arc::new(Inner { name, shared, parent, children: Mutex::default(), end }) }
    }

    /// Starts an actor and looks after it: whenever it fails, the factory builds it anew. Must be called on the
    /// thread of the actix System.
    ///
    /// # Panics
    /// Away from that thread.
    pub fn supervise<A: Actor>(
        &self,
        spec: Spec,
        factory: impl FnMut() -> Result<A, Fault> + 'static,
    ) -> Addr<A::Message> {
        let shared = &self.inner.shared;
        let mailbox = Arc::new(Mailbox::new(A::KIND, spec.mailbox, shared.metrics.actor(A::KIND)));
        let address = Addr::new(mailbox.clone());
        if self.is_stopped() {
            mailbox.close();
            return address;
        }
        let (orders, received) = watch::channel(None);
        let id = shared.actors.add(orders, mailbox.clone());
        let orders = Orders { process: received, scope: self.clone(), end: self.inner.end.subscribe() };
        tokio::task::spawn_local(Supervised::new(id, spec, mailbox, orders, shared.clone()).run(factory));
        address
    }

    /// A scope below this one, which ends with it at the latest.
    pub fn child(&self, name: &str) -> Scope {
        let name = format!("{}/{name}", self.inner.name);
        let mut children = lock(&self.inner.children);
        // Under the lock, so that a stop either sees this child or is seen by it.
        let end = self.inner.end.borrow().clone();
        let child = Self::build(name, self.inner.shared.clone(), Some(self.clone()), end);
        if children.len() == children.capacity() {
            // Before it grows: those whose last handle and actor are gone make room.
            children.retain(|child| child.strong_count() > 0);
        }
        children.push(Arc::downgrade(&child.inner));
        child
    }

    /// Ends every actor of this scope and of all below it, at once: without [`Actor::stopping`], and for good.
    pub fn stop(&self) {
        self.end(&End { cause: None });
    }

    /// Ends the scope because of a fault.
    pub(super) fn kill(&self, cause: Fault) {
        tracing::error!(scope = self.inner.name, reason = cause.reason, "scope killed: {cause}");
        self.end(&End { cause: Some(cause) });
    }

    fn end(&self, end: &End) {
        let children = {
            let children = lock(&self.inner.children);
            self.inner.end.send_if_modified(|current| {
                let first = current.is_none();
                if first {
                    *current = Some(end.clone());
                }
                first
            });
            children.clone()
        };
        for child in children.iter().filter_map(Weak::upgrade) {
            Scope { inner: child }.end(end);
        }
    }

    /// Whether it has ended.
    pub fn is_stopped(&self) -> bool {
        self.inner.end.borrow().is_some()
    }

    /// The fault that ended it, if one did.
    pub fn cause(&self) -> Option<Fault> {
        self.inner.end.borrow().as_ref().and_then(|end| end.cause.clone())
    }

    /// Waits for its end.
    pub async fn ended(&self) -> Option<Fault> {
        let mut end = self.inner.end.subscribe();
        // The sender is in `self`, so that there is always an answer.
        let _ = end.wait_for(Option::is_some).await;
        self.cause()
    }

    /// Ends the whole process.
    pub(super) fn kill_root(&self, cause: Fault) {
        let mut scope = self;
        while let Some(parent) = &scope.inner.parent {
            scope = parent;
        }
        scope.kill(cause);
    }
}

impl Orders {
    /// Waits until the actor is to end.
    pub(super) async fn end(&mut self) -> Exit {
        tokio::select! {
            biased;
            _ = self.end.wait_for(Option::is_some) => Exit::Killed,
            finish = self.process.wait_for(Option::is_some) => match finish {
                Ok(_) => Exit::Finished,
                Err(_) => Exit::Killed,
            },
        }
    }
}

/// The end of a scope, as its actors wait for it.
pub(super) type EndReceiver = watch::Receiver<Option<End>>;

/// The actors of a process, in order of their start.
#[derive(Clone, Default)]
pub(super) struct Actors {
    running: Arc<Mutex<BTreeMap<u64, Running>>>,
}

struct Running {
    /// Tells it to finish; closed when it has ended.
    orders: watch::Sender<Option<()>>,
    gauge: Arc<dyn Gauge>,
}

impl std::fmt::Debug for Actors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Actors({})", lock(&self.running).len())
    }
}

impl Actors {
    fn add(&self, orders: watch::Sender<Option<()>>, gauge: Arc<dyn Gauge>) -> u64 {
        let mut running = lock(&self.running);
        let id = running.last_key_value().map_or(0, |(last, _)| last + 1);
        running.insert(id, Running { orders, gauge });
        id
    }

    pub(super) fn remove(&self, id: u64) {
        let removed = lock(&self.running).remove(&id);
        drop(removed);
    }

    pub(super) fn measure(&self, mut see: impl FnMut(&'static str, usize, Duration)) {
        for running in lock(&self.running).values() {
            let (depth, age) = running.gauge.measure();
            see(running.gauge.actor(), depth, age);
        }
    }

    /// Finishes all actors, the youngest first, each after the one before has ended.
    pub(super) async fn finish(&self) {
        loop {
            let youngest = {
                let running = lock(&self.running);
                running.last_key_value().map(|(_, youngest)| youngest.orders.clone())
            };
            let Some(youngest) = youngest else { return };
            youngest.send_replace(Some(()));
            youngest.closed().await;
            // Its supervisor takes it off the list before it lets go of the receiver.
        }
    }

    /// Waits until all are gone.
    pub(super) async fn gone(&self) {
        loop {
            let youngest = {
                let running = lock(&self.running);
                running.last_key_value().map(|(_, youngest)| youngest.orders.clone())
            };
            let Some(youngest) = youngest else { return };
            youngest.closed().await;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
