use std::path::PathBuf;

use clap::{Args, ValueEnum};
use heddle_actors::host_root::HostRoot;
use heddle_actors::runtime_guard::Places;
use heddle_core::runtime_guard::Mode;

/// Where files of the host are that Heddle reads and never writes.
#[derive(Args)]
pub struct Host {
    /// What to do where the container runtime gives pods IMEX channels by itself
    #[arg(long, value_enum, default_value = "warn", env = "HEDDLE_RUNTIME_GUARD")]
    pub runtime_guard: RuntimeGuard,
    /// Folder at which the host's root is mounted
    #[arg(long, default_value = "/", env = "HEDDLE_HOST_ROOT")]
    host_root: PathBuf,
    /// Configuration file of containerd or, where its path has "crio" in it, of CRI-O, on the host; may be repeated,
    /// and its last part may have a * [default: the usual places]
    #[arg(long, value_name = "PATH", value_delimiter = ',', env = "HEDDLE_CONTAINER_RUNTIME_CONFIG")]
    container_runtime_config: Vec<String>,
    /// Version of containerd, or of CRI-O as cri-o://VERSION [default: what the Node says, or containerd itself]
    #[arg(long, value_name = "VERSION", env = "HEDDLE_CONTAINERD_VERSION")]
    pub containerd_version: Option<String>,
    /// Configuration file of the NVIDIA Container Toolkit, on the host; may be repeated [default: those of its packages
    /// and of the GPU Operator]
    #[arg(long, value_name = "PATH", value_delimiter = ',', env = "HEDDLE_TOOLKIT_CONFIG")]
    toolkit_config: Vec<String>,
    /// Name of a program that is NVIDIA's container runtime; may be repeated [default: nvidia-container-runtime]
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "HEDDLE_NVIDIA_RUNTIME")]
    nvidia_runtime: Vec<String>,
}

/// See [`Mode`].
#[derive(Clone, Copy, ValueEnum)]
pub enum RuntimeGuard {
    /// Tell of it: condition, Event, metric, log
    Warn,
    /// Tell of it, offer no slots and prepare no claims
    Require,
    /// Do not look
    Off,
}

impl From<RuntimeGuard> for Mode {
    fn from(chosen: RuntimeGuard) -> Self {
        match chosen {
            RuntimeGuard::Warn => Self::Warn,
            RuntimeGuard::Require => Self::Require,
            RuntimeGuard::Off => Self::Off,
        }
    }
}

impl Host {
    pub fn root(&self) -> HostRoot {
        HostRoot::new(&self.host_root)
    }

    pub fn places(&self) -> Places {
        let Self { container_runtime_config, toolkit_config, nvidia_runtime, .. } = self;
        Places::given(container_runtime_config.clone(), toolkit_config.clone(), nvidia_runtime.clone())
    }
}
