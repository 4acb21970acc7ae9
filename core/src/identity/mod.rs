//! Peer identities: what an IMEX domain is called in certificates, who gets one, when it is renewed.
//!
//! The X.509 itself is elsewhere: what is decided here is decided on facts that were read from it.

mod authentication;
mod certificate;
mod names;
mod rate;
mod renewal;
mod request;
mod signer;

pub use authentication::Authentication;
pub use certificate::{Chain, usable};
pub use names::{
    AUTHORITY_LABEL, SIGNER, USAGES, authority_secret, identity_name, is_domain_name, request_name, request_prefix,
};
pub use rate::Rates;
pub use renewal::renew_at;
pub use request::{Asked, P256, Request};
pub use signer::{Agents, Verdict, fits, member, node_of};

/// Type of the IMEXNode's condition.
pub const PEER_IDENTITY: &str = "PeerIdentity";

#[cfg(test)]
mod signer_tests;
