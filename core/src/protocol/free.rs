use super::{lists, mark, name};
use crate::api::{ChannelState, IMEXDomain, IMEXDomainStatus, IMEXNode};

/// Takes the draining channels that no node uses or can still begin to use out of the map. `None` if there are none.
///
/// `nodes` are all IMEXNodes, read after `domain`. The IMEXNode of a lost node is among them, and what it lists stays
/// in the map: its number is quarantined until the node comes back or an operator releases it.
///
/// Guard of the write: the resourceVersion of `domain`.
pub fn free(domain: &IMEXDomain, nodes: &[IMEXNode]) -> Option<IMEXDomainStatus> {
    let mut status = domain.status.clone()?;
    let before = status.channels.len();
    status.channels.retain(|uid, entry| {
        entry.state == ChannelState::Active
            || nodes.iter().any(|node| obstacle(domain, node, uid, entry.epoch).is_some())
    });
    if status.channels.len() == before {
        return None;
    }
    status.epoch = status.epoch.saturating_add(1);
    Some(status)
}

/// A node that keeps a channel from being freed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Name of the node.
    pub node: String,
    /// What it keeps, for people.
    pub why: String,
}

/// Who keeps the ComputeDomain's channel from being freed.
pub fn holders(domain: &IMEXDomain, nodes: &[IMEXNode], cd_uid: &str) -> Vec<Holder> {
    let Some(entry) = domain.status.as_ref().and_then(|status| status.channels.get(cd_uid)) else { return Vec::new() };
    let why = |obstacle| match obstacle {
        Obstacle::Listed => format!("has not left channel {}", entry.channel),
        Obstacle::NoMark => "is not fenced yet".to_string(),
        Obstacle::Moving => "is being moved into the domain".to_string(),
    };
    nodes
        .iter()
        .filter_map(|node| {
            let obstacle = obstacle(domain, node, cd_uid, entry.epoch)?;
            Some(Holder { node: name(node).to_string(), why: why(obstacle) })
        })
        .collect()
}

/// Why a node keeps a channel from being freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// It lists the channel.
    Listed,
    /// It serves the domain and may still decide by a view from before the drain.
    NoMark,
    /// It has been told that it is about to serve the domain, or is a member that others expect, but is not in the
    /// domain yet: the write that moves it in may be under way with a fence from before the drain.
    Moving,
}

pub(super) fn obstacle(domain: &IMEXDomain, node: &IMEXNode, cd_uid: &str, drained: u64) -> Option<Obstacle> {
    let domain_name = name(domain);
    if lists(node, domain_name, cd_uid).is_some() {
        return Some(Obstacle::Listed);
    }
    if mark(node, domain_name) >= drained {
        return None;
    }
    if node.spec.domain.as_deref() == Some(domain_name) {
        return Some(Obstacle::NoMark);
    }
    let expected = domain.spec.members.get(name(node)).is_some_and(|member| !member.away);
    let told = node.spec.next.as_deref() == Some(domain_name);
    (expected || told).then_some(Obstacle::Moving)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{EpochMark, Member};
    use crate::protocol::{drain, fences, samples::*};

    fn drained() -> IMEXDomain {
        let mut domain = with_channel(with_channel(shared("d"), "a", 1), "b", 2);
        domain.status = drain(&domain, &["a".to_string()].into());
        domain
    }

    #[test]
    fn an_active_channel_is_never_freed() {
        assert_eq!(free(&with_channel(shared("d"), "a", 1), &[]), None);
    }

    #[test]
    fn a_drained_channel_goes_when_every_node_is_marked() {
        let domain = drained();
        let mut nodes = [member_of("n1", "d"), member_of("n2", "d")];
        assert_eq!(free(&domain, &nodes), None);
        for (node, mark) in fences(&domain, &nodes) {
            nodes.iter_mut().find(|n| name(*n) == node).unwrap().spec.fence = Some(mark);
        }
        let status = free(&domain, &nodes).unwrap();
        assert_eq!(status.channels.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(status.epoch, 4);
    }

    #[test]
    fn a_lost_node_quarantines_what_it_lists() {
        let domain = drained();
        let mut lost = listing("d", "a", 1);
        lost.spec.fence = Some(EpochMark { domain: "d".into(), epoch: 99 });
        assert_eq!(free(&domain, std::slice::from_ref(&lost)), None);
        assert_eq!(holders(&domain, &[lost], "a")[0].why, "has not left channel 1");
        let mut elsewhere = listing("d", "a", 1);
        elsewhere.spec.domain = Some("x".into());
        assert_eq!(free(&domain, &[elsewhere]), None);
        assert!(free(&domain, &[listing("x", "a", 1)]).is_some(), "the same CD in another domain is another channel");
    }

    #[test]
    fn a_node_elsewhere_needs_no_mark_unless_it_is_on_its_way_in() {
        let mut domain = drained();
        domain.spec.members.insert("n1".into(), Member { index: 0, address: String::new(), away: true });
        let node = [member_of("n1", "x")];
        assert!(free(&domain, &node).is_some());
        domain.spec.members.get_mut("n1").unwrap().away = false;
        assert_eq!(free(&domain, &node), None);
        assert!(fences(&domain, &node).is_empty(), "a fence of another domain would take the node's own away");
        assert!(free(&domain, &[]).is_some(), "a member without an IMEXNode cannot enter");
        domain.spec.members.clear();
        assert!(free(&domain, &node).is_some());
        let mut told = node;
        told[0].spec.next = Some("d".into());
        assert_eq!(free(&domain, &told), None, "its move may be under way, whatever has become of its membership");
    }
}
