use std::collections::{BTreeMap, BTreeSet};

use super::clique::is_host_managed;
use super::lifecycle::Phase;
use super::quarantine::{self, Quarantined};
use super::{Cd, View, Write, conditions, health, placement};
use crate::api::{
    ChannelEntry, ChannelState, CliqueStatus, ComputeDomainStatus, IMEXDomain, IMEXNode, IsolationMode, Member,
    NodeStatus, ReadyState,
};
use crate::condition::{self, Condition};
use crate::fault::Fault;
use crate::identity::Authentication;
use crate::imex::IMEX_MODE;
use crate::protocol::{exhausted as exhausted_below, lists, name};
use crate::runtime_guard::RUNTIME_GUARDED;

/// Nodes that a status lists by name. Its counts are never cut.
const LISTED_NODES: usize = 64;

/// The write of a ComputeDomain's status; none if it says all that already.
pub fn write(view: &View, cd: &Cd, phase: &Phase, now: &str) -> Option<Write> {
    let before = cd.status.clone().unwrap_or_default();
    let facts = Facts::of(view, cd);
    let conditions = conditions::conditions(&facts, phase);
    let notes = conditions::notes(&before.conditions, &conditions);
    let status = status(&facts, condition::settle(&before.conditions, conditions, cd.generation, now));
    (cd.status.as_ref() != Some(&status)).then(|| Write::Status { cd: Box::new(cd.clone()), status, notes })
}

/// What there is to say of a ComputeDomain.
pub(super) struct Facts<'a> {
    pub cd: &'a Cd,
    /// How it is to be kept apart.
    pub mode: IsolationMode,
    /// Its spec does not say so any more.
    pub lost: bool,
    /// Its channels.
    pub channels: Vec<(&'a IMEXDomain, &'a ChannelEntry)>,
    /// The nodes that use it.
    pub nodes: Vec<Use<'a>>,
    /// Pairs of its nodes that are not connected.
    pub split: Vec<String>,
    /// It wants domains of its own, and every daemon of the cluster is its host's.
    pub unservable: bool,
    /// Domains in which it wants a number and none is free.
    pub exhausted: Vec<&'a IMEXDomain>,
    /// Its numbers that lost nodes keep from being given to others.
    pub quarantined: Vec<Quarantined<'a>>,
    /// The channel that it had last was taken back.
    pub taken_back: bool,
    /// Nodes that use its number for another ComputeDomain, in words.
    pub clashes: Vec<String>,
    /// Nodes of the cluster that have an agent.
    pub cluster: usize,
}

/// A node that uses a ComputeDomain: its claims are allocated there, or it has entered the channel.
pub(super) struct Use<'a> {
    pub name: &'a str,
    pub node: Option<&'a IMEXNode>,
    pub index: u32,
    /// Ready, or what is missing, to follow the node's name.
    pub state: Result<(), String>,
    /// It has a channel, or needs none.
    pub entered: bool,
    /// Why it does not serve the exclusive domain yet, to follow the node's name.
    pub not_isolated: Option<String>,
    /// The move to that domain waits for a certificate that the node's agent does not ask for.
    pub never_certified: bool,
    /// Its daemon is the host's, which no exclusive ComputeDomain can have.
    pub host_managed: bool,
    /// What is wrong with it.
    pub problem: Option<&'a Fault>,
    /// What its driver says must be done.
    pub recovery: Option<&'a str>,
    /// Its container runtime gives pods channels by itself: how, and what to set.
    pub open_door: Option<&'a str>,
}

impl<'a> Facts<'a> {
    fn of(view: &'a View, cd: &'a Cd) -> Self {
        let channels: Vec<_> = view
            .domains_with(cd.uid())
            .filter_map(|domain| Some((domain, domain.status.as_ref()?.channels.get(cd.uid())?)))
            .collect();
        let claimed = view.claims(cd).flat_map(|claim| claim.nodes.iter().map(String::as_str));
        let names: BTreeSet<&str> = claimed.chain(view.nodes_with(cd.uid()).map(name)).collect();
        let nodes: Vec<_> = names.into_iter().map(|node| Use::of(view, cd, node)).collect();
        let exhausted = exhausted(view, &nodes, &channels);
        let split = split(view, &nodes);
        let mode = if view.exclusive(cd) { IsolationMode::Domain } else { IsolationMode::Channel };
        let lost = mode == IsolationMode::Domain && !cd.exclusive();
        let unservable = mode == IsolationMode::Domain && view.only_hosts_run_daemons();
        let quarantined = channels.iter().filter_map(|(domain, _)| quarantine::of(view, domain, cd.uid())).collect();
        let clashes = channels.iter().flat_map(|(domain, entry)| clashes(view, domain, cd.uid(), entry));
        let clashes = clashes.chain(dispossessed(view, cd.uid())).collect();
        let (cluster, taken_back) = (view.node_count(), view.taken_back(cd.uid()));
        Self {
            cd,
            mode,
            lost,
            channels,
            nodes,
            split,
            unservable,
            exhausted,
            quarantined,
            taken_back,
            clashes,
            cluster,
        }
    }
}

impl<'a> Use<'a> {
    fn of(view: &'a View, cd: &'a Cd, node_name: &'a str) -> Self {
        let mut found = Self {
            name: node_name,
            node: view.imex_node(node_name),
            index: 0,
            state: Err("has no agent".into()),
            entered: false,
            not_isolated: None,
            never_certified: false,
            host_managed: false,
            problem: view.problem(node_name),
            recovery: None,
            open_door: None,
        };
        let Some(node) = found.node else { return found };
        let Some(status) = &node.status else {
            found.state = Err("has not reported yet".into());
            return found;
        };
        found.recovery = status.daemon.recovery_action.as_deref();
        // Without NVLink fabric there is nothing that a channel would open.
        found.open_door = status.clique.as_ref().and_then(|_| open_door(&status.conditions));
        found.host_managed = status.clique.is_some() && view.exclusive(cd) && is_host_managed(node);
        let pending = mode_pending(&status.conditions);
        let Some(serving) = node.spec.domain.as_deref() else {
            let (state, entered) = match &status.clique {
                None => (Ok(()), true),
                Some(clique) => (Err(format!("is no member of an IMEX domain of clique {clique} yet")), false),
            };
            return Self { state, entered, ..found };
        };
        let domain = view.domain(serving);
        let own = domain.and_then(|domain| domain.spec.compute_domain.as_ref()).map(|owner| owner.uid.as_str());
        if status.channel_count < 2 {
            found.state = Err(format!(
                "has {} IMEX channels; load the NVIDIA kernel module with NVreg_ImexChannelCount of 2 or more",
                status.channel_count
            ));
            return found;
        }
        if !view.exclusive(cd) && own.is_some() {
            found.state = Err(format!(
                "serves the exclusive IMEX domain {serving} of another ComputeDomain, until that has no claim there"
            ));
            return found;
        }
        let apart = view.exclusive(cd) && !found.host_managed && own != Some(cd.uid());
        if apart {
            let awaited = awaited_certificate(view, node);
            let text = awaited.as_ref().map(|(text, _)| text.as_str());
            found.not_isolated = Some(not_isolated(view, cd, node, serving, text));
            found.never_certified = awaited.is_some_and(|(_, never)| never);
        }
        found.entered = lists(node, serving, cd.uid()).is_some();
        let member = domain.and_then(|domain| domain.spec.members.get(node_name));
        // A host's daemon has an index of the host's own node map.
        let own_index = if is_host_managed(node) { status.daemon.index } else { member.map(|member| member.index) };
        found.index = own_index.unwrap_or_default();
        let served = match member {
            None => Err(format!("is no member of domain {serving} yet")),
            Some(member) => health::serves(node, serving, member),
        };
        found.state = match (&found.not_isolated, served, found.entered) {
            (Some(why), ..) => Err(why.clone()),
            (None, Err(why), _) => Err(why),
            (None, Ok(()), false) if found.host_managed => Err("has an IMEX daemon of its host".into()),
            (None, Ok(()), false) if pending.is_some() => {
                Err(format!("prepares no new claim: {}", pending.unwrap_or_default()))
            }
            (None, Ok(()), false) => Err("has not entered a channel yet".into()),
            (None, Ok(()), true) if view.lost(node_name) => Err("has lost contact with the cluster".into()),
            (None, Ok(()), true) => Ok(()),
        };
        found
    }
}

/// The pairs of nodes at work that are not connected, each within its IMEX domain: those of different domains never are.
fn split(view: &View, nodes: &[Use<'_>]) -> Vec<String> {
    let mut members: BTreeMap<&str, Vec<(&IMEXNode, &Member)>> = BTreeMap::new();
    for used in nodes.iter().filter(|used| used.state.is_ok()) {
        let Some(node) = used.node else { continue };
        let Some(domain) = node.spec.domain.as_deref().and_then(|domain| view.domain(domain)) else { continue };
        if let Some(member) = domain.spec.members.get(used.name) {
            members.entry(name(domain)).or_default().push((node, member));
        }
    }
    members.values().flat_map(|members| health::disconnected(members)).collect()
}

fn open_door(conditions: &[Condition]) -> Option<&str> {
    let guarded = conditions.iter().find(|condition| condition.type_ == RUNTIME_GUARDED)?;
    (guarded.status == "False").then_some(guarded.message.as_str())
}

/// Why the node prepares no new claim, if its IMEX mode is to change.
fn mode_pending(conditions: &[Condition]) -> Option<&str> {
    let mode = conditions.iter().find(|condition| condition.type_ == IMEX_MODE)?;
    (mode.status == "False").then_some(mode.message.as_str())
}

fn not_isolated(view: &View, cd: &Cd, node: &IMEXNode, serving: &str, certificate: Option<&str>) -> String {
    let others = view.cds_on(name(node)).values().any(|other| other.alive() && other.uid() != cd.uid());
    if others {
        return format!(
            "still serves IMEX domain {serving}, and has claims of other ComputeDomains: a claim of an exclusive one must ask \
             for all slots of a node (allocationMode: All), as its template does"
        );
    }
    let busy = placement::uses_other_than(node, "");
    let why = if busy { ", where it still uses channels" } else { certificate.unwrap_or_default() };
    format!("still serves IMEX domain {serving}{why}")
}

/// What is to be said of the certificate that a node gets before its move, and whether it never comes: an agent that
/// authenticates peers in another way asks for none.
fn awaited_certificate(view: &View, node: &IMEXNode) -> Option<(String, bool)> {
    node.spec.next.as_ref().filter(|_| view.peer_certificates)?;
    let by = node.status.as_ref()?.peer_authentication.as_deref().and_then(|by| by.parse().ok());
    let waits = " and waits for a certificate of the next";
    Some(match by.unwrap_or_default() {
        Authentication::DomainCa => (waits.to_owned(), false),
        other => {
            let text = format!(
                "{waits}, for which its agent does not ask: it authenticates IMEX peers by {other}, the controller by {}; set \
                 --peer-authentication alike for the controller and all agents",
                Authentication::DomainCa
            );
            (text, true)
        }
    })
}

/// The domains without a free number in which nodes of the ComputeDomain wait for one.
fn exhausted<'a>(
    view: &'a View,
    nodes: &[Use<'a>],
    channels: &[(&'a IMEXDomain, &'a ChannelEntry)],
) -> Vec<&'a IMEXDomain> {
    let mut full: BTreeMap<&str, &IMEXDomain> = BTreeMap::new();
    for used in nodes.iter().filter(|used| !used.entered) {
        let Some(node) = used.node else { continue };
        let count = node.status.as_ref().map_or(0, |status| status.channel_count);
        let Some(domain) = node.spec.domain.as_deref().and_then(|domain| view.domain(domain)) else { continue };
        let has_one = channels.iter().any(|(with, _)| name(*with) == name(domain));
        // Fewer than two is no channel at all, which the node says itself.
        if !has_one && count > 1 && exhausted_below(domain, count) {
            full.insert(name(domain), domain);
        }
    }
    full.into_values().collect()
}

/// Who uses the number for another ComputeDomain, or another number for this one: a node that has come back after somebody
/// said that it was off for good, or objects of a backup.
fn clashes<'a>(
    view: &'a View,
    domain: &'a IMEXDomain,
    cd_uid: &'a str,
    entry: &'a ChannelEntry,
) -> impl Iterator<Item = String> + 'a {
    let of_this = move |uid: &str| uid == cd_uid;
    view.nodes_in(name(domain)).flat_map(move |node| {
        let listed = node.status.iter().flat_map(|status| &status.channels);
        let odd = listed.filter(move |(uid, listed)| {
            listed.domain == name(domain) && of_this(uid) != (listed.channel == entry.channel)
        });
        let odd = odd.filter(move |(uid, listed)| of_this(uid) || listed.channel == entry.channel);
        odd.map(move |(uid, listed)| {
            let (node, number) = (name(node), listed.channel);
            if of_this(uid) {
                return format!(
                    "node {node} uses channel {number} for it, domain {} has {}",
                    name(domain),
                    entry.channel
                );
            }
            format!("node {node} uses its channel {number} for {}", named(view, uid))
        })
    })
}

/// The nodes that use a number for the ComputeDomain which its domain's map has lost, and given to another.
fn dispossessed<'a>(view: &'a View, cd_uid: &'a str) -> impl Iterator<Item = String> + 'a {
    view.nodes_with(cd_uid).filter_map(move |node| {
        let listed = node.status.as_ref()?.channels.get(cd_uid)?;
        let map = &view.domain(&listed.domain)?.status.as_ref()?.channels;
        let mut others = map.iter().filter(|(uid, entry)| *uid != cd_uid && entry.channel == listed.channel);
        let (other, _) = others.next().filter(|_| !map.contains_key(cd_uid))?;
        let (node, number, domain) = (name(node), listed.channel, &listed.domain);
        Some(format!("node {node} uses channel {number} for it, which domain {domain} gives to {}", named(view, other)))
    })
}

/// A ComputeDomain as people know it, as far as it can be known.
fn named(view: &View, uid: &str) -> String {
    match view.cd(uid) {
        Some(cd) => format!("ComputeDomain {}", cd.full_name()),
        None => format!("the ComputeDomain of UID {uid}, which is gone"),
    }
}

fn status(facts: &Facts<'_>, conditions: Vec<Condition>) -> ComputeDomainStatus {
    let ready = conditions.iter().any(|condition| condition.type_ == conditions::READY && condition.status == "True");
    let state = |ready: bool| if ready { ReadyState::Ready } else { ReadyState::NotReady };
    let cliques: Vec<CliqueStatus> = facts
        .channels
        .iter()
        .filter(|(_, entry)| entry.state == ChannelState::Active)
        .map(|(domain, entry)| {
            let inside: Vec<_> = facts.nodes.iter().filter(|used| serves(used, name(*domain))).collect();
            CliqueStatus {
                clique: domain.spec.clique.clone(),
                imex_domain: name(*domain).into(),
                channel: entry.channel,
                nodes: inside.len() as i32,
                ready_nodes: inside.iter().filter(|used| used.state.is_ok()).count() as i32,
            }
        })
        .collect();
    let node = |used: &Use<'_>| {
        let status = used.node.and_then(|node| node.status.as_ref());
        NodeStatus {
            name: used.name.into(),
            ip_address: status.and_then(|status| status.addresses.first().cloned()).unwrap_or_default(),
            clique_id: status.and_then(|status| status.clique.clone()).unwrap_or_default(),
            index: used.index as i32,
            status: state(used.state.is_ok()),
        }
    };
    let numbers: BTreeSet<u32> = cliques.iter().map(|clique| clique.channel).collect();
    let channel = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    ComputeDomainStatus {
        status: Some(state(ready)),
        conditions,
        channel: Some(channel).filter(|text| !text.is_empty()),
        cliques,
        nodes: facts.nodes.iter().take(LISTED_NODES).map(node).collect(),
        node_count: facts.nodes.len() as i32,
        ready_node_count: facts.nodes.iter().filter(|used| used.state.is_ok()).count() as i32,
    }
}

fn serves(used: &Use<'_>, domain: &str) -> bool {
    used.node.is_some_and(|node| node.spec.domain.as_deref() == Some(domain))
}
