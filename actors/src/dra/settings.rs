use std::path::PathBuf;

use heddle_core::inventory::Inventory;
use kube::Client;

use super::context::Driver;
use super::metrics::ClaimMetrics;
use super::{HealthBoard, events, sockets};
use crate::channel_allocator;
use crate::runtime::{Addr, Scope, Turn};

/// What a [`DraServer`] is told of its node.
#[derive(Clone, Debug)]
pub struct DraSettings {
    /// Name of the Node, and of the pools.
    pub node_name: String,
    /// UID of the agent's pod, which tells the sockets of two agents apart; may be empty.
    pub pod_uid: String,
    /// `/var/lib/kubelet/plugins`.
    pub plugins_dir: PathBuf,
    /// `/var/lib/kubelet/plugins_registry`.
    pub registry_dir: PathBuf,
    /// `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// `/etc/cdi`, where the container toolkit may have put its own file.
    pub cdi_static_dir: PathBuf,
    /// Where checkpoints are kept.
    pub state_dir: PathBuf,
    /// Whether whole GPUs are served too.
    pub gpus: bool,
    /// The node's `/proc`.
    pub proc_root: PathBuf,
    /// Where the kubelet's calls are timed.
    pub metrics: ClaimMetrics,
}

impl DraSettings {
    /// The drivers that are served.
    pub fn drivers(&self) -> Vec<Driver> {
        let mut drivers = vec![Driver::ComputeDomain];
        drivers.extend(self.gpus.then_some(Driver::Gpu));
        drivers
    }

    /// The service socket and the registration socket of a driver.
    pub(super) fn sockets(&self, driver: Driver) -> (PathBuf, PathBuf) {
        let (name, pod_uid) = (driver.name(), &self.pod_uid);
        let service = sockets::service_path(&self.plugins_dir.join(name), name, pod_uid);
        (service, sockets::registration_path(&self.registry_dir, name, pod_uid))
    }
}

/// What a [`DraServer`] is built from.
#[derive(Clone)]
pub struct DraDependencies {
    /// The node.
    pub settings: DraSettings,
    /// The API.
    pub client: Client,
    /// Who gives channels.
    pub allocator: Addr<channel_allocator::Message>,
    /// Who writes Events on claims.
    pub events: Addr<events::Message>,
    /// What the kubelet is told of the devices' health.
    pub health: HealthBoard,
    /// Below which the preparers run.
    pub scope: Scope,
    /// When this agent acts for the node. Before, it answers from checkpoints, and writes nothing.
    pub turn: Turn,
    /// What the inventory said last, for a server that is built while it runs.
    pub inventory: Option<Inventory>,
}
