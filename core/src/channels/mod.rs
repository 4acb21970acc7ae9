//! What `heddle channel list` tells: every channel number in use, who uses it, and what it waits for.

mod text;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

pub use text::text;

use crate::api::{ChannelState, IMEXDomain, IMEXNode, NodeChannel};
use crate::protocol::{Life, holders, name};

/// The objects that tell of channels.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The IMEXDomains.
    pub domains: Vec<IMEXDomain>,
    /// All IMEXNodes.
    pub nodes: Vec<IMEXNode>,
    /// What the cluster knows of the nodes that list channels.
    pub lives: BTreeMap<String, Life>,
    /// UIDs of the ComputeDomains that live: they exist and are not being deleted.
    pub alive: BTreeSet<String>,
}

/// One channel number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Channel {
    /// The clique; empty for a domain that is gone.
    pub clique: String,
    /// Name of the IMEXDomain.
    pub domain: String,
    /// The number.
    pub channel: u32,
    /// Where it stands.
    pub state: State,
    /// `namespace/name` of the ComputeDomain, as far as it is known.
    pub compute_domain: String,
    /// Its UID.
    #[serde(rename = "computeDomainUID")]
    pub uid: String,
    /// The nodes that list it.
    pub nodes: Vec<User>,
    /// What it waits for before it can be given to others, in words.
    pub waits_for: Vec<String>,
}

/// Where a channel number stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum State {
    /// Nodes may enter it.
    Active,
    /// Its ComputeDomain is going, or nobody used it; it is given to others as soon as no node can use it.
    Draining,
    /// Draining, and nobody is left to wait for: only lost nodes list it.
    Quarantined,
    /// A node lists it and the channel map does not have it so.
    Unmapped,
}

/// A node that lists a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Since when, RFC 3339.
    pub since: String,
    /// How it was lost, in words that follow its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// All channels, or those of one clique, by domain and number.
pub fn channels(world: &World, clique: Option<&str>) -> Vec<Channel> {
    let mut found = Vec::new();
    let mut mapped = BTreeSet::new();
    for domain in &world.domains {
        for (uid, entry) in domain.status.iter().flat_map(|status| &status.channels) {
            mapped.insert((name(domain), uid.as_str(), entry.channel));
            let nodes = world.users(name(domain), uid, entry.channel);
            let lives = world.alive.contains(uid);
            let lost = !nodes.is_empty() && nodes.iter().all(|node| node.lost.is_some());
            let state = match entry.state {
                _ if lost && !lives => State::Quarantined,
                ChannelState::Active => State::Active,
                ChannelState::Draining => State::Draining,
            };
            let waits_for = match state {
                State::Active | State::Unmapped => Vec::new(),
                State::Draining | State::Quarantined => world.waits_for(domain, uid, &nodes),
            };
            found.push(Channel {
                clique: domain.spec.clique.clone(),
                domain: name(domain).into(),
                channel: entry.channel,
                state,
                compute_domain: entry.compute_domain.clone(),
                uid: uid.clone(),
                nodes,
                waits_for,
            });
        }
    }
    found.extend(world.unmapped(&mapped));
    found.retain(|channel| clique.is_none_or(|clique| channel.clique == clique));
    found.sort_by(|a, b| (&a.clique, &a.domain, a.channel, &a.uid).cmp(&(&b.clique, &b.domain, b.channel, &b.uid)));
    found
}

impl World {
    fn listed(&self) -> impl Iterator<Item = (&IMEXNode, &String, &NodeChannel)> {
        self.nodes.iter().flat_map(|node| {
            node.status.iter().flat_map(|status| &status.channels).map(move |(uid, entry)| (node, uid, entry))
        })
    }

    fn users(&self, domain: &str, cd_uid: &str, channel: u32) -> Vec<User> {
        let same = self
            .listed()
            .filter(|(_, uid, entry)| *uid == cd_uid && entry.domain == domain && entry.channel == channel);
        same.map(|(node, _, entry)| self.user(node, entry)).collect()
    }

    fn user(&self, node: &IMEXNode, entry: &NodeChannel) -> User {
        let lost = self.lives.get(name(node)).and_then(Life::lost);
        User { name: name(node).into(), since: entry.since.clone(), lost }
    }

    fn waits_for(&self, domain: &IMEXDomain, uid: &str, users: &[User]) -> Vec<String> {
        let told = holders(domain, &self.nodes, uid).into_iter().map(|holder| {
            let lost = users.iter().find(|user| user.name == holder.node).and_then(|user| user.lost.as_ref());
            match lost {
                Some(lost) => format!(
                    "node {} {lost}: it is waited for until it is back after a reboot, or until heddle channel release --node {0}",
                    holder.node
                ),
                None => format!("node {} {}", holder.node, holder.why),
            }
        });
        let told: Vec<_> = told.collect();
        if told.is_empty() { vec!["the controller to free it".into()] } else { told }
    }

    /// What nodes list beside the map: for the moment in which it is restored, or for good, as a clash.
    fn unmapped(&self, mapped: &BTreeSet<(&str, &str, u32)>) -> Vec<Channel> {
        let mut found: BTreeMap<(&str, &str, u32), Channel> = BTreeMap::new();
        for (node, uid, entry) in self.listed() {
            let key = (entry.domain.as_str(), uid.as_str(), entry.channel);
            if mapped.contains(&key) {
                continue;
            }
            let domain = self.domains.iter().find(|domain| name(*domain) == entry.domain);
            let map = domain.and_then(|domain| domain.status.as_ref()).map(|status| &status.channels);
            let other = map.and_then(|map| map.iter().find(|(_, known)| known.channel == entry.channel));
            let own = map.and_then(|map| map.get(uid));
            let waits_for = match (own, other) {
                (Some(own), _) => {
                    format!(
                        "a person: the domain has {} for this ComputeDomain; delete its pods on these nodes",
                        own.channel
                    )
                }
                (None, Some((other, _))) => {
                    format!("a person: the domain has this number for ComputeDomain {other}; delete these pods")
                }
                (None, None) => "the controller to put it back into the channel map".to_owned(),
            };
            let row = found.entry(key).or_insert_with(|| Channel {
                clique: domain.map(|domain| domain.spec.clique.clone()).unwrap_or_default(),
                domain: entry.domain.clone(),
                channel: entry.channel,
                state: State::Unmapped,
                compute_domain: own.map(|own| own.compute_domain.clone()).unwrap_or_default(),
                uid: uid.clone(),
                nodes: Vec::new(),
                waits_for: vec![waits_for],
            });
            row.nodes.push(self.user(node, entry));
        }
        found.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{drain, samples::*};

    fn world(domains: Vec<IMEXDomain>, nodes: Vec<IMEXNode>) -> World {
        World { domains, nodes, lives: BTreeMap::new(), alive: ["green".to_string()].into() }
    }

    fn told(world: &World) -> Vec<(u32, State, String)> {
        let rows = channels(world, None).into_iter();
        rows.map(|row| (row.channel, row.state, row.waits_for.join("; "))).collect()
    }

    #[test]
    fn each_number_says_where_it_stands() {
        let mut domain = with_channel(with_channel(shared("d"), "green", 1), "blue", 2);
        domain.status = drain(&domain, &["blue".to_string()].into());
        let mut both = listing("d", "green", 1);
        both.status.as_mut().unwrap().channels.extend(listing("d", "blue", 2).status.unwrap().channels);
        let mut world = world(vec![domain], vec![both, member_of("n2", "d")]);
        let words = "node n1 has not left channel 2; node n2 is not fenced yet".to_owned();
        assert_eq!(told(&world), [(1, State::Active, String::new()), (2, State::Draining, words)]);

        world.lives.insert("n1".into(), Life::default());
        let rows = channels(&world, None);
        assert_eq!(rows[0].state, State::Active, "its ComputeDomain lives, and goes on elsewhere");
        assert_eq!(rows[1].state, State::Quarantined);
        assert!(rows[1].waits_for[0].contains("n1 has no Node any more"), "{rows:?}");
        assert!(rows[1].waits_for[0].ends_with("heddle channel release --node n1"), "{rows:?}");
        assert_eq!(channels(&world, Some("another")), []);
    }

    #[test]
    fn a_lost_node_quarantines_what_is_not_drained_yet() {
        let mut world = world(vec![with_channel(shared("d"), "old", 3)], vec![listing("d", "old", 3)]);
        world.lives.insert("n1".into(), Life { ready: Some("Unknown".into()), ..Default::default() });
        assert_eq!(told(&world)[0].1, State::Quarantined);
    }

    #[test]
    fn what_a_node_lists_beside_the_map_is_told_too() {
        for (map, words) in [
            (shared("d"), "the controller to put it back"),
            (with_channel(shared("d"), "blue", 1), "has this number for ComputeDomain blue"),
            (with_channel(shared("d"), "green", 4), "has 4 for this ComputeDomain"),
        ] {
            let rows = told(&world(vec![map], vec![listing("d", "green", 1)]));
            let odd = rows.iter().find(|(channel, state, _)| (*channel, *state) == (1, State::Unmapped)).unwrap();
            assert!(odd.2.contains(words), "{rows:?}");
        }
        assert_eq!(told(&world(vec![], vec![listing("gone", "green", 1)])).len(), 1);
    }
}
