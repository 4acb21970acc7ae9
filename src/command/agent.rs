use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use heddle_actors::{agent, runtime};

use super::client;
use super::host::Host;
use super::node::NodePlaces;
use super::peers::Peers;

/// Runs on every node, as a DaemonSet.
#[derive(Args)]
pub struct Agent {
    /// Name of this Node
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Address at which other nodes reach this node's IMEX daemon; one of each family where the network has both, such as
    /// the pod's status.hostIPs, the preferred one first
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',', required = true, env = "NODE_ADDRESS")]
    node_address: Vec<IpAddr>,
    /// UID of this pod: part of socket names, so that two agents of a rolling update do not collide
    #[arg(long, env = "POD_UID")]
    pod_uid: String,
    /// Kubeconfig; inside a cluster the pod's service account is used
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    node: NodePlaces,
    /// The sys file system of the host
    #[arg(long, default_value = "/sys", env = "HEDDLE_SYS_ROOT")]
    sys_root: PathBuf,
    /// Where the container runtime looks for CDI files that stay; only read, for the container toolkit's
    #[arg(long, default_value = "/etc/cdi", env = "HEDDLE_CDI_STATIC_DIR")]
    cdi_static_dir: PathBuf,
    /// Also publish and prepare whole GPUs, as driver gpu.nvidia.com
    #[arg(long, env = "HEDDLE_GPUS")]
    gpus: bool,
    /// XIDs that make no GPU unhealthy, beside those that are an application's fault (13, 31, 43, 45, 68, 109)
    #[arg(long, value_name = "NUMBER,…", value_delimiter = ',', env = "HEDDLE_IGNORED_XIDS")]
    ignored_xids: Vec<u64>,
    #[command(flatten)]
    peers: Peers,
    /// Folder with tls.crt, tls.key and ca.crt for --peer-authentication files, such as a mounted Secret
    #[arg(long, value_name = "FOLDER", default_value = "/etc/heddle/peer", env = "HEDDLE_PEER_CERTIFICATES_DIR")]
    peer_certificates_dir: PathBuf,
    /// Control socket of the IMEX daemon that the host runs, with --imex-mode host-managed
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/etc/nvidia-imex/imex_ctrl.sock",
        env = "HEDDLE_IMEX_CONTROL_SOCKET"
    )]
    imex_control_socket: PathBuf,
    /// Configuration file of the IMEX daemon that the host runs, on the host
    #[arg(long, value_name = "PATH", default_value = "/etc/nvidia-imex/config.cfg", env = "HEDDLE_HOST_IMEX_CONFIG")]
    host_imex_config: String,
    #[command(flatten)]
    host: Host,
    /// Where to serve /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", env = "HEDDLE_METRICS_ADDRESS")]
    metrics_address: Option<SocketAddr>,
    /// Where to serve gRPC health for the pod's probes: each check calls the sockets that the kubelet calls
    #[arg(long, value_name = "ADDRESS:PORT", env = "HEDDLE_HEALTH_ADDRESS")]
    health_address: Option<SocketAddr>,
}

/// Programs of another root have its loader and libraries, by way of this very binary; those of this root are just started.
fn imex_enter(driver_root: &Path) -> Vec<String> {
    match driver_root == Path::new("/") {
        true => Vec::new(),
        false => super::imex_enter::WORDS.map(str::to_owned).into(),
    }
}

impl Agent {
    pub fn run(self) -> anyhow::Result<()> {
        runtime::block_on(async move {
            let (client, requests) = client::connect(self.kubeconfig.as_deref()).await?;
            let settings = agent::Settings {
                client,
                requests,
                node_name: self.node_name,
                node_addresses: self.node_address,
                pod_uid: self.pod_uid,
                enter: imex_enter(&self.node.driver_root),
                driver_root: self.node.driver_root,
                proc_root: self.node.proc_root,
                sys_root: self.sys_root,
                plugins_dir: self.node.kubelet_plugins_dir,
                registry_dir: self.node.kubelet_registry_dir,
                cdi_dir: self.node.cdi_dir,
                cdi_static_dir: self.cdi_static_dir,
                state_dir: self.node.state_dir,
                runner_socket: self.node.runner_socket,
                imex_mode: self.node.imex_mode,
                control_socket: self.imex_control_socket,
                host_imex_config: self.host_imex_config,
                authentication: self.peers.peer_authentication,
                certificate_seconds: self.peers.peer_certificate_hours * 3600,
                certificates_dir: self.peer_certificates_dir,
                slots: self.node.slots,
                gpus: self.gpus,
                fabric_access: self.node.fabric_access,
                ignored_xids: self.ignored_xids,
                container_runtime_version: self.host.containerd_version.clone(),
                places: self.host.places(),
                runtime_guard: self.host.runtime_guard.into(),
                host: self.host.root(),
                metrics: self.metrics_address,
                health: self.health_address,
            };
            agent::run(settings, runtime::signals()).await.context("the agent ended")
        })
    }
}
