//! The controller against the embedded API, with light agents. Scheduler and kubelet are played by the tests.

mod agent;
mod cluster;
mod crds;
mod exclusive;
mod faults;
mod lifecycle;
mod membership;
mod replica;
mod replicas;
mod scale;
