use std::collections::BTreeMap;

use super::{mark, name};
use crate::api::{ChannelEntry, ChannelState, IMEXDomain, IMEXDomainStatus, IMEXNode};

/// A mark so far above its domain's epoch is no trace of a lost map: no cluster has made as many changes since its last backup.
/// Followed, it would use the epochs up.
const BELIEVED: u64 = 1 << 32;

/// What a lost or rolled-back channel map must have again.
#[derive(Clone, Debug, PartialEq)]
pub struct Restore {
    /// The whole new status, if something can be put back.
    pub status: Option<IMEXDomainStatus>,
    /// What cannot, in words: numbers are never changed by themselves.
    pub clashes: Vec<String>,
}

/// Puts back into the map what nodes have entered, and lifts its epoch to what they have seen: below that they decide
/// nothing. A number that another ComputeDomain has by now, or two numbers for one, are clashes. `full_name` tells
/// `namespace/name` of a UID; an entry whose ComputeDomain is unknown gets none.
///
/// Guard of the write: the resourceVersion of `domain`, with `nodes` read after it.
pub fn restore(domain: &IMEXDomain, nodes: &[IMEXNode], full_name: impl Fn(&str) -> Option<String>) -> Restore {
    let before = domain.status.clone().unwrap_or_default();
    let domain_name = name(domain);
    let mut status = before.clone();
    let mut clashes = Vec::new();
    let mut used: BTreeMap<u32, String> =
        status.channels.iter().map(|(uid, entry)| (entry.channel, uid.clone())).collect();
    for node in nodes {
        let listed = node.status.iter().flat_map(|status| &status.channels);
        for (uid, entry) in listed.filter(|(_, entry)| entry.domain == domain_name) {
            let owner = used.get(&entry.channel);
            match status.channels.get(uid) {
                Some(known) if known.channel == entry.channel => {}
                None if owner.is_none() => {
                    used.insert(entry.channel, uid.clone());
                    let restored = ChannelEntry {
                        channel: entry.channel,
                        state: ChannelState::Active,
                        epoch: 0,
                        compute_domain: full_name(uid).unwrap_or_default(),
                    };
                    status.channels.insert(uid.clone(), restored);
                }
                known => {
                    // Nobody has it in the map, and somebody uses it: it is the last to be given.
                    if owner.is_none() {
                        status.last_channel = status.last_channel.max(entry.channel);
                    }
                    clashes.push(format!(
                    "node {} uses channel {} of domain {domain_name} for ComputeDomain {uid}, {}; delete the pods of one of them",
                    name(node),
                    entry.channel,
                    match known {
                        Some(known) => format!("the domain gives it {}", known.channel),
                        None => format!("the domain gives that to {}", owner.map_or("nobody", String::as_str)),
                    }
                    ));
                }
            }
        }
    }
    let mut seen = 0;
    for node in nodes {
        let mark = mark(node, domain_name);
        if mark.saturating_sub(before.epoch) > BELIEVED {
            clashes.push(format!(
                "node {} says that it has seen epoch {mark} of domain {domain_name}, which is at {}: that cannot be; delete its \
                 IMEXNode, which its agent makes anew, and find out who has written it",
                name(node),
                before.epoch
            ));
        } else {
            seen = seen.max(mark);
        }
    }
    if status == before && seen <= before.epoch && !before.channels.values().any(|entry| before.is_behind(entry)) {
        return Restore { status: None, clashes };
    }
    status.epoch = seen.max(before.epoch).saturating_add(1);
    for (uid, entry) in &mut status.channels {
        if !before.channels.contains_key(uid) {
            entry.epoch = status.epoch;
            status.last_channel = status.last_channel.max(entry.channel);
        } else if before.is_behind(entry) {
            entry.epoch = status.epoch;
        }
    }
    Restore { status: Some(status), clashes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EpochMark;
    use crate::protocol::samples::*;

    #[test]
    fn a_lost_map_is_built_from_what_nodes_have_entered() {
        let mut node = listing("d", "green", 7);
        node.spec.fence = Some(EpochMark { domain: "d".into(), epoch: 12 });
        let status = restore(&shared("d"), &[node.clone(), listing("x", "red", 1)], |_| None).status.unwrap();
        assert_eq!((status.epoch, status.last_channel, status.channels.len()), (13, 7, 1));
        assert_eq!((status.channels["green"].channel, status.channels["green"].epoch), (7, 13));
        let restored = IMEXDomain { status: Some(status), ..shared("d") };
        assert_eq!(restore(&restored, &[node], |_| None), Restore { status: None, clashes: vec![] });
    }

    #[test]
    fn a_mark_that_cannot_be_lifts_nothing_and_is_told() {
        let mut liar = member_of("n1", "d");
        for epoch in [u64::MAX, 1 << 53, BELIEVED + 2] {
            liar.status.get_or_insert_default().observed = Some(EpochMark { domain: "d".into(), epoch });
            let domain = with_channel(shared("d"), "blue", 7);
            let Restore { status: None, clashes } = restore(&domain, std::slice::from_ref(&liar), |_| None) else {
                panic!("{epoch}")
            };
            assert!(clashes[0].contains("node n1 says that it has seen epoch"), "{clashes:?}");
        }
        // As after a backup of long ago.
        liar.status.get_or_insert_default().observed = Some(EpochMark { domain: "d".into(), epoch: 1_000_000 });
        let restored = restore(&with_channel(shared("d"), "blue", 7), &[liar], |_| None);
        assert_eq!(restored.status.unwrap().epoch, 1_000_001);
    }

    #[test]
    fn an_entry_ahead_of_its_map_gets_an_epoch_that_a_fence_reaches() {
        let mut domain = with_channel(shared("d"), "blue", 7);
        domain.status.as_mut().unwrap().channels.get_mut("blue").unwrap().epoch = u64::MAX;
        let status = restore(&domain, &[], |_| None).status.unwrap();
        assert_eq!((status.epoch, status.channels["blue"].epoch), (2, 2), "so that a fence can reach it");
        let restored = IMEXDomain { status: Some(status), ..domain };
        assert_eq!(restore(&restored, &[], |_| None), Restore { status: None, clashes: vec![] });
    }

    #[test]
    fn a_clash_is_told_and_nothing_renumbered() {
        let domain = with_channel(shared("d"), "blue", 7);
        let Restore { status: None, clashes } = restore(&domain, &[listing("d", "green", 7)], |_| None) else {
            panic!()
        };
        assert!(clashes[0].contains("the domain gives that to blue"), "{clashes:?}");
        let Restore { status: None, clashes } = restore(&domain, &[listing("d", "blue", 3)], |_| None) else {
            panic!()
        };
        assert!(clashes[0].contains("the domain gives it 7"), "{clashes:?}");
        // A number that nobody has in the map and that is in use is the last to be given.
        let Restore { status: Some(status), clashes } = restore(&domain, &[listing("d", "blue", 9)], |_| None) else {
            panic!()
        };
        assert_eq!((status.last_channel, status.channels.len(), clashes.len()), (9, 1, 1));
        let restored = IMEXDomain { status: Some(status), ..domain };
        assert_eq!(restore(&restored, &[listing("d", "blue", 9)], |_| None).status, None, "once");
    }
}
