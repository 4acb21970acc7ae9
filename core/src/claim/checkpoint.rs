//! What a node remembers of a claim: one file per claim and driver.
//!
//! The file is JSON on one line, in exactly one spelling, with a checksum over all the rest of it: any flipped,
//! missing or added byte is found.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{ClaimKey, Prepared};
use crate::api::ComputeDomainRef;

/// The format that this build writes, and the newest that it reads. `core/tests/samples/checkpoint/` has samples of every
/// version, and the rule by which a new one is made.
pub const VERSION: u32 = 1;

/// Everything that outlives the agent about one claim of one driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Checkpoint {
    /// The claim.
    pub claim: ClaimKey,
    /// DRA driver that prepared it.
    pub driver: String,
    /// How far it has come.
    pub state: State,
    /// Boot in which it was prepared: device numbers and CDI files are of one boot.
    pub boot_id: String,
    /// The ComputeDomain, for a claim on slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_domain: Option<ComputeDomainRef>,
    /// The channel; none for GPUs, and on a node without NVLink fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<ChannelRecord>,
    /// The unguessable part of the CDI file's and device's name; none for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cdi_token: Option<String>,
    /// What the kubelet is answered.
    pub devices: Vec<PreparedDevice>,
}

/// How far a claim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The channel is entered; the CDI file may or may not be there; the kubelet has not been answered.
    Preparing,
    /// The kubelet was or may have been answered.
    Prepared,
    /// It is being undone; no Prepare may finish over it.
    Tombstone,
}

/// The channel that a claim holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChannelRecord {
    /// The number.
    pub channel: u32,
    /// Name of the IMEXDomain that the number is of.
    pub domain: String,
    /// Character-device major of channels in this boot.
    pub major: u32,
    /// Set if all channels of the exclusive domain are given: 1 … count−1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_of: Option<u32>,
}

/// A device as the kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PreparedDevice {
    /// Requests that it answers.
    pub request_names: Vec<String>,
    /// Pool.
    pub pool: String,
    /// Device.
    pub device: String,
    /// Set where a device may be shared by several claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    /// What the container runtime is told; may be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cdi_ids: Vec<String>,
}

/// Why a checkpoint's bytes are not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Bytes are wrong, missing or too many.
    #[error("the checkpoint is corrupt: {0}")]
    Corrupt(String),
    /// It was written by a newer release; it is kept as it is.
    #[error("the checkpoint has version {0}, this release reads up to {VERSION}; update the agent or drain the node")]
    Newer(u32),
}

#[derive(Serialize, Deserialize)]
struct File<'a> {
    version: u32,
    #[serde(borrow)]
    sha256: std::borrow::Cow<'a, str>,
    checkpoint: Checkpoint,
}

impl Checkpoint {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut file =
            File { version: VERSION, sha256: checksum(VERSION, self).into(), checkpoint: self.clone() }.bytes();
        file.push(b'\n');
        file
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// If they are not exactly what [`Checkpoint::encode`] writes, or are of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        #[derive(Deserialize)]
        struct Header {
            version: u32,
        }
        let corrupt = |what: &dyn std::fmt::Display| DecodeError::Corrupt(what.to_string());
        let header: Header = serde_json::from_slice(bytes).map_err(|e| corrupt(&e))?;
        if header.version > VERSION {
            // A newer release's checksum is over its own version. One that fits ours tells of damage, and of no release.
            let ours = serde_json::from_slice::<File<'_>>(bytes)
                .is_ok_and(|file| (1..=VERSION).any(|version| file.sha256 == checksum(version, &file.checkpoint)));
            return Err(if ours { corrupt(&"its version was changed") } else { DecodeError::Newer(header.version) });
        }
        let file: File<'_> = serde_json::from_slice(bytes).map_err(|e| corrupt(&e))?;
        if file.sha256 != checksum(file.version, &file.checkpoint) {
            return Err(corrupt(&"its checksum does not match"));
        }
        if file.checkpoint.encode() != bytes {
            return Err(corrupt(&"it is not written as this agent writes it"));
        }
        Ok(file.checkpoint)
    }

    /// What the ChannelAllocator must know of it; none if it holds no channel.
    pub fn held(&self) -> Option<Prepared> {
        let (cd, channel) = self.compute_domain.as_ref().zip(self.channel.as_ref())?;
        (self.state != State::Tombstone).then(|| Prepared {
            claim_uid: self.claim.uid.clone(),
            cd_uid: cd.uid.clone(),
            channel: channel.channel,
            domain: channel.domain.clone(),
        })
    }

    /// The same in another state.
    pub fn with_state(&self, state: State) -> Self {
        Self { state, ..self.clone() }
    }
}

impl File<'_> {
    fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

fn checksum(version: u32, checkpoint: &Checkpoint) -> String {
    let unsigned = File { version, sha256: "".into(), checkpoint: checkpoint.clone() }.bytes();
    Sha256::digest(&unsigned).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Checkpoint {
        Checkpoint {
            claim: ClaimKey {
                namespace: "team".into(),
                name: "job-0-channel".into(),
                uid: "11111111-2222-4333-8444-555555555555".into(),
            },
            driver: crate::names::DRIVER.into(),
            state: State::Prepared,
            boot_id: "9f2c".into(),
            compute_domain: Some(ComputeDomainRef { namespace: "team".into(), name: "green".into(), uid: "u".into() }),
            channel: Some(ChannelRecord { channel: 7, domain: "shared-0".into(), major: 234, all_of: None }),
            cdi_token: Some("00ff".into()),
            devices: vec![PreparedDevice {
                request_names: vec!["channel".into()],
                pool: "n1".into(),
                device: "slot-3".into(),
                share_id: None,
                cdi_ids: vec!["k8s.compute-domain.nvidia.com/claim=x".into()],
            }],
        }
    }

    #[test]
    fn every_flipped_bit_and_every_lost_byte_is_found() {
        let good = sample().encode();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(matches!(Checkpoint::decode(&bad), Err(DecodeError::Corrupt(_))), "bit {bit} of byte {at}");
            }
            assert!(Checkpoint::decode(&good[..at]).is_err(), "cut at {at}");
            let mut longer = good.clone();
            longer.insert(at, b' ');
            assert!(Checkpoint::decode(&longer).is_err(), "space at {at}");
        }
        assert!(Checkpoint::decode(&vec![0; good.len()]).is_err());
    }

    #[test]
    fn a_newer_version_is_told_from_a_corrupt_file() {
        assert_eq!(Checkpoint::decode(br#"{"version":2,"other":true}"#), Err(DecodeError::Newer(2)));
        assert!(matches!(Checkpoint::decode(br#"{"version":1,"other":true}"#), Err(DecodeError::Corrupt(_))));
        assert!(matches!(Checkpoint::decode(b""), Err(DecodeError::Corrupt(_))));
    }

    #[test]
    fn a_tombstone_holds_nothing() {
        assert_eq!(sample().held().unwrap().channel, 7);
        assert!(sample().with_state(State::Preparing).held().is_some());
        assert_eq!(sample().with_state(State::Tombstone).held(), None);
        assert_eq!(Checkpoint { channel: None, ..sample() }.held(), None);
    }
}
