//! A ResourceClaim on its node: what it asks for, what must be done for it, what is remembered of it.

use serde::{Deserialize, Serialize};

use crate::fault::{Fault, reason};

pub mod cdi;
pub mod checkpoint;
pub mod compute_domain;
pub mod containers;
pub mod plan;
pub mod rebuild;
pub mod request;
pub mod status;
pub mod toolkit;

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

impl ClaimKey {
    /// Checks what becomes part of file names and of requests to the API server.
    ///
    /// # Errors
    /// A permanent fault if a part is not what the API server would ever have accepted.
    pub fn check(&self) -> Result<(), Fault> {
        let label = |text: &str, max: usize, inner: &[u8]| {
            let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            let bytes = text.as_bytes();
            bytes.len() <= max
                && edge(bytes.first())
                && edge(bytes.last())
                && bytes.iter().all(|b| b.is_ascii_alphanumeric() || inner.contains(b))
        };
        for (what, text, max, inner) in [
            ("namespace", &self.namespace, 63, &b"-"[..]),
            ("name", &self.name, 253, b"-."),
            ("UID", &self.uid, 64, b"-"),
        ] {
            if !label(text, max, inner) {
                let shown: String = text.chars().take(80).collect();
                return Err(Fault::permanent(
                    reason::CLAIM_MISMATCH,
                    format!("{shown:?} cannot be the {what} of a ResourceClaim"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_is_a_claim() {
        let good = ClaimKey {
            namespace: "team".into(),
            name: "job-0.channel".into(),
            uid: "11111111-2222-4333-8444-555555555555".into(),
        };
        assert!(good.check().is_ok());
        for bad in ["", "..", "../x", "a/b", "a\0", "-a", "a-", "a b", "\u{e9}", &"a".repeat(254)] {
            for key in [
                ClaimKey { namespace: bad.into(), ..good.clone() },
                ClaimKey { name: bad.into(), ..good.clone() },
                ClaimKey { uid: bad.into(), ..good.clone() },
            ] {
                assert!(key.check().is_err(), "{key:?}");
            }
        }
    }
}
