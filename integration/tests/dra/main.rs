//! The kubelet's side of the agent over real sockets and files, against the embedded API.

mod bad_input;
mod bed;
mod claims;
mod crash;
mod damage;
mod files;
mod gpus;
mod kubelet;
mod lifecycle;
mod reported;
mod restart;
mod sharing;
mod slices;
mod sockets;
mod update;
mod upkeep;
