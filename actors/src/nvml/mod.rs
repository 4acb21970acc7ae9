//! The NVIDIA driver: its management library, and what its kernel module says below `/proc`.

pub mod devices;
mod events;
mod fabric;
mod library;
mod symbols;
mod sysfs;

pub use events::Listener;
pub use library::{Failure, Library};
pub use sysfs::Sysfs;
