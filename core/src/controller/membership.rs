use std::collections::{BTreeMap, BTreeSet};

use super::agreement::{DriverMatch, Standing, common};
use super::family::{self, Family, Reach};
use crate::api::{ImexMode, Member};
use crate::condition::enumerate;
use crate::fault::{Fault, reason};

/// A node that is or should be a member of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The addresses at which peers may reach its daemon, the preferred one first; none while they are not known.
    pub addresses: Vec<String>,
    /// `ImexChannelCount`; 0 while it is not known.
    pub channel_count: u32,
    /// Version of its driver; empty while it is not known.
    pub driver_version: String,
    /// Who runs its daemon; none while it has not reported.
    pub imex_mode: Option<ImexMode>,
    /// SHA-256 of the node map of a daemon that its host runs, as far as its files can be read.
    pub node_map: Option<String>,
    /// How its agent authenticates peers; none where that is its host's business.
    pub peer_authentication: Option<String>,
    /// Whether others should not expect it.
    pub away: bool,
    /// It lists a channel of the domain.
    pub busy: bool,
    /// The index in this domain that its daemon says it has.
    pub index: Option<u32>,
}

/// What the members of a domain should be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Membership {
    /// The members by node name.
    pub members: BTreeMap<String, Member>,
    /// What is wrong with a node, by its name.
    pub problems: BTreeMap<String, Fault>,
}

/// Keeps the index of every candidate that has one of its own, and gives the others free ones, in the order of their
/// names: the one that its daemon has, else the lowest. Who is no candidate is no member.
///
/// A candidate that differs in what all must have in common becomes no member; one that is a member stays one, for jobs may
/// run on it. Both are told what is wrong with them.
pub fn membership(
    domain: &str,
    current: &BTreeMap<String, Member>,
    max_members: u32,
    candidates: &BTreeMap<String, Candidate>,
    drivers: DriverMatch,
) -> Membership {
    let terms = Terms::of(domain, current, candidates, drivers);
    let mut plan = Membership::default();
    let kept = kept(current, max_members, candidates);
    let mut used: BTreeSet<u32> = kept.values().copied().collect();
    // A daemon goes on with the index that it has where nobody else has it.
    let own: BTreeSet<u32> = candidates.values().filter_map(|candidate| candidate.index).collect();
    for (node, candidate) in candidates {
        let known = current.get(node);
        let odd = terms.odd(node, candidate, known);
        let left_out = odd.is_some() && !standing(known, candidate).established();
        plan.problems.extend(odd.map(|fault| (node.clone(), fault)));
        if left_out {
            continue;
        }
        let free = |index: &u32| *index < max_members && !used.contains(index);
        let lowest = || {
            let spared = (0..max_members).find(|index| free(index) && !own.contains(index));
            spared.or_else(|| (0..max_members).find(free))
        };
        // Where maxMembers was lowered there may be too few places: nobody is thrown out for that.
        let beyond = || known.map(|member| member.index).filter(|index| !used.contains(index));
        let found = kept.get(node.as_str()).copied().or_else(|| candidate.index.filter(free));
        let Some(index) = found.or_else(lowest).or_else(beyond) else {
            let text = format!(
                "IMEX domain {domain} has no place for node {node}: all {max_members} are taken; raise maxMembers or remove nodes"
            );
            plan.problems.insert(node.clone(), Fault::retryable(reason::DOMAIN_FULL, text));
            continue;
        };
        used.insert(index);
        let address = terms.address(candidate, known);
        plan.members.insert(node.clone(), Member { index, address, away: candidate.away });
    }
    plan
}

/// The indices that stay. First goes a node whose daemon says that it has the one which is written here, past the end only
/// where jobs run on it. Then, where a hand has written others, daemons with jobs keep their own; the rest has what is written.
fn kept<'a>(
    current: &'a BTreeMap<String, Member>,
    max_members: u32,
    candidates: &BTreeMap<String, Candidate>,
) -> BTreeMap<&'a str, u32> {
    let wishes = current.iter().filter_map(|(node, Member { index, .. })| {
        let candidate = candidates.get(node)?;
        let said = candidate.index == Some(*index) && (*index < max_members || candidate.busy);
        let own = candidate.index.filter(|own| candidate.busy && *own < max_members);
        let written = Some(*index).filter(|index| *index < max_members);
        Some((node.as_str(), [said.then_some(*index), own, written]))
    });
    let wishes: Vec<_> = wishes.collect();
    let mut kept = BTreeMap::new();
    let mut used = BTreeSet::new();
    for rank in 0..3 {
        for (node, wished) in &wishes {
            if let Some(index) = wished[rank]
                && !kept.contains_key(node)
                && used.insert(index)
            {
                kept.insert(*node, index);
            }
        }
    }
    kept
}

fn standing(known: Option<&Member>, candidate: &Candidate) -> Standing {
    Standing { busy: candidate.busy, member: known.is_some() }
}

fn reach<'a>(known: Option<&'a Member>, candidate: &'a Candidate) -> Reach<'a> {
    let address = known.map_or("", |member| &member.address);
    Reach { address, addresses: &candidate.addresses, standing: standing(known, candidate) }
}

/// What the members of a domain must have in common.
struct Terms<'a> {
    domain: &'a str,
    drivers: DriverMatch,
    /// As many channels: a number that one of them lacks cannot be entered there.
    channel_count: Option<u32>,
    driver: Option<&'a str>,
    /// Daemons of Heddle's and of hosts have different node maps, and so have hosts that were not given the same one.
    imex_mode: Option<ImexMode>,
    node_map: Option<&'a str>,
    peer_authentication: Option<&'a str>,
    family: Option<Family>,
}

impl<'a> Terms<'a> {
    fn of(
        domain: &'a str,
        current: &'a BTreeMap<String, Member>,
        candidates: &'a BTreeMap<String, Candidate>,
        drivers: DriverMatch,
    ) -> Self {
        let all = candidates.iter().map(|(node, candidate)| (current.get(node), candidate));
        let counts = all.clone().filter(|(_, candidate)| candidate.channel_count > 0);
        let counts = counts.map(|(known, candidate)| (candidate.channel_count, standing(known, candidate)));
        let versions = all.clone().filter_map(|(known, candidate)| {
            Some((drivers.key(&candidate.driver_version)?, standing(known, candidate)))
        });
        let modes =
            all.clone().filter_map(|(known, candidate)| Some((candidate.imex_mode?, standing(known, candidate))));
        let maps = all
            .clone()
            .filter_map(|(known, candidate)| Some((candidate.node_map.as_deref()?, standing(known, candidate))));
        let authentications = all.clone().filter_map(|(known, candidate)| {
            Some((candidate.peer_authentication.as_deref()?, standing(known, candidate)))
        });
        let (imex_mode, node_map, peer_authentication) = (common(modes), common(maps), common(authentications));
        let reaches: Vec<_> = all.map(|(known, candidate)| reach(known, candidate)).collect();
        Self {
            domain,
            drivers,
            channel_count: common(counts),
            driver: common(versions),
            imex_mode,
            node_map,
            peer_authentication,
            family: family::family(&reaches),
        }
    }

    /// What is wrong with a candidate. What is not known of it is not wrong.
    fn odd(&self, node: &str, candidate: &Candidate, known: Option<&Member>) -> Option<Fault> {
        let domain = self.domain;
        if let Some(common) = self.channel_count.filter(|common| ![0, *common].contains(&candidate.channel_count)) {
            let text = format!(
                "node {node} has {} IMEX channels, the others of domain {domain} have {common}; set NVreg ImexChannelCount alike on all of them",
                candidate.channel_count
            );
            return Some(Fault::permanent(reason::MEMBER_MISMATCH, text));
        }
        let version = &candidate.driver_version;
        if let (Some(own), Some(common)) = (self.drivers.key(version), self.driver)
            && own != common
        {
            let text = format!(
                "node {node} has NVIDIA driver {version:.64}, the others of domain {domain} have {common:.64}; install the same driver on all of them, or let the controller's --driver-match allow it"
            );
            return Some(Fault::permanent(reason::MEMBER_MISMATCH, text));
        }
        if let Some(fault) = self.odd_daemon(node, candidate) {
            return Some(fault);
        }
        let family = self.family.filter(|_| !candidate.addresses.is_empty())?;
        if family::address(&reach(known, candidate), family).is_some() {
            return None;
        }
        let has = enumerate(candidate.addresses.iter().map(|address| format!("{address:.64}")));
        let text = format!(
            "node {node} has no {family} address, and the members of domain {domain} meet by {family}; it has {has}: give it one that its agent reports (--node-address)"
        );
        Some(Fault::permanent(reason::NO_COMMON_FAMILY, text))
    }

    /// What of its daemon keeps it from connecting to the others.
    fn odd_daemon(&self, node: &str, candidate: &Candidate) -> Option<Fault> {
        let domain = self.domain;
        if let (Some(own), Some(common)) = (candidate.imex_mode, self.imex_mode)
            && own != common
        {
            let text = format!(
                "IMEX on node {node} is {own}, on the others of domain {domain} it is {common}: their daemons have different node maps and do not connect; set imex.mode alike on all nodes of the clique"
            );
            return Some(Fault::permanent(reason::MEMBER_MISMATCH, text));
        }
        if candidate.node_map.as_deref().is_some_and(|own| Some(own) != self.node_map) {
            let text = format!(
                "the host's IMEX node map on node {node} is another than on the others of domain {domain}: their daemons do not connect; make the file that IMEX_NODE_CONFIG_FILE names the same on all nodes of the clique, and restart the host's nvidia-imex"
            );
            return Some(Fault::permanent(reason::MEMBER_MISMATCH, text));
        }
        let (own, common) = (candidate.peer_authentication.as_deref()?, self.peer_authentication?);
        (own != common).then(|| {
            let text = format!(
                "the agent of node {node} authenticates IMEX peers by {own:.64}, the others of domain {domain} by {common:.64}: their daemons do not connect; set --peer-authentication alike on all nodes"
            );
            Fault::permanent(reason::AUTHENTICATION_MISMATCH, text)
        })
    }

    /// Where peers find it; where they found it last if it has no address of the family.
    fn address(&self, candidate: &Candidate, known: Option<&Member>) -> String {
        let reach = reach(known, candidate);
        let found = self.family.and_then(|family| family::address(&reach, family));
        found.unwrap_or(reach.address).to_owned()
    }
}

#[cfg(test)]
#[path = "membership_tests.rs"]
mod tests;
