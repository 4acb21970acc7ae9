//! A kubelet double that calls plugins as the real one does, and its containers.

pub mod cdi;
mod container;
mod counters;
mod nursery;
mod options;
mod runtime;
mod workload;

pub use container::{Container, DeviceNode};
pub use counters::Counts;
pub use options::{KubeletOptions, Limits};
pub use rustix::io::Errno;
pub use workload::RUN_SECONDS;

use std::sync::Arc;

use counters::Counters;
use runtime::Runtime;

/// The kubelet of one node. Dropping the last handle ends it; the containers are forgotten then.
#[derive(Clone)]
pub struct Kubelet {
    machine: Arc<Machine>,
}

struct Machine {
    #[allow(dead_code)]
    options: KubeletOptions,
    runtime: Runtime,
    counters: Counters,
}

impl Kubelet {
    /// Starts a kubelet on a machine that has just booted.
    pub fn start(options: KubeletOptions) -> Self {
        Self { machine: Arc::new(Machine { options, runtime: Runtime::default(), counters: Counters::default() }) }
    }

    /// Ends the kubelet's process and starts it again: what it had in memory is gone, the containers run on.
    pub async fn restart(&self) {}

    /// Ends the kubelet's process; the containers run on.
    pub async fn stop(&self) {}

    /// The machine goes down and comes up again.
    pub async fn reboot(&self) {
        self.machine.runtime.power_off();
    }

    /// The containers that run.
    pub fn containers(&self) -> Vec<Container> {
        self.machine.runtime.running()
    }

    /// Ends one container from inside, as a crash does. False if it does not run.
    pub fn crash(&self, namespace: &str, pod: &str, container: &str, code: i32) -> bool {
        self.machine.runtime.crash(namespace, pod, container, code)
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.machine.counters.get()
    }
}
