//! What can be known of a claim whose checkpoint is lost: the claim itself and the node's own object tell its channel;
//! where the claim cannot tell, its CDI file does, if it is as it was written.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::Value;

use super::checkpoint::{ChannelRecord, Checkpoint, State};
use super::{ClaimKey, cdi, request};
use crate::api::{AllocationMode, ChannelConfig, ComputeDomainRef, IMEXNodeStatus, NodeChannel};
use crate::names;

/// What is left of a claim.
#[derive(Clone, Copy, Debug)]
pub struct Traces<'a> {
    /// UID of the claim.
    pub uid: &'a str,
    /// The claim, if it exists.
    pub claim: Option<&'a ResourceClaim>,
    /// Status of the node's own object.
    pub node: &'a IMEXNodeStatus,
    /// Name of the node.
    pub node_name: &'a str,
    /// This boot.
    pub boot_id: &'a str,
    /// The major that channels have now, if it is known.
    pub major: Option<u32>,
    /// Name and bytes of the CDI file, if there is one.
    pub file: Option<(&'a str, &'a [u8])>,
    /// An unguessable part for the CDI file's name, if there is none yet.
    pub token: &'a str,
}

/// A checkpoint that holds what the claim may still use, so that nobody else is given it before the claim is undone;
/// none if nothing tells. It is `Preparing`, so that a Prepare reads the claim anew.
pub fn checkpoint(traces: &Traces<'_>) -> Option<Checkpoint> {
    let asked = traces.claim.and_then(|claim| asked(traces, claim));
    by_claim(traces, asked.as_ref()).or_else(|| by_file(traces, asked.as_ref()))
}

/// The config of a claim that holds slots of this node.
fn asked(traces: &Traces<'_>, claim: &ResourceClaim) -> Option<ChannelConfig> {
    let key = key(traces);
    let devices = request::devices(claim, &key, names::DRIVER, traces.node_name).ok()?;
    request::channel_config(claim, &key, &devices).ok()
}

fn by_claim(traces: &Traces<'_>, asked: Option<&ChannelConfig>) -> Option<Checkpoint> {
    let asked = asked?;
    let entry = traces.node.channels.get(&asked.domain_id)?;
    let all_of = (asked.allocation_mode == AllocationMode::All).then_some(traces.node.channel_count);
    let token = match traces.file {
        Some((name, _)) => cdi::token_of(name, traces.uid)?,
        None => traces.token,
    };
    Some(holding(traces, token, Some((&asked.domain_id, entry)), traces.major?, all_of))
}

fn by_file(traces: &Traces<'_>, asked: Option<&ChannelConfig>) -> Option<Checkpoint> {
    let (name, contents) = traces.file?;
    let token = cdi::token_of(name, traces.uid)?;
    let spec: Value = serde_json::from_slice(contents).ok()?;
    let nodes = spec.pointer("/devices/0/containerEdits/deviceNodes").and_then(Value::as_array);
    let nodes = nodes.map(Vec::as_slice).unwrap_or_default();
    let number = |node: &Value, field: &str| node[field].as_u64().and_then(|number| u32::try_from(number).ok());
    let found = match nodes.first() {
        None => holding(traces, token, None, 0, None),
        Some(first) => {
            let (major, minor) = (number(first, "major")?, number(first, "minor")?);
            let all_of = (nodes.len() > 1).then_some(u32::try_from(nodes.len()).ok()? + 1);
            // Only an exclusive domain gives all its channels, and then the node lists one entry.
            let is_it = |cd_uid: &str, entry: &NodeChannel| {
                (all_of.is_some() || entry.channel == minor) && asked.is_none_or(|asked| asked.domain_id == cd_uid)
            };
            let entry = traces.node.channels.iter().find(|(cd_uid, entry)| is_it(cd_uid, entry))?;
            holding(traces, token, Some(entry), traces.major.unwrap_or(major), all_of)
        }
    };
    // A file that says anything but what the agent would write is not the agent's word.
    (cdi::file(&found).ok()??.contents == contents).then_some(found)
}

fn holding(
    traces: &Traces<'_>,
    token: &str,
    entry: Option<(&String, &NodeChannel)>,
    major: u32,
    all_of: Option<u32>,
) -> Checkpoint {
    let key = key(traces);
    let compute_domain = entry.map(|(cd_uid, _)| ComputeDomainRef {
        namespace: key.namespace.clone(),
        uid: cd_uid.clone(),
        ..ComputeDomainRef::default()
    });
    let channel =
        entry.map(|(_, entry)| ChannelRecord { channel: entry.channel, domain: entry.domain.clone(), major, all_of });
    Checkpoint {
        claim: key,
        driver: names::DRIVER.to_owned(),
        state: State::Preparing,
        boot_id: traces.boot_id.to_owned(),
        compute_domain,
        channel,
        cdi_token: Some(token.to_owned()),
        devices: Vec::new(),
    }
}

fn key(traces: &Traces<'_>) -> ClaimKey {
    let metadata = traces.claim.map(|claim| claim.metadata.clone()).unwrap_or_default();
    ClaimKey {
        namespace: metadata.namespace.unwrap_or_default(),
        name: metadata.name.unwrap_or_default(),
        uid: traces.uid.to_owned(),
    }
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
