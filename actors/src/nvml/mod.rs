//! The NVIDIA driver: its management library, and what its kernel module says below `/proc`.

pub mod devices;

mod library;

pub use library::Library;
