//! A `libnvidia-ml.so.1` without GPUs: the symbols that Heddle calls, driven by the scenario file that the
//! environment variable [`SCENARIO_ENV`] names. The file is read again when it changes.
//!
//! As an rlib it gives the tests and the demo the [`Scenario`] types; as a cdylib
//! (`target/<profile>/deps/libheddle_fake_nvml.so`) it is the library.

// A C library is called with raw pointers, and its symbols have fixed names.
#![allow(unsafe_code)]

mod abi;
mod calls;
mod events;
mod library;
mod place;
mod scenario;

pub use place::{built_library, install};
pub use scenario::{Event, FabricInfo, Gpu, HEALTHY_MASK, SCENARIO_ENV, Scenario};

#[cfg(test)]
mod tests;
