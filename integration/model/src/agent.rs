//! What an agent does. Its decisions are those of `heddle_core`, called in the order in which the actors call them.

use std::collections::{BTreeMap, BTreeSet};

use heddle_core::api::{IMEXDomain, IMEXNode, IsolationMode};
use heddle_core::claim::Prepared;
use heddle_core::imex::{
    self, Answer, Daemon, DaemonState, DomainConfig, Gate, Ledger, Report, Step, Verdict, Wishes, decide, gate,
    readiness,
};
use heddle_core::inventory::Fabric;
use heddle_core::protocol::{self, Allocate};

use crate::action::Act;
use crate::held::Held;
use crate::memo::key;
use crate::model::Model;
use crate::settings::{Bug, Names};
use crate::state::{Agent, Life, Order, OwnWrite, Seen, Sent, State};

/// What an agent wants of its own object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    Enter(usize),
    Leave,
    Keep,
    Report,
    Together,
}

/// What comes of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The write of its own object.
    write: Option<Held<IMEXNode>>,
    /// Claims that are told their channel: ComputeDomain, number, domain.
    granted: Vec<(usize, u8, u8)>,
    /// Claims that are refused.
    refused: Vec<usize>,
    /// The domain with a number for the ComputeDomain.
    allocate: Option<Held<IMEXDomain>>,
}

/// What an agent gives its runner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switch {
    config: Held<DomainConfig>,
    disruptive: bool,
}

impl Model {
    /// What may happen on the node.
    pub(crate) fn acts(&self, state: &State, n: usize, acts: &mut Vec<Act>) {
        let agent = &state.agents[n];
        if !agent.ghosts.is_empty() {
            acts.push(Act::Ghost);
        }
        if agent.lost {
            return;
        }
        let cds = 0..self.settings.cds.len();
        if !agent.node.fresh {
            acts.push(Act::SeeNode);
        }
        if !agent.domain.fresh && agent.of.is_some() {
            acts.push(Act::SeeDomain);
        }
        for c in cds.clone() {
            let detailed = self.settings.detailed;
            match (agent.prepared[c], agent.waiting & (1 << c) != 0) {
                (Some(_), _) if !detailed || !state.allocated(n, c) => acts.push(Act::Unprepare(c)),
                (Some(_), _) => {}
                (None, true) => acts.push(Act::GiveUp(c)),
                (None, false) if detailed && state.allocated(n, c) && state.cds[c] == Life::Alive => {
                    acts.push(Act::Ask(c));
                }
                (None, false) => {}
            }
        }
        match agent.write {
            Some(_) => {
                acts.push(Act::Answer);
                if state.left.unanswered > 0 && agent.ghosts.is_empty() {
                    acts.push(Act::NoAnswer);
                }
            }
            None => {
                acts.extend(cds.clone().filter(|c| self.asked(agent, *c)).map(Act::Enter));
                acts.extend([Act::Leave, Act::Keep, Act::Report]);
                if self.settings.together {
                    acts.push(Act::Together);
                }
            }
        }
        if state.sent.len() < self.settings.sent {
            let waiting = cds.filter(|c| self.asked(agent, *c) && state.cds[*c] == Life::Alive);
            acts.extend(waiting.map(Act::Allocate));
        }
        match agent.order {
            Some(_) => acts.push(Act::Obey),
            None => acts.push(Act::Switch),
        }
        if state.left.crashes > 0 && (agent.ghosts.is_empty() || agent.write.is_none()) {
            acts.push(Act::Crash);
        }
        if state.left.lost > 0 {
            acts.push(Act::Lose);
        }
    }

    /// A claim of the ComputeDomain may be waiting.
    fn asked(&self, agent: &Agent, c: usize) -> bool {
        agent.prepared[c].is_none() && (!self.settings.detailed || agent.waiting & (1 << c) != 0)
    }

    /// The state after it; none if nothing changes.
    pub(crate) fn act(&self, state: &State, n: usize, act: Act) -> Option<State> {
        let agent = &state.agents[n];
        let mut next = state.clone();
        let mine = &mut next.agents[n];
        match act {
            Act::SeeNode => self.see_node(mine, state.nodes[n]),
            Act::SeeDomain => mine.domain = Seen::now(state.domains[usize::from(agent.of?)]),
            Act::Ask(c) => mine.waiting |= 1 << c,
            Act::GiveUp(c) => mine.waiting &= !(1 << c),
            Act::Unprepare(c) => mine.prepared[c] = None,
            Act::Enter(c) => return self.wish(state, next, n, Wish::Enter(c)),
            Act::Leave => return self.wish(state, next, n, Wish::Leave),
            Act::Keep => return self.wish(state, next, n, Wish::Keep),
            Act::Report => return self.wish(state, next, n, Wish::Report),
            Act::Together => return self.wish(state, next, n, Wish::Together),
            Act::Allocate(c) => {
                let domain = self.outcome(state, n, Wish::Enter(c))?.allocate.filter(|_| agent.domain.fresh)?;
                return next.send(Sent::Domain(agent.of?, Some(domain))).then_some(next);
            }
            Act::Answer => return self.answer(state, next, n),
            Act::NoAnswer => {
                next.left.unanswered -= 1;
                forget(mine);
            }
            Act::Ghost => {
                let ghost = mine.ghosts.remove(0);
                self.take(&mut next, n, ghost);
            }
            Act::Switch => {
                let switch = self.switch(state, n)?;
                mine.order = Some(Order { config: switch.config, no_claims_prepared: switch.disruptive });
            }
            Act::Obey => {
                let order = mine.order.take()?;
                let verdict = imex::verdict(mine.daemon.as_deref(), &order.config, None, order.no_claims_prepared);
                match verdict {
                    Verdict::Nothing | Verdict::Refuse(_) => {}
                    Verdict::Restart if mine.prepared.iter().any(Option::is_some) => {
                        (mine.daemon, mine.stopped) = (Some(order.config), true);
                    }
                    Verdict::Hosts | Verdict::Start | Verdict::Restart => mine.daemon = Some(order.config),
                }
            }
            Act::Crash => {
                next.left.crashes -= 1;
                self.crash(mine);
            }
            Act::Lose => {
                next.left.lost -= 1;
                self.crash(mine);
                mine.lost = true;
                next.there &= !(1 << n);
                for c in 0..self.settings.cds.len() {
                    next.claims &= !next.claim(n, c);
                }
            }
        }
        Some(next)
    }

    fn see_node(&self, agent: &mut Agent, node: Option<Held<IMEXNode>>) {
        agent.node = Seen::now(node);
        let named = node.and_then(|node| node.spec.domain.as_deref().and_then(|name| self.names.domain(name)));
        let named = named.map(|d| d as u8);
        if agent.of != named {
            (agent.of, agent.domain) = (named, Seen::NOTHING);
        }
    }

    fn crash(&self, agent: &mut Agent) {
        forget(agent);
        (agent.node, agent.domain, agent.of) = (Seen::NOTHING, Seen::NOTHING, None);
        agent.waiting = 0;
        // The runner obeys nobody who is gone.
        agent.order = None;
    }

    fn answer(&self, state: &State, mut next: State, n: usize) -> Option<State> {
        let accepted = match next.agents[n].write.take()? {
            OwnWrite::Live(write) => {
                self.take(&mut next, n, write);
                true
            }
            OwnWrite::Doomed { .. } => false,
        };
        if next.nodes[n].is_none() {
            next.put_node(n, Some(self.bare_node(n)), true);
        }
        let now = next.nodes[n];
        let agent = &mut next.agents[n];
        self.see_node(agent, now);
        agent.strays &= !accepted;
        (next != *state).then_some(next)
    }

    /// The API server takes a write of the node's status.
    fn take(&self, state: &mut State, n: usize, write: Held<IMEXNode>) {
        let guarded = self.settings.bug != Some(Bug::EnterUnguarded);
        let taken = match state.nodes[n] {
            Some(node) if !guarded => {
                let node = IMEXNode { status: write.status.clone(), ..(*node).clone() };
                Held::new(node)
            }
            _ => write,
        };
        state.put_node(n, Some(taken), guarded);
    }

    fn wish(&self, state: &State, mut next: State, n: usize, wish: Wish) -> Option<State> {
        let outcome = self.outcome(state, n, wish)?;
        let before = &state.agents[n];
        let agent = &mut next.agents[n];
        for (c, channel, domain) in outcome.granted {
            agent.prepared[c] = Some((channel, domain));
            agent.waiting &= !(1 << c);
        }
        for c in outcome.refused {
            agent.waiting &= !(1 << c);
        }
        if let Some(write) = outcome.write {
            // One that is refused from the start shows the agent its object, as its watch does.
            if before.node.fresh || self.settings.bug == Some(Bug::EnterUnguarded) {
                agent.write = Some(OwnWrite::Live(write));
            }
        }
        (next != *state).then_some(next)
    }

    fn outcome(&self, state: &State, n: usize, wish: Wish) -> Option<Outcome> {
        let agent = &state.agents[n];
        let node = agent.node.object?;
        let suspended = agent.order.is_some_and(|order| order.no_claims_prepared);
        let question =
            (n, node, agent.domain.object, agent.waiting, &agent.prepared, agent.strays, agent.daemon, suspended, wish);
        Some(self.memos.outcomes.get(key(question), || self.decide(agent, n, node, suspended, wish)))
    }

    fn decide(&self, agent: &Agent, n: usize, node: Held<IMEXNode>, suspended: bool, wish: Wish) -> Outcome {
        let domain = agent.domain.object;
        let ledger = self.ledger(agent, n);
        let clashes = ledger.clashes(node.status.as_ref(), domain.as_deref());
        let fabric = Fabric::Ready(self.names.cliques[self.names.clique_of[n]]);
        let ready = match suspended {
            true => Err("it is being switched".into()),
            false => ready(agent, &node, domain.as_deref()),
        };
        let mut outcome = Outcome::default();
        let mut wishes = Wishes::default();
        let mut open = BTreeMap::new();
        let entering = (0..self.settings.cds.len()).filter(|c| match wish {
            Wish::Enter(cd) => *c == cd,
            Wish::Together => self.asked(agent, *c),
            _ => false,
        });
        // Whoever asks holds its ComputeDomain, which in instances that are not detailed is not in the state.
        let mut asking = ledger.clone();
        for c in entering.clone() {
            asking.hold(&claim_uid(n, c), &self.names.cds[c].reference.uid);
        }
        let contradicted = asking.abandoned(node.status.as_ref(), domain.as_deref());
        for c in entering {
            let (reference, mode) = self.cd(c);
            if clashes.contains_key(&reference.uid) {
                outcome.refused.push(c);
                continue;
            }
            match gate(reference, mode, Some(&fabric), Some(&node), &ready, None) {
                Gate::Open { .. } if contradicted.contains(&reference.uid) => {}
                Gate::Open { domain } => {
                    open.insert(reference.uid.clone(), (c, domain));
                    wishes.enters.insert(reference.uid.clone(), (reference.clone(), mode));
                }
                Gate::NoFabric | Gate::Refuse(_) => outcome.refused.push(c),
                Gate::Wait(_) => {}
            }
        }
        if matches!(wish, Wish::Leave | Wish::Together) {
            wishes.leaves = ledger.abandoned(node.status.as_ref(), domain.as_deref());
        }
        if matches!(wish, Wish::Keep | Wish::Together) {
            wishes.keeps = ledger.lost(node.status.as_ref());
        }
        if matches!(wish, Wish::Enter(_)) && wishes == Wishes::default() {
            return outcome;
        }
        let strays = agent.strays && self.settings.bug != Some(Bug::TrustOldEntry);
        let report = self.says(n, &node, wish);
        let decision = decide(&node, domain.as_deref(), &report, &wishes, strays, "now");
        for (uid, answer) in decision.enters {
            let Some((c, of)) = open.get(&uid) else { continue };
            match answer {
                Answer::Entered(channel) => {
                    let of = self.names.domain(of).expect("the gate opens to a known domain");
                    outcome.granted.push((*c, channel as u8, of as u8));
                }
                Answer::Refuse(_) => outcome.refused.push(*c),
                Answer::NeedsChannel => outcome.allocate = self.allocate(*c, &node, domain.as_deref()),
                Answer::Wait(_) => {}
            }
        }
        outcome.write = decision.status.map(|mut status| {
            // Nobody decides by it.
            status.channels.values_mut().for_each(|entry| entry.since.clear());
            Held::new(IMEXNode { status: Some(status), ..(*node).clone() })
        });
        outcome
    }

    fn says(&self, n: usize, node: &IMEXNode, wish: Wish) -> Report {
        let mut report = Report { addresses: vec![Names::address(n)], ..Default::default() };
        if self.settings.certificates && matches!(wish, Wish::Report | Wish::Together) {
            let names = [&node.spec.domain, &node.spec.next].into_iter().flatten();
            report.certificates = Some(names.map(|name| (name.clone(), String::new())).collect());
        }
        report
    }

    fn allocate(&self, c: usize, node: &IMEXNode, domain: Option<&IMEXDomain>) -> Option<Held<IMEXDomain>> {
        let (domain, (reference, mode)) = (domain?, self.cd(c));
        let count = node.status.as_ref().map_or(0, |status| status.channel_count);
        match protocol::allocate(domain, reference, mode, count) {
            Ok(Allocate::Write { status, .. }) => {
                Some(Held::new(IMEXDomain { status: Some(status), ..domain.clone() }))
            }
            _ => None,
        }
    }

    fn switch(&self, state: &State, n: usize) -> Option<Switch> {
        let agent = &state.agents[n];
        let (node, domain) = (agent.node.object?, agent.domain.object);
        let question = (n, node, domain, agent.daemon, &agent.prepared, agent.waiting);
        self.memos.switches.get(key(question), || {
            let wanted = settings(&node, domain.as_deref()).ok()?;
            let may = match self.settings.bug {
                Some(Bug::SwitchUnderClaims) => Ok(()),
                _ => self.ledger(agent, n).may_switch(),
            };
            let sent = agent.daemon.map_or(imex::Sent::Nothing, |config| imex::Sent::Applied((*config).clone()));
            match imex::next(Some(&wanted), &sent, &daemon(agent), may.is_err()) {
                Step::Apply { config, disruptive } => {
                    (!disruptive || may.is_ok()).then(|| Switch { config: Held::new(config), disruptive })
                }
                Step::Nothing | Step::Stop | Step::WaitForLeave(_) => None,
            }
        })
    }

    fn cd(&self, c: usize) -> (&heddle_core::api::ComputeDomainRef, IsolationMode) {
        (&self.names.cds[c].reference, self.settings.cds[c].mode)
    }

    /// What the agent's claims hold.
    pub(crate) fn ledger(&self, agent: &Agent, n: usize) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.restore(self.prepared(agent, n));
        for c in (0..self.settings.cds.len()).filter(|c| agent.waiting & (1 << c) != 0) {
            ledger.hold(&claim_uid(n, c), &self.names.cds[c].reference.uid);
        }
        ledger
    }

    /// The claims of its checkpoints.
    pub(crate) fn prepared(&self, agent: &Agent, n: usize) -> Vec<Prepared> {
        let held = agent.prepared.iter().enumerate().filter_map(|(c, held)| Some((c, (*held)?)));
        let prepared = held.map(|(c, (channel, domain))| Prepared {
            claim_uid: claim_uid(n, c),
            cd_uid: self.names.cds[c].reference.uid.clone(),
            channel: channel.into(),
            domain: self.names.domains[usize::from(domain)].clone(),
        });
        prepared.collect()
    }

    /// The ComputeDomains that are held here.
    pub(crate) fn held(&self, agent: &Agent) -> BTreeSet<String> {
        let holds = |c: &usize| agent.prepared[*c].is_some() || agent.waiting & (1 << c) != 0;
        (0..self.settings.cds.len()).filter(holds).map(|c| self.names.cds[c].reference.uid.clone()).collect()
    }
}

fn claim_uid(n: usize, c: usize) -> String {
    format!("claim-{n}-{c}")
}

/// Its write may arrive yet, and it does not know.
fn forget(agent: &mut Agent) {
    if let Some(OwnWrite::Live(write)) = agent.write.take() {
        agent.ghosts.push(write);
    }
    agent.strays = true;
}

/// What the daemon is to be started with. Addresses change nothing that is decided here.
fn settings(node: &IMEXNode, domain: Option<&IMEXDomain>) -> Result<DomainConfig, String> {
    Ok(DomainConfig { hosts: Vec::new(), ..imex::desired(node, domain)? })
}

fn daemon(agent: &Agent) -> Daemon {
    match agent.daemon {
        Some(config) => Daemon {
            domain: Some(config.domain.clone()),
            state: DaemonState::Ready,
            index: Some(config.index),
            node_map_hash: config.node_map_hash(),
            message: String::new(),
            listens_at: None,
        },
        None => Daemon::default(),
    }
}

fn ready(agent: &Agent, node: &IMEXNode, domain: Option<&IMEXDomain>) -> Result<String, String> {
    let wanted = settings(node, domain)?;
    readiness(&wanted, Some(&daemon(agent))).map(|()| wanted.domain)
}
