//! What can be known of a claim whose checkpoint is lost: its CDI file tells the channel, the node's own object tells
//! whose channel that is.

use serde_json::Value;

use super::ClaimKey;
use super::cdi;
use super::checkpoint::{ChannelRecord, Checkpoint, State};
use crate::api::{ComputeDomainRef, IMEXNodeStatus};
use crate::names;

/// A checkpoint that holds what the claim `uid` may still use, so that nobody else is given it before the claim is
/// undone; none if the CDI file tells nothing. It is `Preparing`, so that a Prepare reads the claim anew.
pub fn checkpoint(
    uid: &str,
    boot_id: &str,
    file_name: &str,
    contents: &[u8],
    node: &IMEXNodeStatus,
) -> Option<Checkpoint> {
    let token = cdi::token_of(file_name, uid)?.to_owned();
    let spec: Value = serde_json::from_slice(contents).ok()?;
    let nodes = spec.pointer("/devices/0/containerEdits/deviceNodes").and_then(Value::as_array);
    let nodes = nodes.map(Vec::as_slice).unwrap_or_default();
    let number = |node: &Value, field: &str| node[field].as_u64().and_then(|number| u32::try_from(number).ok());
    let (mut compute_domain, mut channel) = (None, None);
    if let Some(first) = nodes.first() {
        let (major, minor) = (number(first, "major")?, number(first, "minor")?);
        let all_of = (nodes.len() > 1).then_some(u32::try_from(nodes.len()).ok()? + 1);
        // Only an exclusive domain gives all its channels, and then the node lists one entry.
        let entry = node.channels.iter().find(|(_, entry)| all_of.is_some() || entry.channel == minor);
        if let Some((cd_uid, entry)) = entry {
            compute_domain = Some(ComputeDomainRef { uid: cd_uid.clone(), ..ComputeDomainRef::default() });
            channel = Some(ChannelRecord { channel: entry.channel, domain: entry.domain.clone(), major, all_of });
        }
    }
    Some(Checkpoint {
        claim: ClaimKey { uid: uid.to_owned(), ..ClaimKey::default() },
        driver: names::DRIVER.to_owned(),
        state: State::Preparing,
        boot_id: boot_id.to_owned(),
        compute_domain,
        channel,
        cdi_token: Some(token),
        devices: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodeChannel;

    const UID: &str = "11111111-2222-4333-8444-555555555555";

    fn original(all_of: Option<u32>) -> Checkpoint {
        Checkpoint {
            claim: ClaimKey { namespace: "team".into(), name: "c".into(), uid: UID.into() },
            driver: names::DRIVER.into(),
            state: State::Prepared,
            boot_id: "boot-1".into(),
            compute_domain: Some(ComputeDomainRef {
                namespace: "team".into(),
                name: "green".into(),
                uid: "green".into(),
            }),
            channel: Some(ChannelRecord { channel: 7, domain: "shared-0".into(), major: 234, all_of }),
            cdi_token: Some("00112233445566778899aabbccddeeff".into()),
            devices: vec![],
        }
    }

    fn node(channel: u32) -> IMEXNodeStatus {
        let entry = NodeChannel { channel, domain: "shared-0".into(), since: String::new() };
        IMEXNodeStatus { channels: [("green".to_owned(), entry)].into(), ..IMEXNodeStatus::default() }
    }

    #[test]
    fn the_channel_stays_held_and_the_same_file_stays_the_claim_s() {
        for all_of in [None, Some(2048)] {
            let original = original(all_of);
            let file = cdi::file(&original).unwrap().unwrap();
            let rebuilt = checkpoint(UID, "boot-1", &file.name, &file.contents, &node(7)).unwrap();
            assert_eq!(rebuilt.held(), original.held());
            assert_eq!(cdi::file(&rebuilt).unwrap().unwrap(), file);
            assert_eq!(rebuilt.state, State::Preparing);
        }
    }

    #[test]
    fn a_channel_that_the_node_has_not_entered_is_not_held() {
        let file = cdi::file(&original(None)).unwrap().unwrap();
        let rebuilt = checkpoint(UID, "boot-1", &file.name, &file.contents, &node(8)).unwrap();
        assert_eq!(rebuilt.held(), None);
    }

    #[test]
    fn a_file_of_another_claim_or_without_sense_tells_nothing() {
        let file = cdi::file(&original(None)).unwrap().unwrap();
        assert_eq!(checkpoint("another", "b", &file.name, &file.contents, &node(7)), None);
        assert_eq!(checkpoint(UID, "b", &file.name, b"{", &node(7)), None);
    }
}
