use super::health;
use super::lifecycle::Phase;
use super::status::{Facts, Use};
use super::write::Note;
use crate::api::{ChannelEntry, ChannelState, IMEXDomain, IsolationMode};
use crate::condition::{Condition, Draft, draft, enumerate};
use crate::fault::{Fault, reason};
use crate::imex::host_refusal;
use crate::protocol::{name, no_free};

/// Pods may use it, and those that do are ready.
pub const READY: &str = "Ready";
/// It has a channel in each clique where nodes use it.
pub const CHANNEL_ASSIGNED: &str = "ChannelAssigned";
/// It is kept apart from all others, as its isolationMode says.
pub const ISOLATED: &str = "Isolated";
/// Something needs a person's attention though it may still work.
pub const DEGRADED: &str = "Degraded";

/// All four conditions.
pub(super) fn conditions(facts: &Facts<'_>, phase: &Phase) -> Vec<Draft> {
    vec![ready(facts, phase), channel_assigned(facts), isolated(facts), degraded(facts)]
}

fn ready(facts: &Facts<'_>, phase: &Phase) -> Draft {
    let no = |reason: &str, message: String| draft(READY, "False", reason, message);
    match phase {
        Phase::Unreadable(why) => return no(reason::INVALID_SPEC, format!("{why}; delete it and create it anew")),
        Phase::Preparing => return no("TemplatePending", "its ResourceClaimTemplate is being made".into()),
        Phase::Blocked(fault) => return no(fault.reason, fault.message.clone()),
        Phase::Deleting(waits) => {
            return no("Deleting", format!("it is being deleted and waits for {}", enumerate(waits.iter().cloned())));
        }
        Phase::Serving => {}
    }
    if let Some(fault) = refused(facts) {
        return no(fault.reason, fault.message);
    }
    let ready = facts.nodes.iter().filter(|used| used.state.is_ok()).count();
    let missing = facts.nodes.iter().filter_map(|used| Some(format!("{} {}", used.name, used.state.as_ref().err()?)));
    let missing: Vec<_> = missing.collect();
    let wanted = facts.cd.spec.as_ref().map_or(0, |spec| spec.num_nodes.max(0)) as usize;
    if !missing.is_empty() {
        let text = format!("{ready} of {} nodes are ready: {}", facts.nodes.len(), enumerate(missing.into_iter()));
        return no("NodesNotReady", text);
    }
    if ready < wanted && facts.cluster < wanted {
        let text = format!(
            "{ready} nodes are ready, numNodes is {wanted}, and the cluster has fewer nodes with an agent of Heddle: it is \
             ready once there are as many, or create it anew with a smaller numNodes"
        );
        return no(reason::TOO_FEW_NODES, text);
    }
    if ready < wanted {
        return no("WaitingForNodes", format!("{ready} nodes are ready, numNodes is {wanted}"));
    }
    match ready {
        0 => draft(READY, "True", "NoPods", "its template is in place, no pod uses it yet"),
        _ => draft(READY, "True", "NodesReady", format!("all of its nodes are ready: {ready}")),
    }
}

fn channel_assigned(facts: &Facts<'_>) -> Draft {
    if let Some(domain) = facts.exhausted.first() {
        let fault = no_free(domain);
        let text = format!(
            "{}; it gets one as soon as another ComputeDomain is deleted or unused (`heddle channel list` has them all)",
            fault.message
        );
        return draft(CHANNEL_ASSIGNED, "False", fault.reason, text);
    }
    let of = |state| facts.channels.iter().filter(move |(_, entry)| entry.state == state);
    let named =
        |held: &(&IMEXDomain, &ChannelEntry)| format!("channel {} of IMEX domain {}", held.1.channel, name(held.0));
    if of(ChannelState::Active).next().is_some() {
        return draft(CHANNEL_ASSIGNED, "True", "Assigned", enumerate(of(ChannelState::Active).map(named)));
    }
    if of(ChannelState::Draining).next().is_some() {
        if facts.cd.alive() {
            return reclaimed();
        }
        let text = format!("{} is being drained", enumerate(of(ChannelState::Draining).map(named)));
        return draft(CHANNEL_ASSIGNED, "False", reason::CHANNEL_DRAINING, text);
    }
    // It may have been quicker than this was written.
    let before = facts.cd.status.iter().flat_map(|status| &status.conditions);
    let mut before = before.filter(|known| known.type_ == CHANNEL_ASSIGNED);
    let had = before.any(|known| known.status == "True" || known.reason == reason::CHANNEL_RECLAIMED);
    if (had || facts.taken_back) && facts.cd.alive() && !facts.nodes.iter().any(|used| used.entered) {
        return reclaimed();
    }
    let fabric = |used: &&Use<'_>| used.node.and_then(|node| node.status.as_ref()?.clique.as_ref()).is_some();
    if facts.nodes.iter().filter(fabric).any(|used| used.entered) {
        let text = "its nodes use a channel that the IMEX domain's map has lost; the controller restores it from them if nobody else has it";
        return draft(CHANNEL_ASSIGNED, "False", reason::CHANNEL_PENDING, text);
    }
    if !facts.nodes.is_empty() && facts.nodes.iter().all(|used| used.entered) {
        return draft(
            CHANNEL_ASSIGNED,
            "False",
            "NoFabric",
            "its nodes have no NVLink fabric: there is no channel to assign",
        );
    }
    let text = "the first node that prepares a claim of it gets one";
    draft(CHANNEL_ASSIGNED, "False", reason::CHANNEL_PENDING, text)
}

fn reclaimed() -> Draft {
    let text = "nobody used its channel, and the IMEX domain had none left for another; its next claim gets a new one";
    draft(CHANNEL_ASSIGNED, "False", reason::CHANNEL_RECLAIMED, text)
}

fn isolated(facts: &Facts<'_>) -> Draft {
    if let Some(open) = open_doors(facts) {
        return draft(ISOLATED, "False", reason::RUNTIME_GUARD_OPEN, open);
    }
    if let Some(text) = clashes(facts) {
        return draft(ISOLATED, "False", reason::CHANNEL_CLASH, text);
    }
    if let Some(fault) = refused(facts) {
        return draft(ISOLATED, "False", fault.reason, fault.message);
    }
    let waiting = facts.nodes.iter().filter_map(|used| Some(format!("{} {}", used.name, used.not_isolated.as_ref()?)));
    let waiting: Vec<_> = waiting.collect();
    if !waiting.is_empty() {
        let never = facts.nodes.iter().any(|used| used.never_certified);
        let reason = if never { reason::AUTHENTICATION_MISMATCH } else { reason::DOMAIN_PENDING };
        return draft(ISOLATED, "False", reason, enumerate(waiting.into_iter()));
    }
    if !facts.channels.iter().any(|(_, entry)| entry.state == ChannelState::Active) {
        return draft(ISOLATED, "Unknown", reason::CHANNEL_PENDING, "it has no channel yet");
    }
    match facts.mode {
        IsolationMode::Channel => {
            draft(ISOLATED, "True", "ByChannel", "its channel is its own in the shared IMEX domain")
        }
        IsolationMode::Domain => draft(ISOLATED, "True", "ByDomain", "its nodes and their IMEX domain are its own"),
    }
}

fn clashes(facts: &Facts<'_>) -> Option<String> {
    let told = enumerate(facts.clashes.iter().cloned());
    (!told.is_empty()).then(|| format!("{told}; delete the pods there, or power the node off"))
}

/// Why an exclusive ComputeDomain gets no domain of its own where the daemons are their hosts'.
fn refused(facts: &Facts<'_>) -> Option<Fault> {
    let on: Vec<_> = facts.nodes.iter().filter(|used| used.host_managed).map(|used| used.name.to_owned()).collect();
    match on.len() {
        0 if facts.unservable => Some(host_refusal(&facts.cd.reference, "every node")),
        0 => None,
        1 => Some(host_refusal(&facts.cd.reference, &format!("node {}", on[0]))),
        _ => Some(host_refusal(&facts.cd.reference, &format!("nodes {}", enumerate(on.into_iter())))),
    }
}

/// The nodes through whose container runtime any pod can have the ComputeDomain's channel. They mostly lack the same:
/// the first one's words are told.
fn open_doors(facts: &Facts<'_>) -> Option<String> {
    let open: Vec<_> = facts.nodes.iter().filter(|used| used.open_door.is_some()).collect();
    let first = open.first()?;
    let names = enumerate(open.iter().map(|used| used.name.to_owned()));
    Some(format!("any pod on {names} can have its channel: {}", first.open_door.unwrap_or_default()))
}

/// All that is wrong with what it works on, the worst first; its reason is the condition's.
fn degraded(facts: &Facts<'_>) -> Draft {
    let problems: Vec<_> = facts.nodes.iter().filter_map(|used| used.problem).collect();
    // A node that has entered had a READY daemon then.
    let broken = facts.nodes.iter().filter(|used| used.entered && used.state.is_err());
    let broken: Vec<_> =
        broken.filter_map(|used| Some(format!("{} {}", used.name, used.state.as_ref().err()?))).collect();
    let recovery = facts.nodes.iter().filter(|used| used.entered);
    let recovery: Vec<_> = recovery.filter_map(|used| Some(format!("{}: {}", used.name, used.recovery?))).collect();
    let mut found: Vec<(&str, String)> = clashes(facts).map(|text| (reason::CHANNEL_CLASH, text)).into_iter().collect();
    if facts.cd.deleting && !facts.quarantined.is_empty() {
        let text = enumerate(facts.quarantined.iter().map(ToString::to_string));
        found.push((reason::CHANNEL_QUARANTINED, format!("{text}; the deletion does not wait for it")));
    }
    if let Some(first) = problems.first() {
        found.push((first.reason, enumerate(problems.iter().map(|fault| fault.message.clone()))));
    }
    if !broken.is_empty() {
        found.push((reason::DAEMON_NOT_READY, enumerate(broken.into_iter())));
    }
    if !facts.split.is_empty() {
        let text = "look at the network between them, and at their imex-runner's logs";
        found.push((reason::PEERS_DISCONNECTED, format!("{}: {text}", health::told(&facts.split))));
    }
    if !recovery.is_empty() {
        let text = "the driver asks for it, and nothing is done by itself while jobs run";
        found.push((reason::RECOVERY_NEEDED, format!("{} ({text})", enumerate(recovery.into_iter()))));
    }
    if facts.lost {
        let text = "its isolationMode was dropped while another driver's CustomResourceDefinition was served, and it goes on as \
                    Domain: delete it and create it anew when that suits its users";
        found.push((reason::FIELDS_DROPPED, text.to_owned()));
    }
    let Some((worst, _)) = found.first() else {
        return draft(DEGRADED, "False", "AsExpected", "every node that has entered serves it");
    };
    let text: Vec<_> = found.iter().map(|(_, text)| text.as_str()).collect();
    draft(DEGRADED, "True", worst, text.join("; "))
}

/// The Events of what has turned: another status or another reason. What a new ComputeDomain merely lacks as yet is
/// none.
pub fn notes(before: &[Condition], drafts: &[Draft]) -> Vec<Note> {
    let turned = drafts.iter().filter(|draft| {
        let known = before.iter().find(|known| known.type_ == draft.type_);
        known.is_none_or(|known| known.status != draft.status || known.reason != draft.reason)
            && (known.is_some() || !quiet(draft))
            && !waiting(draft)
    });
    turned.map(|draft| Note { warning: bad(draft), reason: reason_of(draft), message: draft.message.clone() }).collect()
}

fn bad(draft: &Draft) -> bool {
    let lasting = [
        reason::TEMPLATE_CONFLICT,
        reason::TEMPLATE_REFUSED,
        reason::INVALID_SPEC,
        reason::TOO_FEW_NODES,
        reason::CHANNELS_EXHAUSTED,
        reason::CHANNEL_CLASH,
        reason::RUNTIME_GUARD_OPEN,
        reason::CRD_OUTDATED,
        reason::FIELDS_DROPPED,
        reason::HOST_MANAGED_IMEX,
        reason::AUTHENTICATION_MISMATCH,
    ];
    (draft.type_ == DEGRADED && draft.status == "True") || lasting.contains(&draft.reason.as_str())
}

/// The good end of a Degraded condition would read `AsExpected`.
fn reason_of(draft: &Draft) -> String {
    match (draft.type_, draft.status) {
        (DEGRADED, "False") => "Recovered".into(),
        _ => draft.reason.clone(),
    }
}

fn quiet(draft: &Draft) -> bool {
    draft.type_ == DEGRADED && draft.status == "False"
}

/// Stages that pass by themselves in the normal course of things.
fn waiting(draft: &Draft) -> bool {
    ["TemplatePending", "NoPods", reason::CHANNEL_PENDING, reason::CHANNEL_DRAINING].contains(&draft.reason.as_str())
}
