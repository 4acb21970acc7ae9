//! The agent of a node: its settings and the wiring of its actors.

mod tell;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use kube::Client;

pub use tell::{Later, Tell};

/// What an agent is started with.
#[derive(Clone)]
pub struct Settings {
    /// Name of the Node.
    pub node_name: String,
    /// Address at which peers reach the node's IMEX daemon.
    pub node_address: IpAddr,
    /// The API.
    pub client: Client,
    /// Where the driver's programs and libraries are: `/` or `/run/nvidia/driver`.
    pub driver_root: PathBuf,
    /// The node's `/proc`.
    pub proc_root: PathBuf,
    /// `/var/lib/kubelet/plugins`.
    pub plugins_dir: PathBuf,
    /// `/var/lib/kubelet/plugins_registry`.
    pub registry_dir: PathBuf,
    /// `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// Where checkpoints are kept.
    pub state_dir: PathBuf,
    /// Where the IMEX runner is reached.
    pub runner_socket: PathBuf,
    /// Slots to publish.
    pub slots: u32,
    /// Whether whole GPUs are published too.
    pub gpus: bool,
    /// UID of the agent's pod.
    pub pod_uid: String,
    /// Where metrics and probes are served.
    pub metrics: Option<SocketAddr>,
}
