use crate::api::{EpochMark, IMEXNode, NodeChannel};

/// The newest epoch of `domain` that the node is known to decide by: its fence, or what it has observed.
pub fn mark(node: &IMEXNode, domain: &str) -> u64 {
    let of = |mark: &Option<EpochMark>| mark.as_ref().filter(|m| m.domain == domain).map_or(0, |m| m.epoch);
    of(&node.spec.fence).max(node.status.as_ref().map_or(0, |status| of(&status.observed)))
}

/// The channel of `domain` that the node lists for the ComputeDomain.
pub fn lists<'a>(node: &'a IMEXNode, domain: &str, cd_uid: &str) -> Option<&'a NodeChannel> {
    node.status.as_ref()?.channels.get(cd_uid).filter(|entry| entry.domain == domain)
}

/// `observed` after a decision on `domain` at `epoch`: a mark never goes back.
pub(super) fn observed(before: Option<&EpochMark>, domain: &str, epoch: u64) -> EpochMark {
    let known = before.filter(|mark| mark.domain == domain).map_or(0, |mark| mark.epoch);
    EpochMark { domain: domain.into(), epoch: epoch.max(known) }
}
