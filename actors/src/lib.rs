//! The actor runtime, and the actors of agent, runner and controller.

pub mod agent;
pub mod api_requests;
mod cause;
pub mod channel_admin;
pub mod channel_allocator;
pub mod controller;
pub mod crds;
pub mod dra;
pub mod gpu_inventory;
pub mod host_root;
pub mod identity;
pub mod imex_mode;
pub mod imex_supervisor;
pub mod in_use;
pub mod lease;
pub mod node_events;
pub mod node_link;
pub mod nvml;
pub mod peer_identity;
pub mod policies;
pub mod preflight;
pub mod runner;
pub mod runtime;
pub mod runtime_guard;
mod said;
pub mod slice_publisher;
pub mod small_file;
