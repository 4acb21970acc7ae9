use std::collections::BTreeMap;

use super::{mark, name};
use crate::api::{ChannelEntry, ChannelState, IMEXDomain, IMEXDomainStatus, IMEXNode};

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
                known => clashes.push(format!(
                    "node {} uses channel {} of domain {domain_name} for ComputeDomain {uid}, {}; delete the pods of one of them",
                    name(node),
                    entry.channel,
                    match known {
                        Some(known) => format!("the domain gives it {}", known.channel),
                        None => format!("the domain gives that to {}", owner.map_or("nobody", String::as_str)),
                    }
                )),
            }
        }
    }
    let seen = nodes.iter().map(|node| mark(node, domain_name)).max().unwrap_or_default();
    if status == before && seen <= before.epoch {
        return Restore { status: None, clashes };
    }
    status.epoch = seen.max(before.epoch) + 1;
    for (uid, entry) in &mut status.channels {
        if !before.channels.contains_key(uid) {
            entry.epoch = status.epoch;
            status.last_channel = status.last_channel.max(entry.channel);
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
    }
}
