//! The fake IMEX daemon, its control tool, and what CUDA asks of the kernel.
//!
//! `nvidia-imex` ([`daemon_main`]) and `nvidia-imex-ctl` ([`ctl_main`]) are processes of their own that speak TCP
//! between each other. The node they are on is a folder, named by the environment variable [`os::OS_ENV`]. Inside
//! it the daemon also plays the part of the kernel that compares channels: [`cuda::Cuda`] is its client.
//!
//! Behaviour follows NVIDIA's public IMEX guide and the open kernel modules where they speak, and public threads where they do not; what
//! nobody has written down (wording of some log lines, exit codes other than 0) is our choice and nothing may depend on it.

pub mod cuda;

mod config;
mod control;
mod ctl;
mod daemon;
mod domain;
mod fabric;
mod kernel;
mod log;
mod logfile;
mod nodemap;
pub mod os;
mod outgoing;
mod peer;
mod persist;
mod process;
pub mod scenario;
mod security;
mod server;
mod setup;
pub mod state;
mod transport;
pub(crate) mod wire;

pub use ctl::ctl_main;
pub use daemon::daemon_main;
pub use process::cuda_main;
pub use setup::{domain_main, make_domain};

/// Version that both programs report: that of the driver they would come with.
pub const VERSION: &str = "595.71.05";
