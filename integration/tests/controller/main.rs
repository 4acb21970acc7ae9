//! The controller against the embedded API, with light agents. Scheduler and kubelet are played by the tests.

mod agent;
mod bad_input;
mod cluster;
mod crds;
mod exclusive;
mod exhaustion;
mod faults;
mod lifecycle;
mod membership;
mod quarantine;
mod replica;
mod replicas;
mod scale;
mod slots;
