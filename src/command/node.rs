use std::path::PathBuf;

use clap::Args;
use heddle_core::api::ImexMode;
use heddle_core::inventory::Access;
use heddle_core::names;

/// Where things are on a node.
#[derive(Args)]
pub struct NodePlaces {
    /// Folder below which the NVIDIA driver is installed
    #[arg(long, default_value = "/", env = "HEDDLE_DRIVER_ROOT")]
    pub driver_root: PathBuf,
    /// The proc file system of the host
    #[arg(long, default_value = "/proc", env = "HEDDLE_PROC_ROOT")]
    pub proc_root: PathBuf,
    /// The kubelet's folder for plugins' data
    #[arg(long, default_value = "/var/lib/kubelet/plugins", env = "HEDDLE_KUBELET_PLUGINS_DIR")]
    pub kubelet_plugins_dir: PathBuf,
    /// The kubelet's folder for plugins' registration sockets
    #[arg(long, default_value = "/var/lib/kubelet/plugins_registry", env = "HEDDLE_KUBELET_REGISTRY_DIR")]
    pub kubelet_registry_dir: PathBuf,
    /// Where the container runtime looks for CDI files made at run time
    #[arg(long, default_value = "/var/run/cdi", env = "HEDDLE_CDI_DIR")]
    pub cdi_dir: PathBuf,
    /// Where claims are checkpointed; must survive this pod
    #[arg(long, default_value = "/var/lib/kubelet/plugins/compute-domain.nvidia.com/state", env = "HEDDLE_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Socket of the IMEX runner
    #[arg(long, default_value = "/run/heddle/runner.sock", env = "HEDDLE_RUNNER_SOCKET")]
    pub runner_socket: PathBuf,
    /// Who runs the node's IMEX daemon: driver-managed (Heddle's imex-runner) or host-managed (systemd or the cluster's
    /// own tools; Heddle then only asks it how it is)
    #[arg(long, value_name = "MODE", default_value_t, env = "HEDDLE_IMEX_MODE")]
    pub imex_mode: ImexMode,
    /// Channel claims that the node can hold at once
    #[arg(long, default_value_t = names::DEFAULT_SLOTS, value_parser = clap::value_parser!(u32).range(1..=i64::from(names::MAX_SLOTS)), env = "HEDDLE_SLOTS")]
    pub slots: u32,
    /// Kind of access over NVLink whose partition is the clique: unicast-pointer, multicast-pointer,
    /// unicast-logical-endpoint or multicast-logical-endpoint
    #[arg(long, default_value_t, env = "HEDDLE_FABRIC_ACCESS")]
    pub fabric_access: Access,
}
