//! A ResourceClaim on its node: what it asks for, what must be done for it, what is remembered of it.

use serde::{Deserialize, Serialize};

pub mod cdi;
pub mod checkpoint;
pub mod plan;
pub mod request;

/// All that the kubelet says of a claim, and all that tells it from another of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, the key of everything.
    pub uid: String,
}

impl std::fmt::Display for ClaimKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a node's entry into a ComputeDomain's channel came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The claim may use this channel.
    Channel {
        /// The number.
        channel: u32,
        /// Name of the IMEXDomain that the number is of.
        domain: String,
        /// `ImexChannelCount` of the node.
        channel_count: u32,
    },
    /// The node has no NVLink fabric: there is nothing to be kept apart, and no channel.
    NoFabric,
}

/// A claim that holds a channel, as its checkpoint tells it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Prepared {
    /// UID of the claim.
    pub claim_uid: String,
    /// UID of the ComputeDomain.
    pub cd_uid: String,
    /// The number.
    pub channel: u32,
    /// Name of the IMEXDomain that the number is of.
    pub domain: String,
}
