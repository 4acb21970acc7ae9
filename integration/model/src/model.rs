use std::sync::Arc;

use heddle_core::api::{IMEXDomain, IMEXNode, IMEXNodeSpec, IMEXNodeStatus};
use heddle_core::controller::Write;
use heddle_core::invariants::{Report, RunningDaemon, World};
use heddle_core::protocol;
use stateright::Property;

use crate::action::Action;
use crate::agent::{Outcome, Switch};
use crate::held::Held;
use crate::memo::{Memo, key};
use crate::properties;
use crate::rest::Rest;
use crate::settings::{Names, Settings};
use crate::state::{Agent, Belief, Leader, Life, Seen, Sent, State};

/// One instance, with what has been decided in it so far.
pub struct Model {
    /// What is played.
    pub settings: Settings,
    /// Its names.
    pub names: Names,
    pub(crate) memos: Memos,
    pub(crate) beliefs: Vec<Belief>,
    properties: Vec<Property<Self>>,
}

#[derive(Default)]
pub(crate) struct Memos {
    pub(crate) outcomes: Memo<Outcome>,
    pub(crate) switches: Memo<Option<Switch>>,
    pub(crate) writes: Memo<Arc<Vec<Write>>>,
    pub(crate) domains: Memo<Option<Held<IMEXDomain>>>,
    pub(crate) restored: Memo<Arc<protocol::Restore>>,
    pub(crate) reports: Memo<Arc<Report>>,
    pub(crate) rests: Memo<Rest>,
}

impl Model {
    /// The instance, with the invariants to hold in it always.
    pub fn new(settings: Settings) -> Self {
        let names = Names::of(&settings);
        let properties = properties::always(&settings);
        let beliefs = Self::beliefs(&settings);
        Self { settings, names, memos: Memos::default(), beliefs, properties }
    }

    /// Something that must happen in it, lest it prove nothing.
    #[must_use]
    pub fn sometimes(mut self, name: &'static str, condition: fn(&Self, &State) -> bool) -> Self {
        self.properties.push(Property::sometimes(name, condition));
        self
    }

    /// A cluster at work: nodes have their domains, daemons run, everybody knows everything.
    pub fn at_work(&self) -> State {
        let cds = self.settings.cds.iter().map(|plan| if plan.there { Life::Alive } else { Life::Absent });
        let agent = Agent {
            prepared: vec![None; self.settings.cds.len()],
            daemon: None,
            stopped: false,
            lost: false,
            node: Seen::NOTHING,
            domain: Seen::NOTHING,
            of: None,
            waiting: 0,
            write: None,
            ghosts: Vec::new(),
            strays: true,
            order: None,
        };
        let (nodes, domains) = (self.names.nodes.len(), self.names.domains.len());
        let leader = Leader {
            domains: vec![Seen::NOTHING; domains],
            nodes: vec![Seen::NOTHING; nodes],
            there: 0,
            belief: Belief::default(),
        };
        let state = State {
            domains: vec![None; domains],
            nodes: (0..nodes).map(|n| Some(self.bare_node(n))).collect(),
            there: (1 << nodes) - 1,
            cds: cds.collect(),
            claims: 0,
            agents: vec![agent; nodes],
            leaders: vec![leader; self.settings.leaders],
            sent: Vec::new(),
            backup: None,
            left: self.settings.faults,
        };
        let mut state = self.come_to_rest(state);
        // The objects are there, so an agent has written.
        state.agents.iter_mut().for_each(|agent| agent.strays = false);
        // The others know as much as the first.
        let first = state.leaders[0].clone();
        state.leaders.fill(first);
        state
    }

    /// An IMEXNode as its agent makes it.
    pub(crate) fn bare_node(&self, n: usize) -> Held<IMEXNode> {
        let mut node = IMEXNode::new(&self.names.nodes[n], IMEXNodeSpec::default());
        node.status = Some(IMEXNodeStatus {
            clique: Some(self.names.cliques[self.names.clique_of[n]].to_string()),
            channel_count: self.settings.numbers + 1,
            addresses: vec![Names::address(n)],
            ..Default::default()
        });
        Held::new(node)
    }

    /// The invariants, by the predicates that production asks.
    pub fn report(&self, state: &State) -> Arc<Report> {
        let agents: Vec<_> = state.agents.iter().map(|agent| (&agent.prepared, agent.daemon, agent.stopped)).collect();
        let question = (&state.domains, &state.nodes, agents);
        self.memos.reports.get(key(question), || Arc::new(Report::of(&self.world(state))))
    }

    fn world(&self, state: &State) -> World {
        let name = |n: usize| self.names.nodes[n].clone();
        let agents = || state.agents.iter().enumerate();
        World {
            domains: state.domains.iter().flatten().map(|d| (protocol_name(&**d), (**d).clone())).collect(),
            nodes: state.nodes.iter().flatten().map(|node| (protocol_name(&**node), (**node).clone())).collect(),
            prepared: agents().map(|(n, agent)| (name(n), self.prepared(agent, n))).collect(),
            daemons: agents()
                .map(|(n, agent)| {
                    let domain = agent.daemon.map(|config| config.domain.clone());
                    (name(n), RunningDaemon { domain, stopped_under_claims: agent.stopped.into() })
                })
                .collect(),
        }
    }

    fn arrive(&self, state: &State, at: usize) -> Option<State> {
        let mut next = state.clone();
        match *state.sent.get(at)? {
            Sent::Node(n, object) => {
                next.put_node(n.into(), object, self.settings.bug != Some(crate::Bug::EnterUnguarded))
            }
            Sent::Domain(d, object) => next.put_domain(d.into(), object),
        }
        Some(next)
    }

    fn restore(&self, state: &State) -> Option<State> {
        let (backup, now) = (state.backup?, state.domains[0]?);
        let mut next = state.clone();
        next.left.restores -= 1;
        next.put_domain(0, Some(Held::new(IMEXDomain { status: backup.status.clone(), ..(*now).clone() })));
        (backup.status != now.status).then_some(next)
    }

    /// The node is off: nothing runs there any more. The write may arrive late, or never.
    fn release(&self, state: &State, n: usize) -> Option<State> {
        let object = state.nodes[n]?;
        let released = protocol::release(&object, None, &protocol::Life::default(), false).ok()?;
        let mut next = state.clone();
        next.left.releases -= 1;
        next.agents[n].prepared.fill(None);
        next.agents[n].daemon = None;
        let object = IMEXNode { status: Some(released.status), ..(*object).clone() };
        next.send(Sent::Node(n as u8, Some(Held::new(object)))).then_some(next)
    }

    fn schedule(&self, state: &State, n: usize, c: usize) -> bool {
        let beside = (0..state.cds.len()).filter(|other| *other != c && state.allocated(n, *other));
        let exclusive = |c: usize| self.names.cds[c].exclusive();
        let fits = beside.into_iter().all(|other| !exclusive(other) && !exclusive(c));
        fits && !state.allocated(n, c) && state.cds[c] == Life::Alive && state.there & (1 << n) != 0
    }

    /// All that may happen but for what controllers send.
    pub(crate) fn happenings(&self, state: &State, actions: &mut Vec<Action>) {
        for (c, plan) in self.settings.cds.iter().enumerate() {
            match state.cds[c] {
                Life::Absent if plan.after.is_none_or(|before| state.cds[before] == Life::Gone) => {
                    actions.push(Action::Create(c));
                }
                Life::Alive | Life::Deleting => actions.push(Action::Delete(c)),
                Life::Absent | Life::Gone => {}
            }
        }
        if self.settings.detailed {
            for (n, c) in (0..state.nodes.len()).flat_map(|n| (0..state.cds.len()).map(move |c| (n, c))) {
                if state.allocated(n, c) {
                    actions.push(Action::EndClaim(n, c));
                } else if self.schedule(state, n, c) {
                    actions.push(Action::Schedule(n, c));
                }
            }
        }
        if state.left.restores > 0 {
            actions.push(if state.backup.is_some() { Action::Restore } else { Action::Backup });
        }
        if state.left.releases > 0 && state.sent.len() < self.settings.sent {
            let lost = (0..state.nodes.len()).filter(|n| state.agents[*n].lost);
            actions.extend(lost.map(Action::Release));
        }
        let mut acts = Vec::new();
        for n in 0..state.nodes.len() {
            self.acts(state, n, &mut acts);
            actions.extend(acts.drain(..).map(|act| Action::Agent(n, act)));
        }
        let mut kinds = Vec::new();
        for (l, leader) in state.leaders.iter().enumerate() {
            self.sights(state, l, &mut kinds);
            actions.extend(kinds.drain(..).map(|kind| Action::See(l, kind)));
            if state.left.turns > 0 {
                let others = self.beliefs.iter().enumerate().filter(|(_, belief)| **belief != leader.belief);
                actions.extend(others.map(|(b, _)| Action::Believe(l, b)));
            }
        }
        actions.extend((0..state.sent.len()).flat_map(|at| [Action::Arrive(at), Action::Drop(at)]));
    }

    /// What a controller may send.
    pub(crate) fn decisions(&self, state: &State, l: usize) -> impl Iterator<Item = Action> + use<> {
        let open = state.sent.len() < self.settings.sent;
        let count = if open { self.writes(&state.leaders[l]).len() } else { 0 };
        (0..count).map(move |at| Action::Decide(l, at))
    }
}

impl stateright::Model for Model {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.at_work()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.happenings(state, actions);
        (0..state.leaders.len()).for_each(|l| actions.extend(self.decisions(state, l)));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let with = |change: &dyn Fn(&mut State)| {
            let mut next = state.clone();
            change(&mut next);
            Some(next)
        };
        match action {
            Action::Create(c) => with(&|next| next.cds[c] = Life::Alive),
            Action::Delete(c) if self.settings.detailed && state.cds[c] == Life::Alive => {
                with(&|next| next.cds[c] = Life::Deleting)
            }
            Action::Delete(c) => with(&|next| next.cds[c] = Life::Gone),
            Action::Schedule(n, c) => with(&|next| next.claims |= state.claim(n, c)),
            Action::EndClaim(n, c) => with(&|next| next.claims &= !state.claim(n, c)),
            Action::Backup => with(&|next| next.backup = state.domains[0]),
            Action::Restore => self.restore(state),
            Action::Release(n) => self.release(state, n),
            Action::Agent(n, act) => self.act(state, n, act),
            Action::See(l, kind) => Some(self.see(state, l, kind)),
            Action::Believe(l, b) => with(&|next| {
                next.left.turns -= 1;
                next.leaders[l].belief = self.beliefs[b];
            }),
            Action::Decide(l, at) => self.decide_write(state, l, at),
            Action::Arrive(at) => self.arrive(state, at),
            Action::Drop(at) => with(&|next| _ = next.sent.remove(at)),
        }
    }

    fn properties(&self) -> Vec<Property<Self>> {
        self.properties.clone()
    }
}

fn protocol_name<K: kube::Resource>(object: &K) -> String {
    object.meta().name.clone().unwrap_or_default()
}
