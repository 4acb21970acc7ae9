use std::collections::BTreeSet;

use heddle_core::api::{ChannelState, EpochMark, IMEXNode, IMEXNodeSpec};
use heddle_core::controller::{self, Kind, NodeState, View, Write, placement};
use heddle_core::protocol;

use crate::cluster::{Bug, clique};
use crate::store::{Change, Sent, Store, version};

/// A controller: what it knows, and what it has decided and not done yet.
#[derive(Clone)]
pub struct Controller {
    pub view: View,
    pub decided: Vec<Write>,
}

impl Default for Controller {
    /// One that knows nothing, of a cluster whose daemons show certificates.
    fn default() -> Self {
        Self { view: View::new(true), decided: Vec::new() }
    }
}

impl Controller {
    /// The watch brings what has happened to one object.
    pub fn see(&mut self, kind: Kind, pick: usize, store: &Store) {
        let known = self.view.keys(kind);
        let there: BTreeSet<String> = match kind {
            Kind::Cd => store.cds.keys().cloned().collect(),
            Kind::Claim => store.claims.keys().cloned().collect(),
            Kind::Template => return,
            Kind::Node => store.alive.clone(),
            Kind::ImexNode => store.nodes.keys().cloned().collect(),
            Kind::Domain => store.domains.keys().cloned().collect(),
        };
        let all: Vec<_> = known.union(&there).cloned().collect();
        let Some(key) = all.get(pick % all.len().max(1)) else { return };
        self.see_one(kind, key, store);
    }

    fn see_one(&mut self, kind: Kind, key: &str, store: &Store) {
        let seen = match kind {
            Kind::Cd => store.cds.get(key).map(|cd| self.view.put_cd(cd.clone())),
            Kind::Claim => store.claims.get(key).map(|claim| self.view.put_claim(claim.clone())),
            Kind::Template => None,
            Kind::Node => store.alive.get(key).map(|node| self.view.put_node(node, NodeState::default())),
            Kind::ImexNode => store.nodes.get(key).map(|node| self.view.put_imex_node(node.clone())),
            Kind::Domain => store.domains.get(key).map(|domain| self.view.put_domain(domain.clone())),
        };
        if seen.is_none() {
            self.view.drop(kind, key);
        }
    }

    pub fn see_all(&mut self, store: &Store) {
        for kind in Kind::ALL {
            self.view.keys(kind).iter().for_each(|key| self.see_one(kind, key, store));
        }
        store.cds.keys().for_each(|key| self.see_one(Kind::Cd, key, store));
        store.claims.keys().for_each(|key| self.see_one(Kind::Claim, key, store));
        store.alive.iter().for_each(|key| self.see_one(Kind::Node, key, store));
        store.nodes.keys().for_each(|key| self.see_one(Kind::ImexNode, key, store));
        store.domains.keys().for_each(|key| self.see_one(Kind::Domain, key, store));
    }

    pub fn decide(&mut self, bug: Bug) {
        self.decided = controller::clique(&self.view, &clique().to_string()).writes;
        let nodes: Vec<String> = self.view.keys(Kind::ImexNode).into_iter().collect();
        self.decided.extend(nodes.iter().filter_map(|node| controller::node(&self.view, node)));
        self.blunder(bug, &nodes);
    }

    /// What a controller with the bug would decide besides.
    fn blunder(&mut self, bug: Bug, nodes: &[String]) {
        if bug == Bug::FreeWithoutFence {
            self.decided.retain(|write| !matches!(write, Write::Fence { .. }));
        }
        let domains: Vec<_> = self.view.domains_of_clique(&clique().to_string()).cloned().collect();
        match bug {
            Bug::None | Bug::EnterUnguarded | Bug::TrustOldEntry => {}
            Bug::MoveWhileListed => {
                for node in nodes.iter().filter_map(|node| self.view.imex_node(node)) {
                    let others = domains.iter().filter(|d| d.metadata.name != node.spec.domain);
                    let moves = others.map(|d| Write::Move {
                        node: Box::new(node.clone()),
                        target: d.metadata.name.clone().unwrap(),
                    });
                    self.decided.extend(moves);
                }
            }
            Bug::FreeWithoutFence | Bug::FreeWithoutDraining => {
                for domain in domains {
                    let nodes = self.view.nodes_of(&domain);
                    let write = controller::DomainWrite {
                        domain,
                        members: None,
                        drain: BTreeSet::new(),
                        drain_if_gone: Vec::new(),
                        revive: BTreeSet::new(),
                        free: true,
                        nodes,
                        reread: BTreeSet::new(),
                        health: None,
                    };
                    self.decided.push(Write::Domain(Box::new(write)));
                }
            }
        }
    }

    /// The reads of one decided write; what is sent then.
    pub fn execute(&mut self, pick: usize, store: &Store, bug: Bug) -> Option<Sent> {
        if self.decided.is_empty() {
            return None;
        }
        let write = self.decided.swap_remove(pick % self.decided.len());
        match write {
            Write::CreateDomain(domain) => {
                let name = domain.metadata.name.clone()?;
                Some(Sent { kind: Change::DomainCreate(domain), name, version: None })
            }
            Write::DeleteDomain { domain, nodes } => {
                let nodes: Vec<_> = nodes.iter().filter_map(|node| store.nodes.get(node).cloned()).collect();
                placement::vacant(&domain, &nodes).then_some(())?;
                let name = domain.metadata.name.clone()?;
                Some(Sent { kind: Change::DomainDelete, name, version: version(&*domain) })
            }
            Write::Fence { node, mark } => {
                let mut spec = node.spec.clone();
                spec.fence = Some(mark);
                node_write(&node, Change::NodeSpec(spec))
            }
            Write::Announce { node, next } => {
                let spec = IMEXNodeSpec { next, ..node.spec.clone() };
                node_write(&node, Change::NodeSpec(spec))
            }
            Write::Move { node, target } => {
                let domain = store.domains.get(&target)?;
                let epoch = domain.status.as_ref().map_or(0, |status| status.epoch);
                let fence = Some(EpochMark { domain: target.clone(), epoch });
                let spec = match bug {
                    Bug::MoveWhileListed => IMEXNodeSpec { domain: Some(target), fence, ..Default::default() },
                    _ => placement::move_in(&node, domain)?,
                };
                node_write(&node, Change::NodeSpec(spec))
            }
            Write::Prune(node) => {
                let name = node.metadata.name.clone()?;
                let live = store.nodes.get(&name)?;
                let listed = live.status.as_ref().is_some_and(|status| !status.channels.is_empty());
                (!store.alive.contains(&name) && !listed).then_some(())?;
                node_write(live, Change::NodeDelete)
            }
            Write::Domain(write) => {
                let name = write.domain.metadata.name.clone()?;
                let guard = version(&write.domain);
                if let Some(members) = write.members {
                    return Some(Sent { kind: Change::DomainMembers(members), name, version: guard });
                }
                let reread = write.reread.iter().filter_map(|node| store.nodes.get(node));
                let known = write.nodes.iter().filter(|n| !write.reread.contains(n.metadata.name.as_ref().unwrap()));
                let mut nodes: Vec<IMEXNode> = known.chain(reread).cloned().collect();
                let mut domain = write.domain.clone();
                if bug == Bug::FreeWithoutFence {
                    let mark = EpochMark { domain: name.clone(), epoch: u64::MAX };
                    nodes.iter_mut().for_each(|node| node.spec.fence = Some(mark.clone()));
                }
                if bug == Bug::FreeWithoutDraining {
                    let entries = domain.status.iter_mut().flat_map(|status| status.channels.iter_mut());
                    for (_, entry) in entries.filter(|(uid, _)| !store.cds.contains_key(*uid)) {
                        (entry.state, entry.epoch) = (ChannelState::Draining, 0);
                    }
                }
                let gone = write.drain_if_gone.iter().filter(|cd| !store.cds.contains_key(&cd.uid));
                let gone = gone.map(|cd| cd.uid.clone()).collect();
                let status = write.status(&domain, &gone, &nodes)?;
                Some(Sent { kind: Change::DomainStatus(status), name, version: guard })
            }
            Write::Examine { domain, nodes } => {
                let live = store.domains.get(&domain)?;
                let nodes: Vec<_> = nodes.iter().filter_map(|node| store.nodes.get(node).cloned()).collect();
                let status = protocol::restore(live, &nodes, |_| None).status?;
                Some(Sent { kind: Change::DomainStatus(status), name: domain, version: version(live) })
            }
            _ => None,
        }
    }
}

fn node_write(node: &IMEXNode, kind: Change) -> Option<Sent> {
    Some(Sent { kind, name: node.metadata.name.clone()?, version: version(node) })
}
