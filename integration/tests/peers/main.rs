//! Peer identity over the embedded API: who gets a certificate, and what an agent does with it.

mod agent;
mod bed;
mod signer;
