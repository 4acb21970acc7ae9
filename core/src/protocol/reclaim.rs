use std::collections::BTreeSet;

use super::drain::turn;
use super::{lists, name};
use crate::api::{ChannelState, IMEXDomain, IMEXDomainStatus, IMEXNode};

/// Whether the domain has no free number below `channel_count`.
pub fn exhausted(domain: &IMEXDomain, channel_count: u32) -> bool {
    let Some(status) = &domain.status else { return channel_count < 2 };
    // Most domains have far more numbers than entries.
    if status.channels.len() + 1 < channel_count as usize {
        return false;
    }
    let used: BTreeSet<u32> = status.channels.values().map(|entry| entry.channel).collect();
    (1..channel_count).all(|number| used.contains(&number))
}

/// The channels to drain so that `wanted` ComputeDomains which found no free number get one: of ComputeDomains that no
/// node uses and that are not `needed`, those first whose entries have not changed for the longest. What is being
/// drained and is listed by no node comes back anyway.
///
/// Guard of the write that drains them ([`drain`](super::drain())): the resourceVersion of `domain`. A node may enter
/// at the same moment, or a claim may come: then the entry is not freed, and [`revive`] opens it again.
pub fn reclaim(
    domain: &IMEXDomain,
    nodes: &[IMEXNode],
    wanted: usize,
    needed: impl Fn(&str) -> bool,
) -> BTreeSet<String> {
    let Some(status) = &domain.status else { return BTreeSet::new() };
    let unused = |uid: &str| !nodes.iter().any(|node| lists(node, name(domain), uid).is_some());
    let coming =
        status.channels.iter().filter(|(uid, entry)| entry.state == ChannelState::Draining && unused(uid)).count();
    let mut idle: Vec<_> = status
        .channels
        .iter()
        .filter(|(uid, entry)| entry.state == ChannelState::Active && unused(uid) && !needed(uid))
        .map(|(uid, entry)| (entry.epoch, uid))
        .collect();
    idle.sort_unstable();
    idle.into_iter().take(wanted.saturating_sub(coming)).map(|(_, uid)| uid.clone()).collect()
}

/// Opens draining channels again whose ComputeDomains live and are needed after all. `None` if none of them is draining.
///
/// Guard of the write: the resourceVersion of `domain`, so that no number is opened which has just been freed.
pub fn revive(domain: &IMEXDomain, needed: &BTreeSet<String>) -> Option<IMEXDomainStatus> {
    turn(domain, needed, ChannelState::Draining, ChannelState::Active)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{drain, samples::*};

    fn full() -> IMEXDomain {
        with_channel(with_channel(with_channel(shared("d"), "a", 1), "b", 2), "c", 3)
    }

    fn reclaimed(domain: &IMEXDomain, nodes: &[IMEXNode], wanted: usize, needed: &str) -> Vec<String> {
        reclaim(domain, nodes, wanted, |uid| uid == needed).into_iter().collect()
    }

    #[test]
    fn a_domain_is_exhausted_when_every_number_is_taken() {
        assert!(exhausted(&full(), 4));
        assert!(!exhausted(&full(), 5));
        // One beyond the end, as after a change of the module's setting, leaves room below it.
        assert!(!exhausted(&with_channel(with_channel(shared("d"), "a", 1), "b", 7), 3));
        for count in [0, 1] {
            assert!(exhausted(&shared("d"), count), "count {count} leaves no number");
        }
        assert!(!exhausted(&shared("d"), 2));
    }

    #[test]
    fn what_nobody_uses_is_reclaimed_the_oldest_first_and_no_more_than_wanted() {
        assert_eq!(reclaimed(&full(), &[], 1, ""), ["a"]);
        assert_eq!(reclaimed(&full(), &[], 2, "a"), ["b", "c"]);
        assert_eq!(reclaimed(&full(), &[listing("d", "a", 1)], 9, "c"), ["b"]);
        assert_eq!(reclaimed(&full(), &[listing("elsewhere", "a", 1)], 1, ""), ["a"], "that is another channel");
        assert!(reclaimed(&full(), &[], 0, "").is_empty());
        assert!(reclaimed(&shared("d"), &[], 3, "").is_empty());
    }

    #[test]
    fn what_comes_back_anyway_is_waited_for_but_not_what_a_node_holds() {
        let mut domain = full();
        domain.status = drain(&domain, &["b".to_string()].into());
        assert!(reclaimed(&domain, &[], 1, "").is_empty());
        assert_eq!(reclaimed(&domain, &[], 2, ""), ["a"]);
        assert_eq!(reclaimed(&domain, &[listing("d", "b", 2)], 1, ""), ["a"], "a quarantined number may never come");
    }

    #[test]
    fn one_that_is_needed_after_all_is_opened_again_with_a_newer_epoch() {
        let mut domain = full();
        domain.status = drain(&domain, &["a".to_string()].into());
        assert_eq!(revive(&domain, &["b".to_string()].into()), None);
        let status = revive(&domain, &["a".to_string()].into()).unwrap();
        let entry = &status.channels["a"];
        assert_eq!((entry.state, entry.epoch, entry.channel, status.epoch), (ChannelState::Active, 5, 1, 5));
        domain.status = drain(&IMEXDomain { status: Some(status), ..domain }, &["a".to_string()].into());
        assert_eq!(domain.status.unwrap().channels["a"].epoch, 6, "marks of the first drain say nothing of the second");
    }
}
