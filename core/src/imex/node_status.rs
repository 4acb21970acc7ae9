use std::collections::{BTreeMap, BTreeSet};

use super::member_condition;
use crate::api::{
    ComputeDomainRef, DaemonStatus, IMEXDomain, IMEXNode, IMEXNodeStatus, ImexMode, IsolationMode, NodeChannel,
};
use crate::condition::{Draft, draft, settle_some};
use crate::fault::{Fault, reason};
use crate::identity::{Authentication, PEER_IDENTITY};
use crate::protocol;

/// What the agent knows of its node besides channels. What is `None` is not known, and stays as it was reported last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The clique; inside, none on a node without NVLink fabric.
    pub clique: Option<Option<String>>,
    /// Boot id.
    pub boot_id: Option<String>,
    /// `ImexChannelCount`.
    pub channel_count: Option<u32>,
    /// Version of the NVIDIA driver.
    pub driver_version: Option<String>,
    /// Addresses for peers, the preferred one first.
    pub addresses: Vec<String>,
    /// The daemon.
    pub daemon: Option<DaemonStatus>,
    /// Who runs the IMEX daemon.
    pub imex_mode: Option<ImexMode>,
    /// How its peers are authenticated, where it is ours.
    pub peer_authentication: Option<Authentication>,
    /// Until when the node can meet the peers of IMEX domains.
    pub certificates: Option<BTreeMap<String, String>>,
    /// Conditions; those that are not among them stay as they were reported.
    pub conditions: Vec<Draft>,
    /// Version of the agent.
    pub agent_version: String,
}

/// What the channel allocator wants of the node's channels, by ComputeDomain UID.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// ComputeDomains to enter, and how each is kept apart.
    pub enters: BTreeMap<String, (ComputeDomainRef, IsolationMode)>,
    /// ComputeDomains to leave.
    pub leaves: BTreeSet<String>,
    /// Entries that prepared claims rest on, to be put back where they were lost.
    pub keeps: BTreeMap<String, NodeChannel>,
}

/// What became of a wish, as far as the objects say it already.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The node's own object lists this channel.
    Entered(u32),
    /// The ComputeDomain has no number in the domain yet.
    NeedsChannel,
    /// Wish again when an object changes.
    Wait(Fault),
    /// Objects contradict each other.
    Refuse(Fault),
}

/// What to do about the node's own object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The status to write, guarded by the resourceVersion of the copy that was decided on; none if it is as it should
    /// be. Enters that this write makes are answered by the next decision, on what was written.
    pub status: Option<IMEXNodeStatus>,
    /// Enters that can be answered now.
    pub enters: BTreeMap<String, Answer>,
    /// Keeps that can be answered now.
    pub keeps: BTreeMap<String, Answer>,
}

/// Puts everything that the agent has to say into one status, so that one write carries it.
///
/// `strays`: an own write whose fate is not known may still arrive. It may be a leave, so an entry that is listed now is
/// no answer. It is written once more instead: when that has arrived, the guard of every earlier write fails.
pub fn decide(
    node: &IMEXNode,
    domain: Option<&IMEXDomain>,
    report: &Report,
    wishes: &Wishes,
    strays: bool,
    now: &str,
) -> Decision {
    let before = node.status.clone().unwrap_or_default();
    let mut decision = Decision::default();
    let mut node = node.clone();
    node.status = Some(reported(&node, before.clone(), report, now));
    for (uid, entry) in &wishes.keeps {
        let (put_back, answer) = keep(&node, domain, uid, entry);
        let listed = put_back.is_none();
        if let Some(status) = put_back {
            node.status = Some(status);
        }
        match answer {
            Answer::Entered(_) if !listed => {}
            Answer::Entered(_) if strays => write_anew(&mut node, uid, now),
            answer => {
                decision.keeps.insert(uid.clone(), answer);
            }
        }
    }
    if let Some(status) = protocol::leave(&node, domain, &wishes.leaves) {
        node.status = Some(status);
    }
    for (uid, (cd, mode)) in &wishes.enters {
        let Some(domain) = domain else {
            let text = format!("the IMEX domain of node {} has not been read yet", protocol::name(&node));
            decision.enters.insert(uid.clone(), Answer::Wait(Fault::retryable(reason::DOMAIN_PENDING, text)));
            continue;
        };
        let answer = match protocol::enter(&node, domain, cd, *mode, now) {
            protocol::Enter::Write { status, .. } => {
                node.status = Some(status);
                continue;
            }
            // An entry that this very decision puts back is not written yet.
            protocol::Enter::Already(_) if !before.channels.contains_key(uid) => continue,
            protocol::Enter::Already(_) if strays => {
                write_anew(&mut node, uid, now);
                continue;
            }
            protocol::Enter::Already(channel) => Answer::Entered(channel),
            protocol::Enter::NeedsChannel => Answer::NeedsChannel,
            protocol::Enter::Wait(fault) => Answer::Wait(fault),
            protocol::Enter::Refuse(fault) => Answer::Refuse(fault),
        };
        decision.enters.insert(uid.clone(), answer);
    }
    if let Some(status) = domain.and_then(|domain| protocol::observe(&node, domain)) {
        node.status = Some(status);
    }
    decision.status = node.status.filter(|status| *status != before);
    decision
}

/// Changes the entry in what does not count, so that writing it gives the object another version.
fn write_anew(node: &mut IMEXNode, uid: &str, now: &str) {
    if let Some(entry) = node.status.as_mut().and_then(|status| status.channels.get_mut(uid)) {
        now.clone_into(&mut entry.since);
    }
}

fn reported(node: &IMEXNode, mut status: IMEXNodeStatus, report: &Report, now: &str) -> IMEXNodeStatus {
    if let Some(clique) = &report.clique {
        status.clique.clone_from(clique);
    }
    if let Some(boot_id) = &report.boot_id {
        status.boot_id.clone_from(boot_id);
    }
    if let Some(count) = report.channel_count {
        status.channel_count = count;
    }
    if let Some(version) = &report.driver_version {
        status.driver_version.clone_from(version);
    }
    if let Some(daemon) = &report.daemon {
        status.daemon = daemon.clone();
    }
    if let Some(certificates) = &report.certificates {
        status.certificates.clone_from(certificates);
    }
    let mut conditions = report.conditions.clone();
    conditions.extend(member_condition(node, report.clique.as_ref()));
    if let Some(mode) = report.imex_mode {
        status.imex_mode = mode;
        status.peer_authentication = report.peer_authentication.map(|known| known.to_string());
        if mode == ImexMode::HostManaged {
            // Peers are the host's business: nothing of ours is true of them.
            (status.certificates, status.peer_authentication) = (BTreeMap::new(), None);
            conditions.retain(|draft| draft.type_ != PEER_IDENTITY);
            let text = "peers are authenticated as the host's IMEX configuration says, not by Heddle";
            conditions.push(draft(PEER_IDENTITY, "Unknown", "NotOurs", text));
        }
    }
    status.conditions = settle_some(&status.conditions, conditions, now);
    status.addresses.clone_from(&report.addresses);
    status.agent_version.clone_from(&report.agent_version);
    status
}

/// A prepared claim's entry: there, put back (then with the new status), or in contradiction to another. A number is never
/// changed by itself. What contradicts the domain is listed all the same: containers of this node can open that channel,
/// and whoever has it now is told so.
fn keep(
    node: &IMEXNode,
    domain: Option<&IMEXDomain>,
    uid: &str,
    entry: &NodeChannel,
) -> (Option<IMEXNodeStatus>, Answer) {
    let mut status = node.status.clone().unwrap_or_default();
    let answer = match clash(uid, entry, Some(&status), domain) {
        Some(fault) => Answer::Refuse(fault),
        None => Answer::Entered(entry.channel),
    };
    if status.channels.contains_key(uid) {
        return (None, answer);
    }
    status.channels.insert(uid.to_owned(), entry.clone());
    (Some(status), answer)
}

/// Whether the objects contradict an entry that prepared claims of the ComputeDomain `uid` rest on: the node lists
/// another number for it, or the domain does, or the domain gives the number to another ComputeDomain.
pub fn clash(
    uid: &str,
    entry: &NodeChannel,
    status: Option<&IMEXNodeStatus>,
    domain: Option<&IMEXDomain>,
) -> Option<Fault> {
    let NodeChannel { channel, domain: of, .. } = entry;
    let says = |other: String| {
        let text = format!(
            "claims of ComputeDomain {uid} on this node use channel {channel} of domain {of}, but {other}; delete these pods"
        );
        Some(Fault::permanent(reason::CHANNEL_CLASH, text))
    };
    let listed = status.and_then(|status| status.channels.get(uid));
    if let Some(listed) = listed.filter(|listed| (listed.channel, &listed.domain) != (*channel, of)) {
        return says(format!("its IMEXNode lists channel {} of domain {}", listed.channel, listed.domain));
    }
    let map = &domain.filter(|domain| protocol::name(*domain) == of)?.status.as_ref()?.channels;
    match map.get(uid) {
        Some(own) if own.channel != *channel => says(format!("the domain has channel {} for it", own.channel)),
        Some(_) => None,
        None => {
            let (_, other) = map.iter().find(|(_, other)| other.channel == *channel)?;
            says(format!("the domain has that channel for ComputeDomain {}", other.compute_domain))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::domain::tests::{domain, node};
    use super::*;
    use crate::api::{ChannelEntry, ChannelState, IMEXDomainStatus};

    const NOW: &str = "2026-11-30T00:00:00Z";

    fn cd(uid: &str) -> (ComputeDomainRef, IsolationMode) {
        let cd = ComputeDomainRef { namespace: "ns".into(), name: uid.into(), uid: uid.into() };
        (cd, IsolationMode::Channel)
    }

    fn with_channels(channels: &[(&str, u32, ChannelState)]) -> IMEXDomain {
        let mut domain = domain("d", 2);
        let channels = channels
            .iter()
            .map(|(uid, channel, state)| {
                let entry =
                    ChannelEntry { channel: *channel, state: *state, epoch: 3, compute_domain: format!("ns/{uid}") };
                ((*uid).to_owned(), entry)
            })
            .collect();
        domain.status = Some(IMEXDomainStatus { channels, epoch: 3, ..Default::default() });
        domain
    }

    fn listed(channel: u32) -> NodeChannel {
        NodeChannel { channel, domain: "d".into(), since: NOW.into() }
    }

    fn report() -> Report {
        Report { channel_count: Some(2048), ..Default::default() }
    }

    fn written(mut node: IMEXNode, decision: &Decision) -> IMEXNode {
        node.status.clone_from(&decision.status);
        node
    }

    #[test]
    fn one_write_carries_the_report_and_all_enters_which_are_answered_when_it_is_there() {
        let domain = with_channels(&[("green", 4, ChannelState::Active), ("blue", 5, ChannelState::Active)]);
        let report = Report { clique: Some(Some("c".into())), boot_id: Some("b".into()), ..report() };
        let mut wishes = Wishes::default();
        for uid in ["green", "blue", "yellow"] {
            wishes.enters.insert(uid.into(), cd(uid));
        }
        let first = decide(&node("n0", "d"), Some(&domain), &report, &wishes, false, NOW);
        let status = first.status.clone().unwrap();
        assert_eq!((status.clique.as_deref(), status.boot_id.as_str()), (Some("c"), "b"));
        assert_eq!(status.channels, BTreeMap::from([("green".into(), listed(4)), ("blue".into(), listed(5))]));
        assert_eq!(first.enters, BTreeMap::from([("yellow".into(), Answer::NeedsChannel)]));

        wishes.enters.remove("yellow");
        let second = decide(&written(node("n0", "d"), &first), Some(&domain), &report, &wishes, false, NOW);
        assert_eq!(second.status, None);
        let answers = [("green".into(), Answer::Entered(4)), ("blue".into(), Answer::Entered(5))];
        assert_eq!(second.enters, BTreeMap::from(answers));
    }

    #[test]
    fn while_an_earlier_write_may_still_arrive_an_entry_is_written_anew_before_it_is_an_answer() {
        let domain = with_channels(&[("green", 4, ChannelState::Active)]);
        let mut node = node("n0", "d");
        node.status = Some(IMEXNodeStatus {
            channel_count: 2048,
            channels: BTreeMap::from([("green".into(), listed(4))]),
            ..Default::default()
        });
        let enters = Wishes { enters: BTreeMap::from([("green".into(), cd("green"))]), ..Default::default() };
        let keeps = Wishes { keeps: BTreeMap::from([("green".into(), listed(4))]), ..Default::default() };
        for wishes in [&enters, &keeps] {
            let first = decide(&node, Some(&domain), &report(), wishes, true, "later");
            assert!(first.enters.is_empty() && first.keeps.is_empty(), "{first:?}");
            let entry = &first.status.as_ref().unwrap().channels["green"];
            assert_eq!((entry.channel, entry.since.as_str()), (4, "later"));
            let second = decide(&written(node.clone(), &first), Some(&domain), &report(), wishes, false, "even later");
            assert_eq!(second.status, None);
            let answers: Vec<_> = second.enters.values().chain(second.keeps.values()).collect();
            assert_eq!(answers, [&Answer::Entered(4)]);
        }
        let nobody_asks = decide(&node, Some(&domain), &report(), &Wishes::default(), true, "later");
        assert_eq!(nobody_asks, Decision::default(), "a start alone is no write");
    }

    #[test]
    fn a_condition_is_written_when_it_turns() {
        let guarded = |status| crate::condition::draft("RuntimeGuarded", status, "R", "m");
        let report = |status| Report { conditions: vec![guarded(status)], ..report() };
        let decide = |node: &IMEXNode, report: &Report, now: &str| {
            super::decide(node, Some(&domain("d", 2)), report, &Wishes::default(), false, now)
        };
        let first = decide(&node("n0", "d"), &report("True"), NOW);
        assert_eq!(first.status.as_ref().unwrap().conditions[0].status, "True");
        let node = written(node("n0", "d"), &first);
        assert_eq!(decide(&node, &report("True"), "2027-01-01T00:00:00Z").status, None);
        assert_eq!(
            decide(&node, &super::super::Report { channel_count: Some(2048), ..Default::default() }, NOW).status,
            None
        );
        let turned = decide(&node, &report("False"), "2027-01-01T00:00:00Z").status.unwrap();
        assert_eq!(turned.conditions[0].last_transition_time.0.to_string(), "2027-01-01T00:00:00Z");
    }

    #[test]
    fn nothing_new_is_no_write() {
        let mut node = node("n0", "d");
        node.status = Some(IMEXNodeStatus { channel_count: 2048, clique: Some("c".into()), ..Default::default() });
        let decision = decide(&node, Some(&domain("d", 2)), &report(), &Wishes::default(), false, NOW);
        assert_eq!(decision, Decision::default(), "and what is not known is not forgotten");
    }

    #[test]
    fn a_leave_and_an_enter_of_others_go_together() {
        let domain = with_channels(&[("green", 4, ChannelState::Draining), ("blue", 5, ChannelState::Active)]);
        let mut node = node("n0", "d");
        node.status = Some(IMEXNodeStatus {
            channel_count: 2048,
            channels: BTreeMap::from([("green".into(), listed(4))]),
            ..Default::default()
        });
        let wishes = Wishes {
            enters: BTreeMap::from([("blue".into(), cd("blue"))]),
            leaves: BTreeSet::from(["green".into()]),
            ..Default::default()
        };
        let status = decide(&node, Some(&domain), &report(), &wishes, false, NOW).status.unwrap();
        assert_eq!(status.channels, BTreeMap::from([("blue".into(), listed(5))]));
        assert_eq!(status.observed.unwrap().epoch, 3);
    }

    #[test]
    fn a_drain_is_observed_once() {
        let domain = with_channels(&[("green", 4, ChannelState::Draining)]);
        let first = decide(&node("n0", "d"), Some(&domain), &report(), &Wishes::default(), false, NOW);
        assert_eq!(first.status.as_ref().unwrap().observed.as_ref().unwrap().epoch, 3);
        let second =
            decide(&written(node("n0", "d"), &first), Some(&domain), &report(), &Wishes::default(), false, NOW);
        assert_eq!(second.status, None);
    }

    #[test]
    fn a_lost_entry_is_put_back_with_its_number() {
        let keeps = Wishes { keeps: BTreeMap::from([("green".into(), listed(4))]), ..Default::default() };
        for domain in [with_channels(&[("green", 4, ChannelState::Active)]), with_channels(&[])] {
            let first = decide(&node("n0", "d"), Some(&domain), &report(), &keeps, false, NOW);
            assert_eq!(first.status.as_ref().unwrap().channels["green"], listed(4));
            assert!(first.keeps.is_empty());
            let second = decide(&written(node("n0", "d"), &first), Some(&domain), &report(), &keeps, false, NOW);
            assert_eq!(second.keeps["green"], Answer::Entered(4));
        }
    }

    #[test]
    fn a_clash_is_said_and_listed_and_never_renumbered() {
        let keeps = Wishes { keeps: BTreeMap::from([("green".into(), listed(4))]), ..Default::default() };
        let refused = |node: &IMEXNode, domain: &IMEXDomain| {
            let decision = decide(node, Some(domain), &report(), &keeps, false, NOW);
            let refuse = |answer: &Answer| matches!(answer, Answer::Refuse(f) if f.reason == reason::CHANNEL_CLASH);
            assert!(refuse(&decision.keeps["green"]), "{decision:?}");
            decision.status.unwrap_or_else(|| node.status.clone().unwrap()).channels["green"].channel
        };
        for map in [("blue", 4, ChannelState::Active), ("green", 5, ChannelState::Active)] {
            assert_eq!(refused(&node("n0", "d"), &with_channels(&[map])), 4, "what containers can open is listed");
        }
        let mut node = node("n0", "d");
        node.status =
            Some(IMEXNodeStatus { channels: BTreeMap::from([("green".into(), listed(9))]), ..Default::default() });
        assert_eq!(refused(&node, &with_channels(&[])), 9);
    }

    #[test]
    fn what_heddle_would_know_of_peers_is_not_said_of_a_hosts_daemon() {
        let said = draft(PEER_IDENTITY, "False", "PeerIdentityMissing", "none yet");
        let report = Report {
            imex_mode: Some(ImexMode::HostManaged),
            peer_authentication: Some(Authentication::DomainCa),
            certificates: Some([("d".to_owned(), NOW.to_owned())].into()),
            conditions: vec![said],
            ..report()
        };
        let bare = node("n1", "d");
        let status = reported(&bare, IMEXNodeStatus::default(), &report, NOW);
        assert_eq!((status.imex_mode, status.certificates.len()), (ImexMode::HostManaged, 0));
        assert_eq!(status.peer_authentication, None);
        let [condition] = status.conditions.as_slice() else { panic!("{:?}", status.conditions) };
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("Unknown", "NotOurs"));
        let ours = Report { imex_mode: Some(ImexMode::DriverManaged), ..report };
        let status = reported(&bare, status, &ours, NOW);
        assert_eq!(status.peer_authentication.as_deref(), Some("domain-ca"));
        assert_eq!(status.conditions[0].reason, "PeerIdentityMissing");
        let unknown = Report { imex_mode: None, ..ours };
        assert_eq!(
            reported(&bare, status.clone(), &unknown, NOW).imex_mode,
            status.imex_mode,
            "it stays as it was reported"
        );
    }

    #[test]
    fn without_its_domain_an_enter_waits_and_a_leave_does_not() {
        let mut node = node("n0", "d");
        node.status =
            Some(IMEXNodeStatus { channels: BTreeMap::from([("green".into(), listed(4))]), ..Default::default() });
        let wishes = Wishes {
            enters: BTreeMap::from([("blue".into(), cd("blue"))]),
            leaves: BTreeSet::from(["green".into()]),
            ..Default::default()
        };
        let decision = decide(&node, None, &report(), &wishes, false, NOW);
        assert!(decision.status.unwrap().channels.is_empty());
        assert!(matches!(&decision.enters["blue"], Answer::Wait(fault) if fault.reason == reason::DOMAIN_PENDING));
    }
}
