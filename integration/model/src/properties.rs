//! What must hold always, and what must happen sometimes.

use heddle_core::api::{ChannelState, DomainKind};
use stateright::Property;

use crate::model::Model;
use crate::rest::Rest;
use crate::settings::Settings;
use crate::state::{Life, OwnWrite, State};

/// The invariants of an instance. After a restore S1 and S3 may be broken until somebody looks: there they are asked for
/// at rest.
pub(crate) fn always(settings: &Settings) -> Vec<Property<Model>> {
    let mut properties = vec![
        Property::<Model>::always("S2", |model, state| model.report(state).s2.is_empty()),
        Property::<Model>::always("S4", |model, state| model.report(state).s4.is_empty()),
    ];
    if settings.faults.restores == 0 {
        properties.push(Property::<Model>::always("S1", |model, state| model.report(state).s1.is_empty()));
        properties.push(Property::<Model>::always("S3", |model, state| model.report(state).s3.is_empty()));
    }
    if settings.bug.is_none() {
        properties.extend([
            Property::<Model>::always("comes to rest", |model, state| model.rest(state) != Rest::Restless),
            Property::<Model>::always("L1", |model, state| model.rest(state) != Rest::Waits),
            Property::<Model>::always("L2", |model, state| model.rest(state) != Rest::Leaks),
            Property::<Model>::always("well at rest", |model, state| model.rest(state) != Rest::Broken),
        ]);
    }
    properties
}

fn entries(state: &State) -> impl Iterator<Item = (&String, &heddle_core::api::ChannelEntry)> {
    state.domains.iter().flatten().flat_map(|domain| domain.status.iter().flat_map(|status| &status.channels))
}

/// A claim is prepared.
pub fn prepared(_: &Model, state: &State) -> bool {
    state.agents.iter().any(|agent| agent.prepared.iter().any(Option::is_some))
}

/// A number is given that another ComputeDomain had before.
pub fn given_again(_: &Model, state: &State) -> bool {
    // Given, drained and freed are three epochs, and there is one number.
    state.domains.iter().flatten().any(|domain| {
        let status = domain.status.iter().find(|status| status.channels.values().any(|e| e.epoch > 3));
        status.is_some_and(|status| status.channels.values().any(|entry| entry.state == ChannelState::Active))
    })
}

/// A node is fenced in the domain that it serves.
pub fn fenced(_: &Model, state: &State) -> bool {
    state.nodes.iter().flatten().any(|node| node.spec.fence.as_ref().is_some_and(|fence| fence.epoch > 1))
}

/// An enter is on its way and will be refused, because the node has been fenced meanwhile.
pub fn fence_stops_an_enter(_: &Model, state: &State) -> bool {
    let pairs = state.agents.iter().zip(&state.nodes);
    pairs.into_iter().any(|(agent, node)| {
        let fenced = |node: &heddle_core::api::IMEXNode| node.spec.fence.as_ref().map_or(0, |fence| fence.epoch);
        let (Some(known), Some(now)) = (agent.node.object, node) else { return false };
        agent.write == Some(OwnWrite::Doomed { entering: true }) && fenced(now) > fenced(&known)
    })
}

/// An enter is on its way and will be refused, because the node has been moved meanwhile.
pub fn move_stops_an_enter(_: &Model, state: &State) -> bool {
    let pairs = state.agents.iter().zip(&state.nodes);
    pairs.into_iter().any(|(agent, node)| {
        let (Some(known), Some(now)) = (agent.node.object, node) else { return false };
        agent.write == Some(OwnWrite::Doomed { entering: true }) && known.spec.domain != now.spec.domain
    })
}

/// A lost node's claim keeps a drained number from being freed.
pub fn quarantined(model: &Model, state: &State) -> bool {
    let lost = state.agents.iter().filter(|agent| agent.lost);
    lost.flat_map(|agent| agent.prepared.iter().enumerate().filter(|(_, held)| held.is_some())).any(|(c, _)| {
        entries(state).any(|(uid, entry)| uid == model.names.cds[c].uid() && entry.state == ChannelState::Draining)
    })
}

/// A person has released what a lost node listed, and the number is free again.
pub fn freed_by_release(_: &Model, state: &State) -> bool {
    let nodes = state.agents.iter().zip(&state.nodes).filter(|(agent, _)| agent.lost);
    let released = |node: &heddle_core::api::IMEXNode| {
        node.status.as_ref().is_some_and(|status| status.channels.is_empty()) && node.spec.domain.is_some()
    };
    state.left.releases == 0
        && state.sent.is_empty()
        && entries(state).next().is_none()
        && nodes.into_iter().any(|(_, node)| node.is_some_and(|node| released(&node)))
}

/// A number is taken back from a ComputeDomain that lives.
pub fn reclaimed(model: &Model, state: &State) -> bool {
    draining(model, state).next().is_some()
}

/// Since the state before, a number that was being taken back has been opened again.
pub fn revived(model: &Model, before: &State, state: &State) -> bool {
    draining(model, before).any(|(domain, uid)| {
        let now = state.domains[domain].and_then(|now| now.status.as_ref()?.channels.get(&uid).cloned());
        now.is_some_and(|entry| entry.state == ChannelState::Active)
    })
}

fn draining(model: &Model, state: &State) -> impl Iterator<Item = (usize, String)> {
    let mut found = Vec::new();
    for (d, domain) in state.domains.iter().enumerate() {
        let channels = domain.iter().flat_map(|domain| domain.status.iter().flat_map(|status| &status.channels));
        for (uid, _) in channels.filter(|(_, entry)| entry.state == ChannelState::Draining) {
            let c = model.names.cds.iter().position(|cd| cd.uid() == uid);
            if c.is_some_and(|c| state.cds[c] == Life::Alive) {
                found.push((d, uid.clone()));
            }
        }
    }
    found.into_iter()
}

/// An examination finds a contradiction.
pub fn alarmed(model: &Model, state: &State) -> bool {
    model.alarm(state)
}

/// A map that was set back is whole again, with an entry of before.
pub fn put_back(model: &Model, state: &State) -> bool {
    state.left.restores == 0 && prepared(model, state) && model.report(state).holds() && entries(state).next().is_some()
}

/// A claim is prepared in a domain of its own.
pub fn prepared_exclusively(_: &Model, state: &State) -> bool {
    let held = state.agents.iter().flat_map(|agent| agent.prepared.iter().flatten());
    held.into_iter().any(|(_, d)| {
        let domain = state.domains[usize::from(*d)];
        domain.is_some_and(|domain| domain.spec.kind == DomainKind::Exclusive)
    })
}

/// A node has been to an exclusive domain and is home again, and its daemon too.
pub fn back_home(model: &Model, state: &State) -> bool {
    let home = &model.names.domains[0];
    state.agents.iter().zip(&state.nodes).any(|(agent, node)| {
        let serves = node.is_some_and(|node| {
            let been = node.status.as_ref().and_then(|status| status.observed.as_ref());
            node.spec.domain.as_ref() == Some(home)
                && (been.is_some_and(|mark| mark.domain != *home) || moved(&node, home))
        });
        serves && agent.daemon.is_some_and(|daemon| daemon.domain == *home)
    }) && state.cds.contains(&Life::Gone)
}

fn moved(node: &heddle_core::api::IMEXNode, home: &str) -> bool {
    node.spec.fence.as_ref().is_some_and(|fence| fence.domain == home && fence.epoch > 0)
}
