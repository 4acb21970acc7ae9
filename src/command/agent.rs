use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use heddle_actors::{agent, runtime};
use heddle_core::inventory::Access;
use heddle_core::names;

use super::client;
use super::host::Host;

/// Runs on every node, as a DaemonSet.
#[derive(Args)]
pub struct Agent {
    /// Name of this Node
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Address at which other nodes reach this node's IMEX daemon
    #[arg(long, env = "NODE_ADDRESS")]
    node_address: IpAddr,
    /// UID of this pod: part of socket names, so that two agents of a rolling update do not collide
    #[arg(long, env = "POD_UID")]
    pod_uid: String,
    /// Kubeconfig; inside a cluster the pod's service account is used
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Folder below which the NVIDIA driver is installed
    #[arg(long, default_value = "/", env = "HEDDLE_DRIVER_ROOT")]
    driver_root: PathBuf,
    /// The proc file system of the host
    #[arg(long, default_value = "/proc", env = "HEDDLE_PROC_ROOT")]
    proc_root: PathBuf,
    /// The sys file system of the host
    #[arg(long, default_value = "/sys", env = "HEDDLE_SYS_ROOT")]
    sys_root: PathBuf,
    /// The kubelet's folder for plugins' data
    #[arg(long, default_value = "/var/lib/kubelet/plugins", env = "HEDDLE_KUBELET_PLUGINS_DIR")]
    kubelet_plugins_dir: PathBuf,
    /// The kubelet's folder for plugins' registration sockets
    #[arg(long, default_value = "/var/lib/kubelet/plugins_registry", env = "HEDDLE_KUBELET_REGISTRY_DIR")]
    kubelet_registry_dir: PathBuf,
    /// Where the container runtime looks for CDI files made at run time
    #[arg(long, default_value = "/var/run/cdi", env = "HEDDLE_CDI_DIR")]
    cdi_dir: PathBuf,
    /// Where the container runtime looks for CDI files that stay; only read, for the container toolkit's
    #[arg(long, default_value = "/etc/cdi", env = "HEDDLE_CDI_STATIC_DIR")]
    cdi_static_dir: PathBuf,
    /// Where claims are checkpointed; must survive this pod
    #[arg(long, default_value = "/var/lib/kubelet/plugins/compute-domain.nvidia.com/state", env = "HEDDLE_STATE_DIR")]
    state_dir: PathBuf,
    /// Socket of the IMEX runner
    #[arg(long, default_value = "/run/heddle/runner.sock", env = "HEDDLE_RUNNER_SOCKET")]
    runner_socket: PathBuf,
    /// Channel claims that the node can hold at once
    #[arg(long, default_value_t = names::DEFAULT_SLOTS, value_parser = clap::value_parser!(u32).range(1..=i64::from(names::MAX_SLOTS)), env = "HEDDLE_SLOTS")]
    slots: u32,
    /// Also publish and prepare whole GPUs, as driver gpu.nvidia.com
    #[arg(long, env = "HEDDLE_GPUS")]
    gpus: bool,
    /// Kind of access over NVLink whose partition is the clique: unicast-pointer, multicast-pointer,
    /// unicast-logical-endpoint or multicast-logical-endpoint
    #[arg(long, default_value_t, env = "HEDDLE_FABRIC_ACCESS")]
    fabric_access: Access,
    /// XIDs that make no GPU unhealthy, beside those that are an application's fault (13, 31, 43, 45, 68, 109)
    #[arg(long, value_name = "NUMBER,…", value_delimiter = ',', env = "HEDDLE_IGNORED_XIDS")]
    ignored_xids: Vec<u64>,
    #[command(flatten)]
    host: Host,
    /// Where to serve /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", env = "HEDDLE_METRICS_ADDRESS")]
    metrics_address: Option<SocketAddr>,
    /// Where to serve gRPC health for the pod's probes: each check calls the sockets that the kubelet calls
    #[arg(long, value_name = "ADDRESS:PORT", env = "HEDDLE_HEALTH_ADDRESS")]
    health_address: Option<SocketAddr>,
}

impl Agent {
    pub fn run(self) -> anyhow::Result<()> {
        runtime::block_on(async move {
            let (client, requests) = client::connect(self.kubeconfig.as_deref()).await?;
            let settings = agent::Settings {
                client,
                requests,
                node_name: self.node_name,
                node_address: self.node_address,
                pod_uid: self.pod_uid,
                driver_root: self.driver_root,
                proc_root: self.proc_root,
                sys_root: self.sys_root,
                plugins_dir: self.kubelet_plugins_dir,
                registry_dir: self.kubelet_registry_dir,
                cdi_dir: self.cdi_dir,
                cdi_static_dir: self.cdi_static_dir,
                state_dir: self.state_dir,
                runner_socket: self.runner_socket,
                slots: self.slots,
                gpus: self.gpus,
                fabric_access: self.fabric_access,
                ignored_xids: self.ignored_xids,
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
