use k8s_openapi::api::resource::v1::ResourceClaimTemplate;

use super::template::{self, TemplateStep, ours};
use super::{Cd, Note, View, Write, quarantine, status};
use crate::api::ChannelState;
use crate::fault::{Fault, reason};
use crate::names;
use crate::protocol::name;

/// What a ComputeDomain is at, besides its nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Phase {
    /// The API has an object of this kind that is none.
    Unreadable(String),
    /// Its template is not there yet.
    Preparing,
    /// Its template cannot be made.
    Blocked(Fault),
    /// Pods may use it.
    Serving,
    /// It is being deleted and waits, in words, for this.
    Deleting(Vec<String>),
}

/// What one ComputeDomain needs: finalizer, template, status. `now` stamps conditions that turn.
pub fn compute_domain(view: &View, uid: &str, now: &str) -> Vec<Write> {
    let Some(cd) = view.cd(uid) else { return orphans(view, uid) };
    let mut writes = Vec::new();
    let phase = match (&cd.spec, cd.deleting) {
        (_, true) if !cd.guarded() => return Vec::new(),
        (_, true) => delete(view, cd, &mut writes),
        (Err(why), false) => Phase::Unreadable(why.clone()),
        (Ok(spec), false) => match view.obstacle(cd) {
            // Before anything is said: what is not marked now looks like any other once the schema is ours again.
            Some(_) if cd.unmarked() => return vec![Write::Mark(cd.clone())],
            Some(fault) => Phase::Blocked(fault),
            None if !cd.guarded() => return vec![Write::Guard(cd.clone())],
            None if view.stands(cd) && view.served_by(cd).is_some() => Phase::Serving,
            None => match template::step(view, cd, spec) {
                TemplateStep::Ready => Phase::Serving,
                TemplateStep::Do(write) => {
                    writes.push(write);
                    Phase::Preparing
                }
                TemplateStep::Blocked(fault, write) => {
                    writes.extend(write);
                    Phase::Blocked(fault)
                }
            },
        },
    };
    // A ComputeDomain that has just come gets its first status together with its template.
    let first_look = phase == Phase::Preparing && cd.status.is_none();
    let ends = writes.iter().any(|write| matches!(write, Write::Unguard { .. }));
    // Whatever is written of it now is written without its isolationMode, for good.
    let would_lose = view.stands(cd) && view.exclusive(cd) && !cd.deleting;
    if !first_look && !ends && !would_lose {
        writes.extend(status::write(view, cd, &phase, now));
    }
    writes
}

/// Templates whose ComputeDomain is gone. The view may be behind the API, so the API is asked first.
fn orphans(view: &View, uid: &str) -> Vec<Write> {
    let release = |template| Write::ReleaseTemplate { template, unless_alive: Some(uid.to_string()) };
    view.templates_of(uid)
        .filter(|template| ours(template))
        .map(|template| release(Box::new(template.clone())))
        .collect()
}

/// The template goes first, so that no new claim is made; the channels are drained by the decisions of their cliques;
/// our finalizer goes when both is done and no node that can answer uses a claim.
fn delete(view: &View, cd: &Cd, writes: &mut Vec<Write>) -> Phase {
    let beside =
        |template: &&ResourceClaimTemplate| template.metadata.namespace.as_ref() == Some(&cd.reference.namespace);
    let mut waits = Vec::new();
    for template in view.templates_of(cd.uid()).filter(beside).filter(|template| ours(template)) {
        waits.push(format!("ResourceClaimTemplate {} to go", template.metadata.name.as_deref().unwrap_or_default()));
        writes.push(Write::ReleaseTemplate { template: Box::new(template.clone()), unless_alive: None });
    }
    waits.extend(in_use(view, cd));
    let active = view.domains_with(cd.uid()).filter(|domain| {
        let entry = domain.status.as_ref().and_then(|status| status.channels.get(cd.uid()));
        entry.is_some_and(|entry| entry.state == ChannelState::Active)
    });
    waits.extend(active.map(|domain| format!("its channel in IMEX domain {} to drain", name(domain))));
    if waits.is_empty() {
        let name = cd.spec.as_ref().ok().map(|spec| spec.channel.resource_claim_template.name.clone());
        let template =
            name.filter(|name| names::is_object_name(name)).map(|name| (cd.reference.namespace.clone(), name));
        writes.push(Write::Unguard { cd: Box::new(cd.clone()), template, notes: farewell(view, cd) });
    }
    Phase::Deleting(waits)
}

/// What still uses its channels on nodes that can answer, in words: its claims, or, where somebody has made claims without
/// its label or deleted them by force, the node itself.
fn in_use(view: &View, cd: &Cd) -> Vec<String> {
    let entered = view.nodes_with(cd.uid()).map(name).filter(|node| !view.lost(node));
    let waits = entered.flat_map(|node| {
        let here = view.claims(cd).filter(|claim| claim.nodes.contains(node));
        let mut waits: Vec<_> =
            here.map(|claim| format!("claim {} on node {node} to be unprepared", claim.key.name)).collect();
        if waits.is_empty() {
            waits.push(format!("node {node} to leave its channel, which pods there use"));
        }
        waits
    });
    waits.collect()
}

/// What is said of numbers that outlive the ComputeDomain, unless its condition has said so.
fn farewell(view: &View, cd: &Cd) -> Vec<Note> {
    let conditions = cd.status.iter().flat_map(|status| &status.conditions);
    if conditions.into_iter().any(|condition| condition.reason == reason::CHANNEL_QUARANTINED) {
        return Vec::new();
    }
    let quarantined = view.domains_with(cd.uid()).filter_map(|domain| quarantine::of(view, domain, cd.uid()));
    let note = |message| Note { warning: true, reason: reason::CHANNEL_QUARANTINED.into(), message };
    quarantined.map(|number| note(number.to_string())).collect()
}

/// Whether the IMEXNode of this name may go: its Node is gone and it lists no channel. What it lists would be
/// forgotten with it, and the number given to others while the lost node may run on.
pub fn node(view: &View, node: &str) -> Option<Write> {
    let object = view.imex_node(node)?;
    let listed = object.status.as_ref().is_some_and(|status| !status.channels.is_empty());
    (view.node(node).is_none() && !listed).then(|| Write::Prune(Box::new(object.clone())))
}

/// Our finalizer taken off a list of them.
pub fn without_finalizer(finalizers: &[String]) -> Vec<String> {
    finalizers.iter().filter(|finalizer| *finalizer != names::FINALIZER).cloned().collect()
}
