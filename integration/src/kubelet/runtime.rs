//! The node's container runtime: sandboxes and containers. They outlive the kubelet, and die with the machine.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::{sync::watch, time::Instant};

use super::{container::Container, workload::Run};

/// The node's container runtime.
pub struct Runtime {
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    changes: watch::Sender<u64>,
}

/// A pod's sandbox and its containers.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// The pod as it was when the sandbox was made.
    pub pod: Arc<Pod>,
    /// Its address.
    pub ip: String,
    /// False after the machine went down: the next life needs a new one.
    pub ready: bool,
    /// Its containers by name, init containers among them.
    pub containers: BTreeMap<String, Record>,
}

/// What is known of one container.
#[derive(Clone, Debug)]
pub struct Record {
    /// Starts after the first one.
    pub restarts: u32,
    /// What it does now.
    pub state: State,
    /// How it ended before, if it did.
    pub last: Option<Exit>,
}

/// What a container does.
#[derive(Clone, Debug)]
pub enum State {
    /// It could not be created, or waits to be created again.
    Waiting {
        /// One word.
        reason: String,
        /// For people.
        message: String,
        /// When to try again.
        retry: Instant,
    },
    /// It runs.
    Running {
        /// What it is.
        container: Container,
        /// Its id in the runtime.
        id: String,
        /// Since when.
        since: Timestamp,
        /// When it will end by itself, and with which code.
        ends: Option<(Instant, i32)>,
    },
    /// It has ended.
    Exited(Exit),
}

/// How a container ended.
#[derive(Clone, Debug)]
pub struct Exit {
    /// Its id in the runtime.
    pub id: String,
    /// Exit code.
    pub code: i32,
    /// When it had begun.
    pub started: Timestamp,
    /// When it ended.
    pub finished: Timestamp,
    /// The same for measuring.
    pub at: Instant,
}

impl Exit {
    /// One word for the status.
    pub fn reason(&self) -> &'static str {
        match self.code {
            0 => "Completed",
            255 => "Unknown",
            _ => "Error",
        }
    }
}

impl Record {
    /// Ends it with `code`, if it runs.
    fn end(&mut self, code: i32, at: Instant) {
        if let State::Running { id, since, .. } = &self.state {
            let exit = Exit { id: id.clone(), code, started: *since, finished: Timestamp::now(), at };
            self.state = State::Exited(exit);
        }
    }

    /// How it ended last.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited(exit) => Some(exit),
            _ => self.last.as_ref(),
        }
    }
}

impl Default for Runtime {
    fn default() -> Self {
        Self { sandboxes: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl Runtime {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Sandbox>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes when a container ended otherwise than by its own plan.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    /// The pod's sandbox as it is now.
    pub fn sandbox(&self, pod_uid: &str) -> Option<Sandbox> {
        let mut sandboxes = self.lock();
        let sandbox = sandboxes.get_mut(pod_uid)?;
        let now = Instant::now();
        for record in sandbox.containers.values_mut() {
            if let State::Running { ends: Some((end, code)), .. } = record.state
                && end <= now
            {
                record.end(code, end);
            }
        }
        Some(sandbox.clone())
    }

    /// The pods that have a sandbox.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.lock().values().map(|sandbox| sandbox.pod.clone()).collect()
    }

    /// Makes a sandbox for the pod. The containers of a former one are to be started once more.
    pub fn create_sandbox(&self, pod_uid: &str, pod: Arc<Pod>, ip: String) {
        let mut sandboxes = self.lock();
        let mut containers = sandboxes.remove(pod_uid).map(|old| old.containers).unwrap_or_default();
        for record in containers.values_mut() {
            if let State::Exited(exit) = &record.state {
                record.last = Some(exit.clone());
                record.restarts += 1;
            }
            record.state =
                State::Waiting { reason: "ContainerCreating".into(), message: String::new(), retry: Instant::now() };
        }
        sandboxes.insert(pod_uid.to_owned(), Sandbox { pod, ip, ready: true, containers });
    }

    /// Starts a container, or starts it again.
    pub fn start(&self, pod_uid: &str, container: Container, run: Run) {
        let mut sandboxes = self.lock();
        let Some(sandbox) = sandboxes.get_mut(pod_uid) else { return };
        let (restarts, last) = match sandbox.containers.remove(&container.name) {
            Some(Record { restarts, state: State::Exited(exit), .. }) => (restarts + 1, Some(exit)),
            Some(record) => (record.restarts, record.last),
            None => (0, None),
        };
        let ends = match run {
            Run::Forever => None,
            Run::Ends { after, code } => Some((Instant::now() + after, code)),
        };
        let name = container.name.clone();
        let id = format!("containerd://{:032x}{:032x}", fastrand::u128(..), fastrand::u128(..));
        let state = State::Running { container, id, since: Timestamp::now(), ends };
        sandbox.containers.insert(name, Record { restarts, state, last });
    }

    /// Notes that a container could not be created and when to try again. Its count of restarts stays.
    pub fn refuse(&self, pod_uid: &str, name: &str, reason: &str, message: String, retry: Instant) {
        let mut sandboxes = self.lock();
        let Some(sandbox) = sandboxes.get_mut(pod_uid) else { return };
        let state = State::Waiting { reason: reason.into(), message, retry };
        let record = match sandbox.containers.remove(name) {
            Some(Record { restarts, state: State::Exited(exit), .. }) => {
                Record { restarts: restarts + 1, state, last: Some(exit) }
            }
            Some(record) => Record { state, ..record },
            None => Record { restarts: 0, state, last: None },
        };
        sandbox.containers.insert(name.to_owned(), record);
    }

    /// Ends all containers of the pod that run; the sandbox stays for the status.
    pub fn stop_pod(&self, pod_uid: &str) {
        if let Some(sandbox) = self.lock().get_mut(pod_uid) {
            for record in sandbox.containers.values_mut() {
                record.end(137, Instant::now());
            }
        }
        self.changed();
    }

    /// Removes the pod's sandbox.
    pub fn remove(&self, pod_uid: &str) {
        self.lock().remove(pod_uid);
    }

    /// Ends one container from inside, as a crash does. False if it does not run.
    pub fn crash(&self, namespace: &str, pod: &str, name: &str, code: i32) -> bool {
        let mut crashed = false;
        for sandbox in self.lock().values_mut() {
            for record in sandbox.containers.values_mut() {
                if let State::Running { container, .. } = &record.state
                    && (container.namespace == namespace && container.pod == pod && container.name == name)
                {
                    record.end(code, Instant::now());
                    crashed = true;
                }
            }
        }
        self.changed();
        crashed
    }

    /// The machine goes down: everything ends, and no sandbox can be used again.
    pub fn power_off(&self) {
        for sandbox in self.lock().values_mut() {
            sandbox.ready = false;
            for record in sandbox.containers.values_mut() {
                record.end(255, Instant::now());
            }
        }
    }

    /// The containers that run.
    pub fn running(&self) -> Vec<Container> {
        let now = Instant::now();
        self.lock()
            .values()
            .flat_map(|sandbox| sandbox.containers.values())
            .filter_map(|record| match &record.state {
                State::Running { container, ends, .. } if ends.is_none_or(|(end, _)| end > now) => {
                    Some(container.clone())
                }
                _ => None,
            })
            .collect()
    }
}
