use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::membership::{Candidate, Membership, membership};
use super::template::held_by;
use super::write::{DomainWrite, Write};
use super::{Cd, View, health, placement, quarantine};
use crate::api::{
    ChannelState, ComputeDomainRef, DomainKind, IMEXDomain, IMEXDomainSpec, IMEXNode, ImexMode, Member, Refusal,
};
use crate::clique::CliqueId;
use crate::condition::cut;
use crate::fault::{Fault, reason};
use crate::imex::{exclusive_domain_name, shared_domain_name};
use crate::invariants::{Report, World};
use crate::names;
use crate::protocol::{self, lists, mark, name};

/// What one clique needs: its domains, their members, moves of nodes, and channels that are drained, fenced and freed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CliquePlan {
    /// What to write.
    pub writes: Vec<Write>,
    /// What is wrong with its nodes.
    pub problems: BTreeMap<String, Fault>,
    /// Numbers of its domains that lost nodes keep from being given to others.
    pub quarantined: usize,
}

/// Decides one clique. It costs what the clique holds, whatever the size of the cluster.
pub fn clique(view: &View, key: &str) -> CliquePlan {
    let Ok(id) = key.parse::<CliqueId>() else { return CliquePlan::default() };
    Clique { view, key, id, home: shared_domain_name(&id) }.plan()
}

struct Clique<'a> {
    view: &'a View,
    key: &'a str,
    id: CliqueId,
    home: String,
}

/// A node, and the exclusive domain that it should serve.
struct Place<'a> {
    node: &'a IMEXNode,
    wanted: Option<Wanted>,
}

struct Wanted {
    domain: String,
    owner: ComputeDomainRef,
}

impl Clique<'_> {
    fn plan(&self) -> CliquePlan {
        let places: BTreeMap<&str, Place<'_>> = self
            .view
            .nodes_of_clique(self.key)
            .into_iter()
            .filter_map(|node| Some((node, self.view.imex_node(node)?)))
            .map(|(node, object)| (node, Place { node: object, wanted: self.wanted(node, object) }))
            .collect();
        let mut plan = CliquePlan::default();
        self.shared(&places, &mut plan);
        self.exclusives(&places, &mut plan);
        self.moves(&places, &mut plan);
        self.refusals(&places, &mut plan);
        plan.quarantined =
            self.view.domains_of_clique(self.key).map(|domain| quarantine::count(self.view, domain)).sum();
        plan
    }

    /// The exclusive domain that a node should serve: that of an exclusive ComputeDomain whose claims are the only ones
    /// there, as those from its template always are. A node that serves it already goes on. A daemon that the host runs is
    /// never moved.
    fn wanted(&self, node: &str, object: &IMEXNode) -> Option<Wanted> {
        if !self.reports_here(object) || is_host_managed(object) {
            return None;
        }
        let cds = self.view.cds_on(node);
        let alone = cds.values().filter(|cd| cd.alive()).count() == 1;
        let wanted = cds
            .values()
            .filter(|cd| cd.alive() && self.view.exclusive(cd) && self.view.obstacle(cd).is_none())
            .map(|cd| Wanted { domain: exclusive_domain_name(&self.id, cd.uid()), owner: cd.reference.clone() });
        let mut wanted = wanted.filter(|wanted| alone || object.spec.domain.as_deref() == Some(&wanted.domain));
        wanted.next()
    }

    fn reports_here(&self, node: &IMEXNode) -> bool {
        node.status.as_ref().and_then(|status| status.clique.as_deref()) == Some(self.key)
    }

    fn shared(&self, places: &BTreeMap<&str, Place<'_>>, plan: &mut CliquePlan) {
        let current = self.view.domain(&self.home);
        let members = current.map(|domain| domain.spec.members.clone()).unwrap_or_default();
        let candidates: BTreeMap<String, Candidate> = places
            .iter()
            .filter(|(node, place)| self.belongs_home(node, place.node, members.contains_key(**node)))
            .map(|(node, place)| {
                let current = members.get(*node);
                let wanted = place.wanted.as_ref().map(|wanted| wanted.domain.as_str());
                let away = placement::away(place.node, &self.home, current, wanted);
                (node.to_string(), candidate(place.node, &self.home, away))
            })
            .collect();
        self.domain(&self.home, DomainKind::Shared, None, &candidates, plan);
    }

    /// A member stays one as long as its IMEXNode exists and reports no other clique; to become one its Node must
    /// exist too.
    fn belongs_home(&self, name: &str, node: &IMEXNode, member: bool) -> bool {
        let reported = node.status.as_ref().and_then(|status| status.clique.as_deref());
        let serves = node.spec.domain.as_deref() == Some(&self.home);
        match reported {
            Some(clique) if clique == self.key => member || serves || self.view.node(name).is_some(),
            Some(_) => serves,
            None => member,
        }
    }

    fn exclusives(&self, places: &BTreeMap<&str, Place<'_>>, plan: &mut CliquePlan) {
        let wanted = places.values().filter_map(|place| place.wanted.as_ref());
        let mut owners: BTreeMap<String, Option<ComputeDomainRef>> =
            wanted.map(|wanted| (wanted.domain.clone(), Some(wanted.owner.clone()))).collect();
        for domain in self.view.domains_of_clique(self.key).filter(|d| d.spec.kind == DomainKind::Exclusive) {
            owners.entry(name(domain).into()).or_insert_with(|| domain.spec.compute_domain.clone());
        }
        for (domain, owner) in owners {
            let candidates = places.iter().filter(|(_, place)| {
                let serves = place.node.spec.domain.as_deref() == Some(&domain);
                let wants = place.wanted.as_ref().is_some_and(|wanted| wanted.domain == domain);
                serves || (wants && !placement::uses_other_than(place.node, &domain))
            });
            let candidates =
                candidates.map(|(node, place)| (node.to_string(), candidate(place.node, &domain, false))).collect();
            self.domain(&domain, DomainKind::Exclusive, owner, &candidates, plan);
        }
    }

    fn domain(
        &self,
        domain_name: &str,
        kind: DomainKind,
        owner: Option<ComputeDomainRef>,
        candidates: &BTreeMap<String, Candidate>,
        plan: &mut CliquePlan,
    ) {
        let Some(domain) = self.view.domain(domain_name) else {
            if self.view.is_unknown_domain(domain_name) {
                let text = format!("IMEXDomain {domain_name} cannot be read; correct or delete it");
                let fault = Fault::retryable(reason::DOMAIN_PENDING, text);
                plan.problems.extend(candidates.keys().map(|node| (node.clone(), fault.clone())));
            } else if !candidates.is_empty() {
                plan.writes.push(self.create(domain_name, kind, owner, candidates));
            }
            return;
        };
        let wanted = self.membership(domain_name, &domain.spec, candidates);
        plan.problems.extend(wanted.problems);
        let nodes = self.nodes_of(domain);
        // Deleted by hand: it goes, and is made anew, when no number of it would be forgotten.
        let ends = domain.metadata.deletion_timestamp.is_some() && placement::unused(domain, &nodes);
        if ends || self.disused(domain, &wanted.members, &nodes) {
            if domain.metadata.deletion_timestamp.is_some() && !guards(domain) {
                // Nothing of ours keeps it. Its nodes wait for another of its name.
                let what = held_by(&format!("IMEX domain {domain_name}"), &domain.metadata);
                let fault =
                    Fault::retryable(reason::DOMAIN_PENDING, format!("{what}: it is made anew when it is gone"));
                plan.problems.extend(candidates.keys().map(|node| (node.clone(), fault.clone())));
                return;
            }
            let nodes = nodes.iter().map(|node| name(node).to_string()).collect();
            plan.writes.push(Write::DeleteDomain { domain: Box::new(domain.clone()), nodes });
            return;
        }
        let suspects = suspects(domain, &nodes);
        if !suspects.is_empty() || !sound(domain) {
            plan.writes.push(Write::Examine { domain: domain_name.into(), nodes: suspects });
        }
        // The write of the members also puts the finalizer back.
        let guarded = guards(domain) || domain.metadata.deletion_timestamp.is_some();
        let members = (wanted.members != domain.spec.members || !guarded).then_some(wanted.members);
        let write = self.domain_write(domain, members, nodes);
        for (node, mark) in protocol::fences(domain, &write.nodes) {
            if let Some(object) = self.view.imex_node(&node) {
                plan.writes.push(Write::Fence { node: Box::new(object.clone()), mark });
            }
        }
        if !write.is_empty() {
            plan.writes.push(Write::Domain(Box::new(write)));
        }
    }

    fn membership(&self, domain: &str, spec: &IMEXDomainSpec, candidates: &BTreeMap<String, Candidate>) -> Membership {
        // One whose IMEXNode nobody can read keeps its place: what it does is not known.
        let mut candidates = Cow::Borrowed(candidates);
        for (node, member) in spec.members.iter().filter(|(node, _)| self.view.unreadable_nodes().contains(*node)) {
            let unread = Candidate { away: member.away, busy: true, ..Candidate::default() };
            candidates.to_mut().entry(node.clone()).or_insert(unread);
        }
        membership(domain, &spec.members, spec.max_members, &candidates, self.view.driver_match)
    }

    /// The nodes that may be in the domain, or yet come. To an exclusive one any of the clique may: that a node has been
    /// told so may not be known here yet.
    fn nodes_of(&self, domain: &IMEXDomain) -> Vec<IMEXNode> {
        let mut nodes = self.view.nodes_of(domain);
        if domain.spec.kind == DomainKind::Exclusive {
            let known: BTreeSet<String> = nodes.iter().map(|node| name(node).to_string()).collect();
            let others = self.view.nodes_of_clique(self.key).into_iter().filter(|node| !known.contains(*node));
            nodes.extend(others.filter_map(|node| self.view.imex_node(node).cloned()));
        }
        nodes
    }

    /// A domain whose name IMEXNodes still know is one that was lost: its channel map is restored before it gets
    /// members who could allocate beside it.
    fn create(
        &self,
        domain_name: &str,
        kind: DomainKind,
        compute_domain: Option<ComputeDomainRef>,
        candidates: &BTreeMap<String, Candidate>,
    ) -> Write {
        let mut spec = IMEXDomainSpec {
            clique: self.key.into(),
            kind,
            compute_domain,
            max_members: names::DEFAULT_MAX_MEMBERS,
            members: BTreeMap::new(),
        };
        let mut nodes = candidates.keys().filter_map(|node| self.view.imex_node(node));
        let lost = nodes.any(|node| mark(node, domain_name) > 0 || entered(node, domain_name).next().is_some());
        if !lost {
            spec.members = self.membership(domain_name, &spec, candidates).members;
        }
        let mut domain = IMEXDomain::new(domain_name, spec);
        domain.metadata.finalizers = Some(vec![names::DOMAIN_FINALIZER.into()]);
        Write::CreateDomain(Box::new(domain))
    }

    /// Nobody is or will be in it, and no number of it is in use.
    fn disused(&self, domain: &IMEXDomain, members: &BTreeMap<String, Member>, nodes: &[IMEXNode]) -> bool {
        let owner_lives = domain.spec.compute_domain.as_ref().is_some_and(|owner| self.view.cd(&owner.uid).is_some());
        !owner_lives && members.is_empty() && domain.spec.members.is_empty() && placement::vacant(domain, nodes)
    }

    fn domain_write(
        &self,
        domain: &IMEXDomain,
        members: Option<BTreeMap<String, Member>>,
        nodes: Vec<IMEXNode>,
    ) -> DomainWrite {
        let status = domain.status.clone().unwrap_or_default();
        let mut write = DomainWrite {
            domain: domain.clone(),
            members,
            drain: self.reclaim(domain, &nodes),
            drain_if_gone: Vec::new(),
            revive: BTreeSet::new(),
            free: protocol::free(domain, &nodes).is_some(),
            nodes,
            reread: BTreeSet::new(),
            health: Some(health::domain_health(domain, self.view)).filter(|new| status.health.as_ref() != Some(new)),
        };
        for (uid, entry) in &status.channels {
            match (entry.state, self.view.cd(uid)) {
                (ChannelState::Active, Some(cd)) if !cd.deleting => {}
                (ChannelState::Draining, Some(cd)) if !cd.deleting => {
                    let listed = write.nodes.iter().any(|node| lists(node, name(domain), uid).is_some());
                    if listed || self.claimed(cd) {
                        write.revive.insert(uid.clone());
                    }
                }
                (ChannelState::Draining, _) => {}
                (ChannelState::Active, Some(_)) => {
                    write.drain.insert(uid.clone());
                }
                (ChannelState::Active, None) => {
                    let (namespace, name) = entry.compute_domain.split_once('/').unwrap_or_default();
                    let (namespace, name, uid) = (namespace.into(), name.into(), uid.clone());
                    write.drain_if_gone.push(ComputeDomainRef { namespace, name, uid });
                }
            }
        }
        if write.free {
            let drained = status.channels.values().filter(|entry| entry.state == ChannelState::Draining);
            let newest = drained.map(|entry| entry.epoch).max().unwrap_or_default();
            let unmarked = write.nodes.iter().filter(|node| mark(node, name(domain)) < newest);
            write.reread = unmarked.map(|node| name(node).to_string()).collect();
            // A member that the view does not have may have come just now.
            let members = domain.spec.members.keys();
            write.reread.extend(members.filter(|node| self.view.imex_node(node).is_none()).cloned());
            // Nor is it known which domain one is in that nobody can read: the write fails on it.
            write.reread.extend(self.view.unreadable_nodes().iter().cloned());
        }
        write
    }

    /// The channels to take back so that those who wait for a number in a domain without a free one get it.
    fn reclaim(&self, domain: &IMEXDomain, nodes: &[IMEXNode]) -> BTreeSet<String> {
        if domain.spec.kind != DomainKind::Shared {
            return BTreeSet::new();
        }
        let known = domain.status.as_ref().map(|status| &status.channels);
        let inside = nodes.iter().filter(|node| node.spec.domain.as_deref() == Some(name(domain)));
        let full = inside.filter(|node| {
            let count = node.status.as_ref().map_or(0, |status| status.channel_count);
            count > 1 && protocol::exhausted(domain, count)
        });
        let waiting: BTreeSet<&str> = full
            .flat_map(|node| self.view.cds_on(name(node)))
            .filter(|(uid, cd)| {
                cd.alive() && !self.view.exclusive(cd) && known.is_none_or(|known| !known.contains_key(*uid))
            })
            .map(|(uid, _)| uid)
            .collect();
        // One that the view does not know is not judged by it.
        protocol::reclaim(domain, nodes, waiting.len(), |uid| self.view.cd(uid).is_none_or(|cd| self.claimed(cd)))
    }

    /// Claims of the ComputeDomain are allocated in this clique.
    fn claimed(&self, cd: &Cd) -> bool {
        let here = |node: &String| self.view.imex_node(node).is_some_and(|node| self.reports_here(node));
        self.view.claims(cd).any(|claim| claim.nodes.iter().any(here))
    }

    fn moves(&self, places: &BTreeMap<&str, Place<'_>>, plan: &mut CliquePlan) {
        let Some(home) = self.view.domain(&self.home) else { return };
        for place in places.values().filter(|place| self.reports_here(place.node)) {
            let wanted = place.wanted.as_ref().and_then(|wanted| self.view.domain(&wanted.domain));
            let target = placement::next_move(place.node, home, wanted);
            match placement::notice(place.node, target.map(name), self.view.peer_certificates) {
                placement::Notice::None => {}
                placement::Notice::Wait => continue,
                placement::Notice::Tell(next) => {
                    let next = next.map(str::to_owned);
                    self.write_node(plan, place.node, |node| Write::Announce { node, next });
                    continue;
                }
            }
            if let Some(target) = target {
                let target = name(target).into();
                self.write_node(plan, place.node, |node| Write::Move { node, target });
            }
        }
    }

    /// Tells the nodes that report this clique what is wrong with them, or that nothing is any more. A node that is written
    /// anyhow is told in the next pass.
    fn refusals(&self, places: &BTreeMap<&str, Place<'_>>, plan: &mut CliquePlan) {
        let written: BTreeSet<String> = plan.writes.iter().filter_map(written_node).map(str::to_owned).collect();
        for (node, place) in places.iter().filter(|(node, _)| !written.contains(**node)) {
            let problem = plan.problems.get(*node);
            let refused =
                problem.map(|fault| Refusal { reason: fault.reason.into(), message: cut(fault.message.clone()) });
            if self.reports_here(place.node) && place.node.spec.refused != refused {
                plan.writes.push(Write::Refuse { node: Box::new(place.node.clone()), refused });
            }
        }
    }

    /// One write of a node at a time: a fence of the same pass would take its resourceVersion from it.
    fn write_node(&self, plan: &mut CliquePlan, node: &IMEXNode, write: impl FnOnce(Box<IMEXNode>) -> Write) {
        plan.writes.retain(|w| !matches!(w, Write::Fence { node: fenced, .. } if name(&**fenced) == name(node)));
        plan.writes.push(write(Box::new(node.clone())));
    }
}

/// The host runs the node's daemon.
pub(super) fn is_host_managed(node: &IMEXNode) -> bool {
    node.status.as_ref().is_some_and(|status| status.imex_mode == ImexMode::HostManaged)
}

fn candidate(node: &IMEXNode, domain: &str, away: bool) -> Candidate {
    let busy = entered(node, domain).next().is_some();
    let Some(status) = &node.status else { return Candidate { away, busy, ..Candidate::default() } };
    // A daemon of the host has the index of the host's own node map.
    let its_own = status.daemon.domain.as_deref() == Some(domain) && !is_host_managed(node);
    Candidate {
        addresses: status.addresses.clone(),
        channel_count: status.channel_count,
        driver_version: status.driver_version.clone(),
        imex_mode: Some(status.imex_mode),
        node_map: status.daemon.node_map_hash.clone().filter(|_| is_host_managed(node)),
        peer_authentication: status.peer_authentication.clone(),
        away,
        busy,
        index: status.daemon.index.filter(|_| its_own),
    }
}

/// The node that a write is about.
fn written_node(write: &Write) -> Option<&str> {
    match write {
        Write::Announce { node, .. } | Write::Move { node, .. } | Write::Fence { node, .. } => Some(name(&**node)),
        _ => None,
    }
}

/// The domain's channel map does not contradict itself.
fn sound(domain: &IMEXDomain) -> bool {
    let behind = domain.status.iter().any(|map| map.channels.values().any(|entry| map.is_behind(entry)));
    let domains = BTreeMap::from([(name(domain).to_string(), domain.clone())]);
    !behind && Report::of(&World { domains, ..World::default() }).holds()
}

/// The domain has our finalizer: a deletion by hand does not take its channel map away while it is in use.
pub(super) fn guards(domain: &IMEXDomain) -> bool {
    domain.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == names::DOMAIN_FINALIZER)
}

/// The nodes that contradict the domain's channel map: they have entered what it does not say, or know of a later one.
fn suspects(domain: &IMEXDomain, nodes: &[IMEXNode]) -> BTreeSet<String> {
    let (epoch, channels) = domain
        .status
        .as_ref()
        .map(|status| (status.epoch, &status.channels))
        .unwrap_or((0, const { &BTreeMap::new() }));
    let odd = nodes.iter().filter(|node| {
        let mut entered = entered(node, name(domain));
        mark(node, name(domain)) > epoch
            || entered.any(|(uid, channel)| channels.get(uid).is_none_or(|entry| entry.channel != channel))
    });
    odd.map(|node| name(node).to_string()).collect()
}

/// The channels of the domain that the node has entered, by ComputeDomain.
fn entered<'a>(node: &'a IMEXNode, domain: &'a str) -> impl Iterator<Item = (&'a str, u32)> {
    let listed = node.status.iter().flat_map(|status| &status.channels);
    listed.filter(move |(_, entry)| entry.domain == domain).map(|(uid, entry)| (uid.as_str(), entry.channel))
}
