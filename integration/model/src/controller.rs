//! What a controller does: it decides with whatever it knows, reads what its effects read, and sends.

use std::collections::BTreeSet;
use std::sync::Arc;

use heddle_core::api::{ChannelState, EpochMark, IMEXDomain, IMEXNode, IMEXNodeSpec, IsolationMode};
use heddle_core::claim::ClaimKey;
use heddle_core::controller::{self, Cd, LabelledClaim, NodeState, View, Write, placement};
use heddle_core::protocol;

use crate::action::Kind;
use crate::held::Held;
use crate::memo::key;
use crate::model::Model;
use crate::settings::{Bug, Settings};
use crate::state::{Belief, Leader, Life, Seen, Sent, State};

impl Model {
    /// What a controller may be shown: what it does not know yet.
    pub(crate) fn sights(&self, state: &State, l: usize, kinds: &mut Vec<Kind>) {
        let leader = &state.leaders[l];
        let stale = |seen: &[bool]| seen.iter().enumerate().filter(|(_, fresh)| !**fresh).map(|(at, _)| at).collect();
        let domains: Vec<usize> = stale(&leader.domains.iter().map(|seen| seen.fresh).collect::<Vec<_>>());
        kinds.extend(domains.into_iter().map(Kind::Domain));
        let nodes: Vec<usize> = stale(&leader.nodes.iter().map(|seen| seen.fresh).collect::<Vec<_>>());
        kinds.extend(nodes.into_iter().map(Kind::ImexNode));
        kinds.extend((0..state.nodes.len()).filter(|n| (leader.there ^ state.there) & (1 << n) != 0).map(Kind::Node));
        if self.settings.detailed {
            let (known, truth) = (leader.belief, state.truth());
            let cds = (known.cds ^ truth.cds) | (known.deleting ^ truth.deleting);
            kinds.extend((0..state.cds.len()).filter(|c| cds & (1 << c) != 0).map(Kind::Cd));
            let all = (0..state.nodes.len()).flat_map(|n| (0..state.cds.len()).map(move |c| (n, c)));
            let unknown = all.filter(|(n, c)| (known.claims ^ truth.claims) & state.claim(*n, *c) != 0);
            kinds.extend(unknown.map(|(n, c)| Kind::Claim(n, c)));
        }
    }

    /// A watch shows it the object as it is.
    pub(crate) fn see(&self, state: &State, l: usize, kind: Kind) -> State {
        let mut next = state.clone();
        let leader = &mut next.leaders[l];
        let updated = |known: u32, now: u32, bit: u32| (known & !bit) | (now & bit);
        match kind {
            Kind::Domain(d) => leader.domains[d] = Seen::now(state.domains[d]),
            Kind::ImexNode(n) => leader.nodes[n] = Seen::now(state.nodes[n]),
            Kind::Node(n) => leader.there = updated(leader.there, state.there, 1 << n),
            Kind::Cd(c) => {
                let truth = state.truth();
                leader.belief.cds = updated(leader.belief.cds, truth.cds, 1 << c);
                leader.belief.deleting = updated(leader.belief.deleting, truth.deleting, 1 << c);
            }
            Kind::Claim(n, c) => {
                let bit = state.claim(n, c);
                leader.belief.claims = (leader.belief.claims & !bit) | (state.claims & bit);
            }
        }
        next
    }

    /// All that a controller may believe.
    pub(crate) fn beliefs(settings: &Settings) -> Vec<Belief> {
        let exclusive = (0..settings.cds.len()).filter(|c| settings.cds[*c].mode == IsolationMode::Domain);
        let bit = |n: usize, c: usize| 1_u64 << (n * settings.cds.len() + c);
        if settings.detailed {
            return Vec::new();
        }
        let mut beliefs = vec![Belief::default()];
        for c in exclusive {
            let before = beliefs.clone();
            for nodes in 0..1_usize << settings.nodes {
                let claims = (0..settings.nodes).filter(|n| nodes & (1 << n) != 0).fold(0, |bits, n| bits | bit(n, c));
                let with = |b: &Belief| Belief { cds: b.cds | 1 << c, claims: b.claims | claims, ..*b };
                beliefs.extend(before.iter().map(with));
            }
        }
        beliefs
    }

    /// What the controller would write now.
    pub(crate) fn writes(&self, leader: &Leader) -> Arc<Vec<Write>> {
        self.memos.writes.get(key(leader), || {
            let view = self.view(leader);
            let cliques = self.names.cliques.iter().flat_map(|clique| {
                let plan = controller::clique(&view, &clique.to_string());
                plan.writes
            });
            let nodes = self.names.nodes.iter().filter_map(|node| controller::node(&view, node));
            let mut writes: Vec<_> = cliques.chain(nodes).collect();
            self.blunder(leader, &mut writes);
            Arc::new(writes)
        })
    }

    fn view(&self, leader: &Leader) -> View {
        let belief = leader.belief;
        let mut view = View::new(self.settings.certificates);
        for (c, cd) in self.names.cds.iter().enumerate().filter(|(c, _)| belief.cds & (1 << c) != 0) {
            view.put_cd(Cd { deleting: belief.deleting & (1 << c) != 0, ..cd.clone() });
        }
        for n in 0..self.names.nodes.len() {
            if leader.there & (1 << n) != 0 {
                view.put_node(&self.names.nodes[n], NodeState::default());
            }
            for c in 0..self.names.cds.len() {
                if belief.claims & (1 << (n * self.names.cds.len() + c)) != 0 {
                    view.put_claim(self.claim(n, c));
                }
            }
            if let Some(node) = leader.nodes[n].object {
                view.put_imex_node(self.shown_node(&node));
            }
        }
        for domain in leader.domains.iter().filter_map(|seen| seen.object) {
            view.put_domain(self.shown_domain(&domain));
        }
        view
    }

    fn claim(&self, n: usize, c: usize) -> LabelledClaim {
        let name = format!("claim-{n}-{c}");
        let key = ClaimKey { namespace: "team".into(), name: name.clone(), uid: name };
        LabelledClaim { key, cd_uid: self.names.cds[c].uid().into(), nodes: [self.names.nodes[n].clone()].into() }
    }

    /// The node as a controller is shown it, which is as it is, unless a bug is to be found.
    fn shown_node(&self, node: &IMEXNode) -> IMEXNode {
        let mut node = node.clone();
        if self.settings.bug == Some(Bug::FreeWithoutFence)
            && let Some(domain) = node.spec.domain.clone()
        {
            node.spec.fence = Some(EpochMark { domain, epoch: u64::MAX });
        }
        node
    }

    fn shown_domain(&self, domain: &IMEXDomain) -> IMEXDomain {
        let mut domain = domain.clone();
        if self.settings.bug == Some(Bug::FreeWithoutDraining) {
            let entries = domain.status.iter_mut().flat_map(|status| status.channels.iter_mut());
            for (_, entry) in entries {
                (entry.state, entry.epoch) = (ChannelState::Draining, 0);
            }
        }
        domain
    }

    fn blunder(&self, leader: &Leader, writes: &mut Vec<Write>) {
        if !matches!(self.settings.bug, Some(Bug::MoveWhileListed | Bug::SwitchUnderClaims)) {
            return;
        }
        for node in leader.nodes.iter().filter_map(|seen| seen.object) {
            let mut bare = (*node).clone();
            bare.status.iter_mut().for_each(|status| status.channels.clear());
            let others = leader.domains.iter().filter_map(|seen| seen.object);
            for domain in others {
                bare.spec.next.clone_from(&domain.metadata.name);
                if placement::move_in(&bare, &domain).is_none() {
                    continue;
                }
                writes.push(Write::Move { node: Box::new(bare.clone()), target: name(&*domain) });
            }
        }
    }

    /// The controller reads what the write needs, and sends it. None if it would be refused, changes nothing, or nothing
    /// more can be on its way.
    pub(crate) fn decide_write(&self, state: &State, l: usize, at: usize) -> Option<State> {
        if state.sent.len() >= self.settings.sent {
            return None;
        }
        let leader = &state.leaders[l];
        let writes = self.writes(leader);
        let sent = self.sent(state, leader, at, writes.get(at)?)?;
        let mut next = state.clone();
        next.send(sent).then_some(next)
    }

    fn sent(&self, state: &State, leader: &Leader, at: usize, write: &Write) -> Option<Sent> {
        match write {
            Write::Fence { node, mark } => {
                self.spec(leader, node, IMEXNodeSpec { fence: Some(mark.clone()), ..node.spec.clone() })
            }
            Write::Announce { node, next } => {
                self.spec(leader, node, IMEXNodeSpec { next: next.clone(), ..node.spec.clone() })
            }
            Write::Move { node, target } => {
                let domain = state.domains[self.names.domain(target)?]?;
                self.spec(leader, node, placement::move_in(node, &domain)?)
            }
            Write::Prune(node) => {
                let n = self.node(node)?;
                let live = state.nodes[n].filter(|_| state.there & (1 << n) == 0)?;
                (crate::state::channels(&live).next().is_none()).then_some(Sent::Node(n as u8, None))
            }
            Write::CreateDomain(domain) => {
                let d = self.names.domain(&name(&**domain))?;
                state.domains[d].is_none().then(|| Sent::Domain(d as u8, Some(Held::new((**domain).clone()))))
            }
            Write::DeleteDomain { domain, nodes } => {
                let d = self.names.domain(&name(&**domain))?;
                let goes = placement::may_go(domain, &self.read(state, nodes));
                (leader.domains[d].fresh && goes).then_some(Sent::Domain(d as u8, None))
            }
            Write::Domain(write) => {
                let d = self.names.domain(&name(&write.domain))?;
                let seen = leader.domains[d];
                let (known, _) = (seen.object?, seen.fresh.then_some(())?);
                let question = (leader, at, &state.cds, &state.nodes);
                let written = self.memos.domains.get(key(question), || {
                    if let Some(members) = &write.members {
                        let mut domain = (*known).clone();
                        domain.spec.members.clone_from(members);
                        return Some(Held::new(domain));
                    }
                    let gone = write.drain_if_gone.iter().filter(|cd| !self.exists(state, &cd.uid));
                    let gone = gone.map(|cd| cd.uid.clone()).collect();
                    let copies = write.nodes.iter().filter(|node| !write.reread.contains(&name(*node))).cloned();
                    let nodes: Vec<_> = copies.chain(self.read(state, &write.reread)).collect();
                    let mut status = write.status(&write.domain, &gone, &nodes)?;
                    status.health = None;
                    let before = known.status.clone().unwrap_or_default();
                    (status != before).then(|| Held::new(IMEXDomain { status: Some(status), ..(*known).clone() }))
                });
                Some(Sent::Domain(d as u8, Some(written?)))
            }
            Write::Examine { domain, nodes } => {
                let d = self.names.domain(domain)?;
                let restored = self.restored(state, d, |node| nodes.contains(&name(node)))?;
                let status = restored.status.clone()?;
                let live = state.domains[d]?;
                Some(Sent::Domain(d as u8, Some(Held::new(IMEXDomain { status: Some(status), ..(*live).clone() }))))
            }
            _ => None,
        }
    }

    /// What an examination of the domain and these nodes finds now.
    pub(crate) fn restored(
        &self,
        state: &State,
        d: usize,
        examined: impl Fn(&IMEXNode) -> bool,
    ) -> Option<Arc<protocol::Restore>> {
        let live = state.domains[d]?;
        let nodes: Vec<_> = state.nodes.iter().flatten().filter(|node| examined(node)).collect();
        let restored = self.memos.restored.get(key((d, live, &nodes)), || {
            let nodes: Vec<IMEXNode> = nodes.iter().map(|node| (***node).clone()).collect();
            let full_name = |uid: &str| self.names.cds.iter().find(|cd| cd.uid() == uid).map(controller::Cd::full_name);
            Arc::new(protocol::restore(&live, &nodes, full_name))
        });
        Some(restored)
    }

    fn spec(&self, leader: &Leader, node: &IMEXNode, spec: IMEXNodeSpec) -> Option<Sent> {
        let n = self.node(node)?;
        let seen = leader.nodes[n];
        let known = seen.object.filter(|_| seen.fresh)?;
        Some(Sent::Node(n as u8, Some(Held::new(IMEXNode { spec, ..(*known).clone() }))))
    }

    /// The nodes of these names, as they are now.
    fn read(&self, state: &State, names: &BTreeSet<String>) -> Vec<IMEXNode> {
        let all = self.names.nodes.iter().zip(&state.nodes).filter(|(node, _)| names.contains(*node));
        all.filter_map(|(_, node)| node.map(|node| self.shown_node(&node))).collect()
    }

    fn exists(&self, state: &State, uid: &str) -> bool {
        let c = self.names.cds.iter().position(|cd| cd.uid() == uid);
        c.is_some_and(|c| matches!(state.cds[c], Life::Alive | Life::Deleting))
    }

    fn node(&self, node: &IMEXNode) -> Option<usize> {
        self.names.nodes.iter().position(|name| node.metadata.name.as_ref() == Some(name))
    }
}

fn name<K: kube::Resource>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}
