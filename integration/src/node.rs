//! The files of one simulated node.

use std::path::{Path, PathBuf};

/// Where things are on a simulated node. Names are short: a Unix socket's path has at most 107 bytes.
#[derive(Clone, Debug)]
pub struct NodePaths {
    /// The node's own folder.
    pub root: PathBuf,
}

impl NodePaths {
    /// The layout below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn at(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// `/var/lib/kubelet/plugins`.
    pub fn plugins(&self) -> PathBuf {
        self.at("k/plugins")
    }

    /// `/var/lib/kubelet/plugins_registry`.
    pub fn registry(&self) -> PathBuf {
        self.at("k/reg")
    }

    /// `/var/run/cdi`: where agents write.
    pub fn cdi(&self) -> PathBuf {
        self.at("cdi")
    }

    /// `/etc/cdi`: where the container toolkit's spec of the GPUs stands.
    pub fn cdi_static(&self) -> PathBuf {
        self.at("cdi-etc")
    }

    /// What the fake hardware takes for `/`: `proc/devices`, `proc/driver/nvidia/params`,
    /// `proc/sys/kernel/random/boot_id`, `etc/hosts`, `net/addresses`, `run/`.
    pub fn os(&self) -> PathBuf {
        self.at("os")
    }

    /// The driver root: `usr/bin/nvidia-imex`, `usr/bin/nvidia-imex-ctl`, `usr/lib64/libnvidia-ml.so.1`.
    pub fn driver_root(&self) -> PathBuf {
        self.at("driver")
    }

    /// What the fake NVML library reports.
    pub fn nvml_scenario(&self) -> PathBuf {
        self.at("nvml.json")
    }

    /// The agent's checkpoints.
    pub fn state(&self) -> PathBuf {
        self.at("state")
    }

    /// The runner's configuration of the daemon, on tmpfs on a real node.
    pub fn imex(&self) -> PathBuf {
        self.at("imex")
    }

    /// The runner's socket.
    pub fn runner_socket(&self) -> PathBuf {
        self.at("imex/runner.sock")
    }
}
