//! An embedded Kubernetes cluster and the hardware fakes that Heddle is tried on.
//!
//! Everything above the hardware edge is real: the agents, runners and the controller are the production processes,
//! the sockets and files are real ones. See `docs/` for what is behind each fake.

pub mod api;
pub mod bench;
pub mod chart;
pub mod control;
pub mod demo;
pub mod driver_root;
pub mod hardware;
pub mod imex;
pub mod kubelet;
pub mod labels;
pub mod node;
