//! The agent of a node: its settings and the wiring of its actors.

mod tell;

pub use tell::{Later, Tell};
