//! What Heddle decides: object types and pure functions over them.
//!
//! Nothing here does I/O, reads a clock or the environment, or iterates in an unordered way. The agent's and
//! the controller's actors run the effects that these functions return; tests and models call the very same
//! functions.

pub mod api;
pub mod channels;
pub mod claim;
pub mod clique;
pub mod condition;
pub mod container_runtime;
pub mod controller;
pub mod fault;
pub mod identity;
pub mod imex;
pub mod invariants;
pub mod inventory;
pub mod lease;
pub mod names;
pub mod preflight;
pub mod protocol;
pub mod runtime_guard;
pub mod schema;
pub mod slices;
pub mod uninstall;
