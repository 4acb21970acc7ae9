use super::{marks, name};
use crate::api::{
    ChannelEntry, ChannelState, ComputeDomainRef, DomainKind, IMEXDomain, IMEXNode, IMEXNodeStatus, IsolationMode,
    NodeChannel,
};
use crate::fault::{Fault, reason};

/// What to do for a claim of a ComputeDomain on this node.
#[allow(clippy::large_enum_variant)] // one lives at a time, on the stack
#[derive(Clone, Debug, PartialEq)]
pub enum Enter {
    /// The node has entered this channel.
    Already(u32),
    /// Write this status to the own IMEXNode; the node has then entered `channel`.
    Write {
        /// The number.
        channel: u32,
        /// The whole new status.
        status: IMEXNodeStatus,
    },
    /// The ComputeDomain has no number in this domain: [`allocate`](super::allocate()) one.
    NeedsChannel,
    /// Decide again when an object changes.
    Wait(Fault),
    /// Objects contradict each other; nothing is re-numbered by itself.
    Refuse(Fault),
}

/// Enters the ComputeDomain's channel, before any effect of Prepare.
///
/// Guard of the write: the resourceVersion of `node`. What it rests on beyond that is checked here: the node serves
/// this domain, the domain is of the kind that the ComputeDomain's `mode` asks for, and the view of the domain is not
/// older than the node's marks.
pub fn enter(node: &IMEXNode, domain: &IMEXDomain, cd: &ComputeDomainRef, mode: IsolationMode, now: &str) -> Enter {
    if let Err(fault) = serves(node, domain).and_then(|()| admits(domain, cd, mode)).and_then(|()| fresh(node, domain))
    {
        return Enter::Wait(fault);
    }
    let entry = domain.status.as_ref().and_then(|status| status.channels.get(&cd.uid));
    let listed = node.status.as_ref().and_then(|status| status.channels.get(&cd.uid));
    let (node_name, domain_name) = (name(node), name(domain));
    let who = format!("ComputeDomain {}/{}", cd.namespace, cd.name);
    match (listed, entry) {
        (Some(listed), _) if listed.domain != domain_name => Enter::Wait(Fault::retryable(
            reason::DOMAIN_PENDING,
            format!("node {node_name} has not left channel {} of domain {} for {who}", listed.channel, listed.domain),
        )),
        // Claims that are prepared need no enter; a new one that waited here would keep the entry of a ComputeDomain that
        // is gone alive. Answered at once: the next try reads the ComputeDomain first.
        (Some(listed), Some(entry)) if listed.channel == entry.channel && entry.state == ChannelState::Draining => {
            Enter::Refuse(Fault::retryable(
                reason::CHANNEL_DRAINING,
                format!(
                    "channel {} of {who} is being drained in domain {domain_name}: no new claim gets it unless the ComputeDomain lives on and the channel is opened again",
                    entry.channel
                ),
            ))
        }
        (Some(listed), Some(entry)) if listed.channel == entry.channel => Enter::Already(entry.channel),
        (Some(listed), Some(entry)) => Enter::Refuse(Fault::permanent(
            reason::CHANNEL_CLASH,
            format!(
                "node {node_name} uses channel {} for {who}, domain {domain_name} says {}; delete its pods on this node",
                listed.channel, entry.channel
            ),
        )),
        (Some(listed), None) => Enter::Wait(Fault::retryable(
            reason::CHANNEL_CLASH,
            format!(
                "node {node_name} uses channel {} for {who}, domain {domain_name} no longer lists it; waiting for the controller to restore it",
                listed.channel
            ),
        )),
        (None, None) => match forgotten(node, domain) {
            Some((uid, channel)) => Enter::Wait(Fault::retryable(
                reason::CHANNEL_CLASH,
                format!(
                    "node {node_name} uses channel {channel} for the ComputeDomain of UID {uid}, which domain {domain_name} no longer lists: nobody gets a number before the controller has restored it"
                ),
            )),
            None => Enter::NeedsChannel,
        },
        (None, Some(entry)) if entry.state == ChannelState::Draining => Enter::Wait(Fault::retryable(
            reason::CHANNEL_DRAINING,
            format!("channel {} of {who} is being drained in domain {domain_name}", entry.channel),
        )),
        (None, Some(entry)) => match (held(node, domain, cd, entry), beyond(node, entry.channel)) {
            (Some(fault), _) => Enter::Refuse(fault),
            (None, Some(count)) => Enter::Refuse(Fault::permanent(
                reason::MEMBER_MISMATCH,
                format!(
                    "node {node_name} has {count} IMEX channels, {who} has channel {} in domain {domain_name}; set NVreg ImexChannelCount alike on all nodes",
                    entry.channel
                ),
            )),
            (None, None) => {
                let mut status = node.status.clone().unwrap_or_default();
                let listed = NodeChannel { channel: entry.channel, domain: domain_name.into(), since: now.into() };
                status.channels.insert(cd.uid.clone(), listed);
                Enter::Write { channel: entry.channel, status }
            }
        },
    }
}

/// The node's daemon is meant for this domain.
fn serves(node: &IMEXNode, domain: &IMEXDomain) -> Result<(), Fault> {
    if node.spec.domain.as_deref() == Some(name(domain)) {
        return Ok(());
    }
    let now = node.spec.domain.as_deref().unwrap_or("none yet");
    let text = format!("node {} serves IMEX domain {now}, not {}", name(node), name(domain));
    Err(Fault::retryable(reason::DOMAIN_PENDING, text))
}

/// An exclusive domain is for its own ComputeDomain alone, a shared one for those that want no other.
pub(super) fn admits(domain: &IMEXDomain, cd: &ComputeDomainRef, mode: IsolationMode) -> Result<(), Fault> {
    let (domain_name, who) = (name(domain), format!("ComputeDomain {}/{}", cd.namespace, cd.name));
    let owner = domain.spec.compute_domain.as_ref();
    let text = match (domain.spec.kind, mode) {
        (DomainKind::Shared, IsolationMode::Channel) => return Ok(()),
        (DomainKind::Shared, IsolationMode::Domain) => {
            format!("{who} needs an IMEX domain of its own, {domain_name} is shared")
        }
        (DomainKind::Exclusive, _) if owner.is_none_or(|owner| owner.uid != cd.uid) => {
            let owner = owner.map_or_else(|| "another".into(), |owner| format!("{}/{}", owner.namespace, owner.name));
            format!("IMEX domain {domain_name} belongs to ComputeDomain {owner} alone")
        }
        (DomainKind::Exclusive, IsolationMode::Domain) => return Ok(()),
        (DomainKind::Exclusive, IsolationMode::Channel) => {
            format!("{who} needs the shared IMEX domain of its clique, {domain_name} is exclusive")
        }
    };
    Err(Fault::retryable(reason::DOMAIN_PENDING, text))
}

/// The view of the domain is not older than what the node must decide by.
fn fresh(node: &IMEXNode, domain: &IMEXDomain) -> Result<(), Fault> {
    let known = domain.status.as_ref().map_or(0, |status| status.epoch);
    let needed = marks::mark(node, name(domain));
    if known >= needed {
        return Ok(());
    }
    let text =
        format!("node {} knows IMEX domain {} up to epoch {known}, needs epoch {needed}", name(node), name(domain));
    Err(Fault::retryable(reason::VIEW_STALE, text))
}

/// What the node uses and the domain's map takes for free. A number that is given by such a map may be in use.
fn forgotten<'a>(node: &'a IMEXNode, domain: &IMEXDomain) -> Option<(&'a str, u32)> {
    let mut listed = node.status.iter().flat_map(|status| &status.channels);
    let given =
        |number: u32| domain.status.iter().any(|map| map.channels.values().any(|other| other.channel == number));
    let lost = listed.find(|(_, entry)| entry.domain == name(domain) && !given(entry.channel));
    lost.map(|(uid, entry)| (uid.as_str(), entry.channel))
}

/// Why the number must not be entered: another has it too, in the map, or on this node, which may know of one that the map has
/// lost.
fn held(node: &IMEXNode, domain: &IMEXDomain, cd: &ComputeDomainRef, entry: &ChannelEntry) -> Option<Fault> {
    let (number, domain_name) = (entry.channel, name(domain));
    let who = format!("ComputeDomain {}/{}", cd.namespace, cd.name);
    let mut map = domain.status.iter().flat_map(|status| &status.channels);
    if let Some((uid, other)) = map.find(|(uid, other)| **uid != cd.uid && other.channel == number) {
        let other = match other.compute_domain.as_str() {
            "" => format!("the ComputeDomain of UID {uid}"),
            full_name => format!("ComputeDomain {full_name}"),
        };
        let text = format!(
            "{who} and {other} both have channel {number} in domain {domain_name}: no new claim of either gets it; make one of the two ComputeDomains anew"
        );
        return Some(Fault::permanent(reason::CHANNEL_CLASH, text));
    }
    let mut listed = node.status.iter().flat_map(|status| &status.channels);
    let (uid, _) =
        listed.find(|(uid, other)| **uid != cd.uid && other.channel == number && other.domain == domain_name)?;
    let text = format!(
        "pods on node {} use channel {number} of domain {domain_name}, which is that of {who}, for the ComputeDomain of UID {uid}: {who} gets it there when they have ended",
        name(node)
    );
    Some(Fault::retryable(reason::CHANNEL_CLASH, text))
}

/// The node's number of channels if `channel` is not below it. A node that reports none is not judged.
fn beyond(node: &IMEXNode, channel: u32) -> Option<u32> {
    let count = node.status.as_ref().map_or(0, |status| status.channel_count);
    (count > 0 && channel >= count).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EpochMark;
    use crate::api::IsolationMode::{Channel, Domain};
    use crate::protocol::{allocate, drain, samples::*};

    fn wait(decision: Enter) -> &'static str {
        match decision {
            Enter::Wait(fault) => fault.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_node_enters_the_number_that_the_domain_lists() {
        let domain = with_channel(shared("d"), "green", 7);
        let mut node = member_of("n1", "d");
        let Enter::Write { channel: 7, status } = enter(&node, &domain, &cd("green"), Channel, "now") else { panic!() };
        assert_eq!(status.channels["green"], NodeChannel { channel: 7, domain: "d".into(), since: "now".into() });
        node.status = Some(status);
        assert_eq!(enter(&node, &domain, &cd("green"), Channel, "later"), Enter::Already(7));
        assert_eq!(enter(&node, &domain, &cd("blue"), Channel, "now"), Enter::NeedsChannel);
    }

    #[test]
    fn a_node_of_another_domain_waits() {
        let domain = with_channel(shared("d"), "green", 7);
        assert_eq!(wait(enter(&member_of("n1", "x"), &domain, &cd("green"), Channel, "")), reason::DOMAIN_PENDING);
        assert_eq!(
            wait(enter(&IMEXNode::new("n1", Default::default()), &domain, &cd("green"), Channel, "")),
            reason::DOMAIN_PENDING
        );
        let foreign = exclusive("x", "red");
        assert_eq!(wait(enter(&member_of("n1", "x"), &foreign, &cd("green"), Channel, "")), reason::DOMAIN_PENDING);
        let mut left_behind = member_of("n1", "d");
        left_behind.status = listing("x", "green", 3).status;
        assert_eq!(wait(enter(&left_behind, &domain, &cd("green"), Channel, "")), reason::DOMAIN_PENDING);
    }

    #[test]
    fn a_compute_domain_enters_no_domain_of_the_other_kind() {
        let own = with_channel(exclusive("x", "red"), "red", 1);
        let shared = with_channel(shared("x"), "red", 1);
        let node = member_of("n1", "x");
        for (domain, mode, enters) in
            [(&own, Domain, true), (&own, Channel, false), (&shared, Domain, false), (&shared, Channel, true)]
        {
            let decision = enter(&node, domain, &cd("red"), mode, "");
            assert_eq!(matches!(decision, Enter::Write { .. }), enters, "{mode:?}: {decision:?}");
            if !enters {
                assert_eq!(wait(decision), reason::DOMAIN_PENDING);
                assert_eq!(allocate(domain, &cd("red"), mode, 8).unwrap_err().reason, reason::DOMAIN_PENDING);
            }
        }
    }

    #[test]
    fn a_view_older_than_a_mark_decides_nothing() {
        let domain = with_channel(shared("d"), "green", 7);
        let epoch = domain.status.as_ref().unwrap().epoch;
        let mut node = member_of("n1", "d");
        node.spec.fence = Some(EpochMark { domain: "d".into(), epoch: epoch + 1 });
        assert_eq!(wait(enter(&node, &domain, &cd("green"), Channel, "")), reason::VIEW_STALE);
        node.spec.fence = Some(EpochMark { domain: "d".into(), epoch });
        assert!(matches!(enter(&node, &domain, &cd("green"), Channel, ""), Enter::Write { .. }));
        node.status.get_or_insert_default().observed = Some(EpochMark { domain: "d".into(), epoch: epoch + 1 });
        assert_eq!(wait(enter(&node, &domain, &cd("green"), Channel, "")), reason::VIEW_STALE);
    }

    #[test]
    fn nobody_new_enters_a_draining_channel() {
        let mut domain = with_channel(shared("d"), "green", 7);
        domain.status = drain(&domain, &["green".to_string()].into());
        assert_eq!(wait(enter(&member_of("n1", "d"), &domain, &cd("green"), Channel, "")), reason::CHANNEL_DRAINING);
        let inside = listing("d", "green", 7);
        assert!(
            matches!(enter(&inside, &domain, &cd("green"), Channel, ""), Enter::Refuse(f) if f.reason == reason::CHANNEL_DRAINING),
            "not even beside a claim of before"
        );
    }

    #[test]
    fn where_the_map_has_lost_what_is_in_use_nobody_gets_a_number() {
        let node = listing("d", "blue", 2);
        assert_eq!(wait(enter(&node, &shared("d"), &cd("green"), Channel, "")), reason::CHANNEL_CLASH);
        for holder in ["blue", "red"] {
            let known = with_channel(shared("d"), holder, 2);
            assert_eq!(
                enter(&node, &known, &cd("green"), Channel, ""),
                Enter::NeedsChannel,
                "nobody gets what is given"
            );
        }
        let mut elsewhere = listing("x", "blue", 2);
        elsewhere.spec.domain = Some("d".into());
        assert_eq!(enter(&elsewhere, &shared("d"), &cd("green"), Channel, ""), Enter::NeedsChannel);
    }

    #[test]
    fn a_number_that_two_have_is_entered_for_neither() {
        let twice = with_channel(with_channel(shared("d"), "green", 7), "blue", 7);
        let lost = with_channel(shared("d"), "green", 7);
        for (node, domain, says) in [
            (member_of("n1", "d"), &twice, ["ComputeDomain team/blue both", "anew"]),
            (listing("d", "blue", 7), &lost, ["the ComputeDomain of UID blue", "when they have ended"]),
        ] {
            let Enter::Refuse(fault) = enter(&node, domain, &cd("green"), Channel, "") else { panic!("{node:?}") };
            assert_eq!(fault.reason, reason::CHANNEL_CLASH);
            assert!(says.iter().all(|word| fault.message.contains(word)), "{fault}");
        }
        // The same number of another domain is another channel.
        assert!(matches!(
            enter(&listing("x", "blue", 7), &lost, &cd("green"), Channel, ""),
            Enter::Wait(_) | Enter::Write { .. }
        ));
    }

    #[test]
    fn contradictions_are_never_renumbered() {
        let domain = with_channel(shared("d"), "green", 7);
        assert!(
            matches!(enter(&listing("d", "green", 3), &domain, &cd("green"), Channel, ""), Enter::Refuse(f) if f.reason == reason::CHANNEL_CLASH)
        );
        assert_eq!(wait(enter(&listing("d", "blue", 3), &domain, &cd("blue"), Channel, "")), reason::CHANNEL_CLASH);
        let mut small = member_of("n1", "d");
        small.status.get_or_insert_default().channel_count = 7;
        assert!(
            matches!(enter(&small, &domain, &cd("green"), Channel, ""), Enter::Refuse(f) if f.reason == reason::MEMBER_MISMATCH)
        );
    }
}
