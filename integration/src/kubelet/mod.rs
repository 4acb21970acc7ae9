//! A kubelet double that calls plugins as the real one does, and its containers.
//!
//! One [`Kubelet`] is one node: it keeps the Node object, finds plugins in the registry directory and dials them with
//! the real kubelet's `:authority`, prepares and unprepares the claims of the pods bound to the node, and runs
//! containers that hold exactly the device nodes that their CDI ids resolve to in the CDI files on disk. Texts, limits
//! and the order of things are the real kubelet's (facts §5). What it lacks on purpose: images, networks, probes,
//! volumes, and the processes themselves.

mod backoff;
pub mod cdi;
mod claims;
mod container;
mod counters;
mod create;
pub(crate) mod dial;
mod events;
mod folders;
mod health;
mod life;
mod link;
mod node_object;
mod nursery;
mod options;
mod plan;
mod plugin;
mod plugins;
mod pod_claims;
mod pod_worker;
mod pods;
mod prepare;
mod registration;
mod registry;
mod runtime;
mod slices;
mod status;
mod workload;

pub use container::{Container, DeviceNode};
pub use counters::Counts;
pub use options::{KubeletOptions, Limits};
pub use plugin::Plugin;
pub use rustix::io::Errno;
pub use workload::RUN_SECONDS;

use std::{
    net::Ipv4Addr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering},
    },
};

use tokio::task::JoinHandle;

use claims::Claims;
use counters::Counters;
use life::Life;
use runtime::Runtime;

/// The kubelet of one node. Dropping the last handle ends it; the containers are forgotten then.
#[derive(Clone)]
pub struct Kubelet(Arc<Inner>);

struct Inner {
    machine: Arc<Machine>,
    life: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

/// What outlives the kubelet's process.
struct Machine {
    options: KubeletOptions,
    runtime: Runtime,
    /// The kubelet's checkpoint of claims.
    claims: Mutex<Claims>,
    counters: Counters,
    pod_ips: AtomicU8,
}

impl Kubelet {
    /// Starts a kubelet on a machine that has just booted. Must be called within a tokio runtime.
    pub fn start(options: KubeletOptions) -> Self {
        let machine = Arc::new(Machine {
            options,
            runtime: Runtime::default(),
            claims: Mutex::default(),
            counters: Counters::default(),
            pod_ips: AtomicU8::new(0),
        });
        let life = Life::begin(machine.clone());
        Self(Arc::new(Inner { machine, life: tokio::sync::Mutex::new(Some(life)) }))
    }

    /// Ends the kubelet's process; the containers run on.
    pub async fn stop(&self) {
        let mut life = self.0.life.lock().await;
        end(&mut life).await;
    }

    /// Ends the kubelet's process and starts it again: which claims are prepared and which plugins are registered is
    /// forgotten, the containers run on.
    pub async fn restart(&self) {
        let mut life = self.0.life.lock().await;
        end(&mut life).await;
        *life = Some(Life::begin(self.0.machine.clone()));
    }

    /// The machine goes down and comes up again: all containers end, and those of surviving pods are started anew
    /// after another Prepare. A new boot id is for the caller to write, before.
    pub async fn reboot(&self) {
        let mut life = self.0.life.lock().await;
        end(&mut life).await;
        self.0.machine.runtime.power_off();
        *life = Some(Life::begin(self.0.machine.clone()));
    }

    /// The containers that run.
    pub fn containers(&self) -> Vec<Container> {
        self.0.machine.runtime.running()
    }

    /// Ends one container from inside, as a crash does. False if it does not run.
    pub fn crash(&self, namespace: &str, pod: &str, container: &str, code: i32) -> bool {
        self.0.machine.runtime.crash(namespace, pod, container, code)
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        self.0.machine.counters.get()
    }

    /// Its node's name.
    pub fn node_name(&self) -> &str {
        &self.0.machine.options.node_name
    }
}

/// Waits until nothing of the life runs any more.
async fn end(life: &mut Option<JoinHandle<()>>) {
    if let Some(life) = life.take() {
        life.abort();
        let _ = life.await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(life) = self.life.get_mut().take() {
            life.abort();
        }
    }
}

impl Machine {
    /// The next address for a pod: below 10/8, with the last two octets of the node's address in the middle.
    fn next_pod_ip(&self) -> String {
        let node = self.options.node_address.parse().unwrap_or(Ipv4Addr::new(10, 244, 244, 0)).octets();
        let host = self.pod_ips.fetch_add(1, Ordering::Relaxed) % 250 + 2;
        Ipv4Addr::new(10, node[2], node[3], host).to_string()
    }
}
