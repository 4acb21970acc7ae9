//! `heddle imex-runner` as a process, with the fake daemon in a driver root of its own.

mod clock;
mod entry;
mod faults;
mod host;
mod log;
mod past;
mod rig;
mod view;
