//! Liveness. From whatever has happened, a run without faults in which nobody wants anything new must come to rest, and
//! at rest nothing may be left to do.
//!
//! One such run is looked at from each state: of all that may happen it takes the most urgent thing. So this says that
//! no state is a trap; not that every schedule gets out of it.

use std::collections::HashSet;

use heddle_core::api::ChannelState;
use heddle_core::protocol;
use stateright::Model as _;

use crate::action::{Act, Action};
use crate::memo::key;
use crate::model::Model;
use crate::state::{Belief, Life, State};

/// What is wrong at the end of such a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing.
    Well,
    /// It has no end.
    Restless,
    /// A claim waits that could be prepared.
    Waits,
    /// A number that nobody uses is not freed, or a node lists what nobody there holds.
    Leaks,
    /// An invariant is broken, and no alarm says so.
    Broken,
}

/// What is wanted of the cluster in such a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Want {
    /// What has been asked for.
    Asked,
    /// Nothing more.
    Nothing,
    /// All ComputeDomains that share, on all nodes.
    Shared,
    /// One that does not, on all nodes.
    Exclusive(usize),
}

impl Model {
    /// What is wrong at the end of a run without faults from here, whatever is wanted in it.
    pub fn rest(&self, state: &State) -> Rest {
        let exclusive = (0..self.settings.cds.len()).filter(|c| self.names.cds[*c].exclusive());
        let mut wants = [Want::Nothing, Want::Shared].into_iter().chain(exclusive.map(Want::Exclusive));
        if self.settings.detailed {
            return self.rest_of(state, Want::Asked);
        }
        wants.find_map(|want| Some(self.rest_of(state, want)).filter(|rest| *rest != Rest::Well)).unwrap_or(Rest::Well)
    }

    fn rest_of(&self, state: &State, want: Want) -> Rest {
        let mut passed = HashSet::new();
        let mut here = None;
        let rest = loop {
            let state = here.as_ref().unwrap_or(state);
            let at = key((state, want));
            if let Some(known) = self.memos.rests.known(at) {
                break known;
            }
            if !passed.insert(at) {
                break Rest::Restless;
            }
            match self.helpful(state, want) {
                Some(next) => here = Some(next),
                None => break self.at_rest(state, want),
            }
        };
        passed.into_iter().for_each(|at| self.memos.rests.put(at, rest));
        rest
    }

    /// The state at the end of the run in which nothing more is wanted, if it has one.
    pub fn come_to_rest(&self, mut state: State) -> State {
        let want = if self.settings.detailed { Want::Asked } else { Want::Nothing };
        let mut passed = HashSet::new();
        while let Some(next) = self.helpful(&state, want) {
            state = next;
            if !passed.insert(key(&state)) {
                break;
            }
        }
        state
    }

    /// The next state of such a run.
    fn helpful(&self, state: &State, want: Want) -> Option<State> {
        let truth = self.truth(state, want);
        if state.leaders[0].belief != truth && !self.settings.detailed {
            let mut next = state.clone();
            next.leaders[0].belief = truth;
            return Some(next);
        }
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        let urgent = |action: Action| Some((self.urgency(state, want, &action)?, action));
        let mut urgent: Vec<_> = actions.into_iter().filter_map(urgent).collect();
        urgent.sort_by_key(|(urgency, _)| *urgency);
        urgent.into_iter().find_map(|(_, action)| self.next_state(state, action))
    }

    /// What a controller must believe in such a run.
    fn truth(&self, state: &State, want: Want) -> Belief {
        let truth = state.truth();
        let known = (0..state.cds.len()).filter(|c| self.names.cds[*c].exclusive()).fold(0, |bits, c| bits | 1 << c);
        match want {
            Want::Asked => truth,
            Want::Nothing | Want::Shared => Belief { cds: truth.cds & known, ..Belief::default() },
            Want::Exclusive(c) => {
                let claims = (0..state.nodes.len()).fold(0, |bits, n| bits | state.claim(n, c));
                let alive = truth.cds & (1 << c) != 0;
                Belief { cds: truth.cds & known, claims: if alive { claims } else { 0 }, deleting: 0 }
            }
        }
    }

    fn wanted(&self, state: &State, want: Want, n: usize, c: usize) -> bool {
        let so = match want {
            Want::Asked => state.allocated(n, c),
            Want::Nothing => false,
            Want::Shared => !self.names.cds[c].exclusive(),
            Want::Exclusive(cd) => c == cd,
        };
        so && state.cds[c] == Life::Alive && !state.agents[n].lost
    }

    /// Whether it is part of such a run, and how soon it is done there: what has been decided before what is to be
    /// decided, and nobody decides by an old copy.
    fn urgency(&self, state: &State, want: Want, action: &Action) -> Option<u8> {
        match *action {
            Action::Arrive(_) => Some(0),
            Action::Agent(n, act) => match act {
                Act::Answer | Act::Ghost | Act::Obey => Some(0),
                Act::SeeNode => Some(1),
                Act::SeeDomain => Some(2),
                Act::Unprepare(c) => match want {
                    Want::Asked => (!state.allocated(n, c)).then_some(3),
                    Want::Nothing => None,
                    Want::Shared => self.names.cds[c].exclusive().then_some(3),
                    Want::Exclusive(cd) => (c != cd).then_some(3),
                },
                Act::GiveUp(c) => (!self.wanted(state, want, n, c)).then_some(3),
                Act::Ask(_) => Some(4),
                Act::Keep | Act::Switch => Some(5),
                Act::Enter(c) => self.wanted(state, want, n, c).then_some(6),
                Act::Allocate(c) => self.wanted(state, want, n, c).then_some(7),
                Act::Leave => Some(8),
                Act::Report => Some(9),
                Act::Together | Act::NoAnswer | Act::Crash | Act::Lose => None,
            },
            Action::See(0, _) => Some(10),
            Action::Decide(0, _) => Some(11),
            _ => None,
        }
    }

    fn at_rest(&self, state: &State, want: Want) -> Rest {
        if !self.alarm(state) && !self.report(state).holds() {
            Rest::Broken
        } else if self.leaks(state) {
            Rest::Leaks
        } else if self.waits(state, want) {
            Rest::Waits
        } else {
            Rest::Well
        }
    }

    /// Objects contradict each other, and whoever examines them says so.
    pub fn alarm(&self, state: &State) -> bool {
        let domains = 0..state.domains.len();
        domains.into_iter().any(|d| self.restored(state, d, |_| true).is_some_and(|found| !found.clashes.is_empty()))
    }

    fn leaks(&self, state: &State) -> bool {
        let listed_for_nothing = state.agents.iter().zip(&state.nodes).any(|(agent, node)| {
            let held = self.held(agent);
            !agent.lost && node.is_some_and(|node| crate::state::channels(&node).any(|uid| !held.contains(uid)))
        });
        let mapped = state.domains.iter().flatten();
        let unused = mapped.flat_map(|domain| {
            let channels = domain.status.iter().flat_map(|status| status.channels.keys());
            channels.map(|uid| (domain.metadata.name.as_deref().unwrap_or_default(), uid))
        });
        let unfreed = unused.into_iter().any(|(domain, uid)| {
            let listed = state.nodes.iter().flatten().any(|node| protocol::lists(node, domain, uid).is_some());
            !listed && !self.alive(state, uid)
        });
        listed_for_nothing || unfreed
    }

    /// A claim of a ComputeDomain that lives waits, though its node could give it a number.
    fn waits(&self, state: &State, want: Want) -> bool {
        let mut places = (0..state.nodes.len()).flat_map(|n| (0..state.cds.len()).map(move |c| (n, c)));
        places.any(|(n, c)| {
            let waits = self.wanted(state, want, n, c) && state.agents[n].prepared[c].is_none();
            waits && !self.exhausted(state, n, c)
        })
    }

    /// All numbers are taken by nodes that list them, or by ComputeDomains that live. One that nobody wants is taken back,
    /// where controllers know of claims.
    fn exhausted(&self, state: &State, n: usize, c: usize) -> bool {
        let uid = self.names.cds[c].uid();
        let Some(domain) = state.agents[n].of.and_then(|d| state.domains[usize::from(d)]) else { return false };
        let Some(status) = &domain.status else { return false };
        let name = domain.metadata.name.as_deref().unwrap_or_default();
        let listed = |uid: &str| state.nodes.iter().flatten().any(|node| protocol::lists(node, name, uid).is_some());
        let taken = status.channels.iter().filter(|(other, entry)| {
            let active = self.alive(state, other) && entry.state == ChannelState::Active;
            let in_use = active && (!self.settings.detailed || self.claimed(state, other, self.names.clique_of[n]));
            *other != uid && (in_use || listed(other))
        });
        taken.count() >= self.settings.numbers as usize
    }

    /// The ComputeDomain has claims on nodes of the clique.
    fn claimed(&self, state: &State, uid: &str, clique: usize) -> bool {
        let Some(c) = self.names.cds.iter().position(|cd| cd.uid() == uid) else { return false };
        (0..state.nodes.len()).any(|n| self.names.clique_of[n] == clique && state.claims & state.claim(n, c) != 0)
    }

    fn alive(&self, state: &State, uid: &str) -> bool {
        let c = self.names.cds.iter().position(|cd| cd.uid() == uid);
        c.is_some_and(|c| state.cds[c] == Life::Alive)
    }
}
