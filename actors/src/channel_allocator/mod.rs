//! Which ComputeDomains this node has entered, and for which claims: allocates, enters and leaves channels.
//!
//! All numbers come from the objects. What the claims hold comes from the checkpoints (`Restore`) and from what was
//! granted since, so that after a restart of the agent both sides are compared and the difference is acted on.

mod allocate;
mod message;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::api::{ComputeDomainRef, IMEXDomain, IMEXDomainStatus, IMEXNodeStatus, IsolationMode};
use heddle_core::claim::{Grant, Prepared};
use heddle_core::fault::{Class, Fault, reason};
use heddle_core::imex::{Answer, Gate, Ledger, gate};
use heddle_core::inventory::Fabric;
use heddle_core::protocol;
use kube::Client;

use tokio::time::Instant;

pub use message::{Allocated, Message, Ready};

use crate::agent::Tell;
use crate::node_link::{self, DomainView};
use crate::runtime::{Actor, Addr, AskError, Cx, Reply};

/// Pause before what failed for a reason outside of the objects is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// What a [`ChannelAllocator`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// The API, for allocations.
    pub client: Client,
    /// The only writer of the node's object.
    pub node_link: Addr<node_link::Message>,
    /// Who hears whether the daemon may be ended, and why not.
    pub may_switch: Tell<Result<(), String>>,
    /// Called at the start of each incarnation: somebody must answer with `Restore`.
    pub restore: Rc<dyn Fn()>,
}

/// Owns the ledger of claims and the enters that wait.
pub struct ChannelAllocator {
    settings: Settings,
    view: Option<DomainView>,
    fabric: Option<Fabric>,
    ready: Ready,
    /// Why the node gives no channel whatever its fabric and its daemon are.
    withheld: Option<Fault>,
    ledger: Ledger,
    /// Enters by claim UID.
    waiting: BTreeMap<String, Waiting>,
    /// What is under way, by ComputeDomain UID: whether something it was decided on has changed since.
    underway: BTreeMap<String, bool>,
    /// Verifications that wait for an entry to be put back, by ComputeDomain UID.
    verifying: BTreeMap<String, Vec<Reply<Result<(), Fault>>>>,
    keeping: BTreeSet<String>,
    /// ComputeDomains whose entries contradict each other: no new claim of theirs gets a channel here.
    clashes: BTreeMap<String, Fault>,
    said: Option<Result<(), String>>,
}

struct Waiting {
    cd: ComputeDomainRef,
    mode: IsolationMode,
    reply: Reply<Result<Grant, Fault>>,
    missing: Fault,
    /// Since when, for the same reason.
    since: Instant,
}

impl ChannelAllocator {
    /// An allocator without claims.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            view: None,
            fabric: None,
            ready: Err("the IMEX daemon of this node has not been asked yet".into()),
            withheld: None,
            ledger: Ledger::default(),
            waiting: BTreeMap::new(),
            underway: BTreeMap::new(),
            verifying: BTreeMap::new(),
            keeping: BTreeSet::new(),
            clashes: BTreeMap::new(),
            said: None,
        }
    }

    fn node_status(&self) -> Option<&IMEXNodeStatus> {
        self.view.as_ref()?.node.status.as_ref()
    }

    fn gate(&self, waiting: &Waiting) -> Gate {
        if let Some(clash) = self.clashes.get(&waiting.cd.uid) {
            return Gate::Refuse(clash.clone());
        }
        let node = self.view.as_ref().map(|view| &*view.node);
        gate(&waiting.cd, waiting.mode, self.fabric.as_ref(), node, &self.ready, self.withheld.as_ref())
    }

    /// Takes every waiting enter as far as it gets now.
    fn advance(&mut self, cx: &mut Cx<'_, Self>) {
        self.forget_askers_that_went_away();
        let claims: Vec<String> = self.waiting.keys().cloned().collect();
        for claim_uid in claims {
            let Some(waiting) = self.waiting.get(&claim_uid) else { continue };
            let (cd, mode) = (waiting.cd.clone(), waiting.mode);
            if self.pass_gate(&claim_uid).is_some() && !self.underway.contains_key(&cd.uid) {
                self.enter(cd, mode, cx);
            }
        }
    }

    /// The domain that a waiting claim may enter now. Otherwise it is answered, or what it waits for is noted.
    fn pass_gate(&mut self, claim_uid: &str) -> Option<String> {
        match self.gate(self.waiting.get(claim_uid)?) {
            Gate::Open { domain } => return Some(domain),
            Gate::Wait(fault) => self.note(claim_uid, fault),
            Gate::NoFabric => self.answer(claim_uid, Ok(Grant::NoFabric)),
            Gate::Refuse(fault) => self.answer(claim_uid, Err(fault)),
        }
        None
    }

    /// An asker that went away without a word died; whoever comes for the claim next asks anew.
    fn forget_askers_that_went_away(&mut self) {
        let ledger = &mut self.ledger;
        self.waiting.retain(|claim_uid, waiting| {
            let gone = waiting.reply.is_closed();
            if gone {
                ledger.release(claim_uid);
            }
            !gone
        });
    }

    fn note(&mut self, claim_uid: &str, missing: Fault) {
        if let Some(waiting) = self.waiting.get_mut(claim_uid)
            && waiting.missing != missing
        {
            tracing::info!(claim = claim_uid, reason = missing.reason, "a claim waits: {missing}");
            if waiting.missing.reason != missing.reason {
                waiting.since = Instant::now();
            }
            waiting.missing = missing;
        }
    }

    fn note_all(&mut self, cd_uid: &str, missing: &Fault) {
        for claim_uid in self.waiting_for(cd_uid) {
            self.note(&claim_uid, missing.clone());
        }
    }

    fn waiting_for(&self, cd_uid: &str) -> Vec<String> {
        let of_this = self.waiting.iter().filter(|(_, waiting)| waiting.cd.uid == cd_uid);
        of_this.map(|(claim_uid, _)| claim_uid.clone()).collect()
    }

    /// The ComputeDomain, if a claim waits for it; its mode never changes.
    fn wanted(&self, cd_uid: &str) -> Option<(ComputeDomainRef, IsolationMode)> {
        self.waiting.values().find(|w| w.cd.uid == cd_uid).map(|w| (w.cd.clone(), w.mode))
    }

    /// Ends an enter. A claim that gets no channel holds nothing.
    fn answer(&mut self, claim_uid: &str, answer: Result<Grant, Fault>) {
        let Some(waiting) = self.waiting.remove(claim_uid) else { return };
        match &answer {
            Ok(Grant::Channel { channel, domain, .. }) if !waiting.reply.is_closed() => self.ledger.grant(&Prepared {
                claim_uid: claim_uid.to_owned(),
                cd_uid: waiting.cd.uid.clone(),
                channel: *channel,
                domain: domain.clone(),
            }),
            _ => self.ledger.release(claim_uid),
        }
        waiting.reply.send(answer);
    }

    fn refuse_all(&mut self, cd_uid: &str, fault: &Fault) {
        for claim_uid in self.waiting_for(cd_uid) {
            self.answer(&claim_uid, Err(fault.clone()));
        }
    }

    fn enter(&mut self, cd: ComputeDomainRef, mode: IsolationMode, cx: &mut Cx<'_, Self>) {
        self.underway.insert(cd.uid.clone(), false);
        let link = self.settings.node_link.clone();
        let cd_uid = cd.uid.clone();
        let asked = async move { link.ask(|reply| node_link::Message::Enter { cd, mode, reply }).await };
        cx.spawn_then("enter", asked, move |answer| Message::Entered { cd_uid, answer });
    }

    fn entered(&mut self, cd_uid: &str, answer: Result<Answer, AskError>, cx: &mut Cx<'_, Self>) {
        let changed = self.underway.remove(cd_uid).unwrap_or_default();
        match answer {
            Ok(Answer::Entered(channel)) => self.grant(cd_uid, channel),
            Ok(Answer::NeedsChannel) => self.pause_before_allocating(cd_uid, cx),
            Ok(Answer::Wait(fault)) => {
                self.note_all(cd_uid, &fault);
                if changed {
                    self.advance(cx);
                }
            }
            Ok(Answer::Refuse(fault)) => self.refuse_all(cd_uid, &fault),
            Err(error) => {
                self.note_all(cd_uid, &error.into());
                cx.after(RETRY, Message::Again);
            }
        }
    }

    /// The node lists the channel: whoever waits for it and may have it gets it. The gate is asked once more, for the
    /// daemon may have been suspended meanwhile.
    fn grant(&mut self, cd_uid: &str, channel: u32) {
        let channel_count = self.node_status().map_or(0, |status| status.channel_count);
        for claim_uid in self.waiting_for(cd_uid) {
            if let Some(domain) = self.pass_gate(&claim_uid) {
                tracing::info!(claim = claim_uid, compute_domain = cd_uid, channel, domain, "channel entered");
                self.answer(&claim_uid, Ok(Grant::Channel { channel, domain, channel_count }));
            }
        }
    }

    /// All nodes of a fresh ComputeDomain come to this point at once; one allocation is enough. Each waits for a random
    /// while, the longer the more members there are, and looks again.
    fn pause_before_allocating(&mut self, cd_uid: &str, cx: &mut Cx<'_, Self>) {
        let Some((cd, _)) = self.wanted(cd_uid) else { return };
        let text = format!("ComputeDomain {}/{} is being given a channel", cd.namespace, cd.name);
        self.note_all(cd_uid, &Fault::retryable(reason::CHANNEL_PENDING, text));
        self.underway.insert(cd_uid.to_owned(), false);
        let members = self.view.as_ref().and_then(|view| view.domain.as_ref()).map_or(1, |d| d.spec.members.len());
        cx.after(allocate::pause(members), Message::SecondLook { cd_uid: cd_uid.to_owned() });
    }

    /// The domain, and its channel map with a channel for the ComputeDomain: if somebody still waits for it and it still
    /// has none.
    fn next_map(&mut self, cd_uid: &str, cx: &mut Cx<'_, Self>) -> Option<(Arc<IMEXDomain>, IMEXDomainStatus)> {
        self.underway.remove(cd_uid);
        let (cd, mode) = self.wanted(cd_uid)?;
        let count = self.node_status().map_or(0, |status| status.channel_count);
        let Some(domain) = self.view.as_ref().and_then(|view| view.domain.clone()) else {
            self.advance(cx);
            return None;
        };
        match protocol::allocate(&domain, &cd, mode, count) {
            Ok(protocol::Allocate::Already(_) | protocol::Allocate::Draining) => self.advance(cx),
            Ok(protocol::Allocate::Write { status, .. }) => {
                self.underway.insert(cd_uid.to_owned(), false);
                return Some((domain, status));
            }
            // Tried again with the next change of the domain, which a freed number is.
            Err(fault) => self.note_all(cd_uid, &fault),
        }
        None
    }

    fn second_look(&mut self, cd_uid: String, cx: &mut Cx<'_, Self>) {
        let Some((cd, _)) = self.next_map(&cd_uid, cx).and_then(|_| self.wanted(&cd_uid)) else { return };
        let read = allocate::alive(self.settings.client.clone(), cd);
        cx.spawn_then("read ComputeDomain", read, move |outcome| Message::Read { cd_uid, outcome });
    }

    /// Others may have been first meanwhile: decided once more on what is known now.
    fn allocate(&mut self, cd_uid: String, cx: &mut Cx<'_, Self>) {
        let Some((domain, status)) = self.next_map(&cd_uid, cx) else { return };
        let write = allocate::write(self.settings.client.clone(), domain, status);
        cx.spawn_then("allocate", write, move |outcome| Message::Allocated { cd_uid, outcome });
    }

    fn cannot_allocate(&mut self, cd_uid: &str, fault: Fault, cx: &mut Cx<'_, Self>) {
        if fault.class == Class::Permanent {
            return self.refuse_all(cd_uid, &fault);
        }
        self.note_all(cd_uid, &fault);
        cx.after(RETRY, Message::Again);
    }

    fn allocated(&mut self, cd_uid: &str, outcome: Result<Allocated, Fault>, cx: &mut Cx<'_, Self>) {
        self.underway.remove(cd_uid);
        match outcome {
            Ok(Allocated::Done(domain)) => {
                self.tell_of(domain);
                self.advance(cx);
            }
            Ok(Allocated::Conflict(domain)) => {
                self.tell_of(domain);
                self.pause_before_allocating(cd_uid, cx);
            }
            Err(fault) => self.cannot_allocate(cd_uid, fault, cx),
        }
    }

    /// The node link decides on its own copy of the domain: it must not be older than ours.
    fn tell_of(&self, domain: Arc<IMEXDomain>) {
        let name = protocol_name(&domain);
        self.settings.node_link.tell(node_link::Message::DomainSeen { name, domain: Some(domain) });
    }

    /// Compares what the claims hold with what the node's object lists: what nobody holds is left, what was lost is put
    /// back.
    fn reconcile(&mut self, cx: &mut Cx<'_, Self>) {
        let abandoned = self.ledger.abandoned(self.node_status());
        if !abandoned.is_empty() {
            self.settings.node_link.tell(node_link::Message::Leave { cd_uids: abandoned });
        }
        let lost = match &self.view {
            Some(view) => {
                let (status, domain) = (view.node.status.as_ref(), view.domain.as_deref());
                let clashes = self.ledger.clashes(status, domain);
                for (cd_uid, fault) in clashes.iter().filter(|(uid, _)| !self.clashes.contains_key(*uid)) {
                    tracing::error!(compute_domain = %cd_uid, reason = fault.reason, "{fault}");
                }
                self.clashes = clashes;
                self.ledger.lost(status)
            }
            None => BTreeMap::new(),
        };
        for (cd_uid, entry) in lost {
            if self.clashes.contains_key(&cd_uid) || !self.keeping.insert(cd_uid.clone()) {
                continue;
            }
            let entry = heddle_core::api::NodeChannel { since: jiff::Timestamp::now().to_string(), ..entry };
            let link = self.settings.node_link.clone();
            let uid = cd_uid.clone();
            let asked = async move { link.ask(|reply| node_link::Message::Keep { cd_uid: uid, entry, reply }).await };
            cx.spawn_then("keep", asked, move |answer| Message::Kept { cd_uid, answer });
        }
        self.say_whether_the_daemon_may_be_ended();
    }

    fn kept(&mut self, cd_uid: String, answer: Result<Answer, AskError>, cx: &mut Cx<'_, Self>) {
        self.keeping.remove(&cd_uid);
        let verified = match answer {
            Ok(Answer::Entered(channel)) => {
                tracing::warn!(compute_domain = %cd_uid, channel, "the node's entry was lost and is put back");
                Ok(())
            }
            Ok(Answer::Refuse(fault) | Answer::Wait(fault)) => Err(fault),
            Ok(Answer::NeedsChannel) => Ok(()),
            Err(error) => {
                cx.after(RETRY, Message::Again);
                Err(error.into())
            }
        };
        for reply in self.verifying.remove(&cd_uid).into_iter().flatten() {
            reply.send(verified.clone());
        }
    }

    fn verify(&mut self, prepared: Prepared, reply: Reply<Result<(), Fault>>, cx: &mut Cx<'_, Self>) {
        self.ledger.grant(&prepared);
        self.reconcile(cx);
        // Without a view there is nothing to compare with: the entry was written durably before the checkpoint, and
        // while the API is away nobody can have taken it away.
        if let Some(clash) = self.clashes.get(&prepared.cd_uid) {
            reply.send(Err(clash.clone()));
        } else if self.keeping.contains(&prepared.cd_uid) {
            self.verifying.entry(prepared.cd_uid).or_default().push(reply);
        } else {
            reply.send(Ok(()));
        }
    }

    fn say_whether_the_daemon_may_be_ended(&mut self) {
        let may = self.ledger.may_switch();
        if self.said.as_ref() != Some(&may) {
            (self.settings.may_switch)(may.clone());
            self.said = Some(may);
        }
    }
}

fn protocol_name(domain: &IMEXDomain) -> String {
    domain.metadata.name.clone().unwrap_or_default()
}

impl Actor for ChannelAllocator {
    const KIND: &'static str = "ChannelAllocator";
    type Message = Message;

    fn started(&mut self, _cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        (self.settings.restore)();
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Enter { claim, cd, mode, reply } => {
                self.ledger.hold(&claim.uid, &cd.uid);
                let missing = Fault::retryable(reason::CHANNEL_PENDING, "the channel is being asked for");
                self.waiting.insert(claim.uid, Waiting { cd, mode, reply, missing, since: Instant::now() });
                self.advance(cx);
            }
            Message::Missing { claim_uid, reply } => {
                let nothing = || Fault::retryable(reason::SUPERSEDED, "nothing is awaited for this claim any more");
                let lasting = |waiting: &Waiting| waiting.missing.clone().lasting(waiting.since.elapsed().as_secs());
                reply.send(self.waiting.get(&claim_uid).map_or_else(nothing, lasting));
            }
            Message::Cancel { claim_uid } => {
                self.waiting.remove(&claim_uid);
                self.ledger.release(&claim_uid);
            }
            Message::Leave { claim_uid, cd_uid } => {
                if self.ledger.held_by(&claim_uid).is_some_and(|held| held == cd_uid) {
                    self.waiting.remove(&claim_uid);
                    self.ledger.release(&claim_uid);
                }
            }
            Message::Restore { claims } => self.ledger.restore(claims),
            Message::Verify { prepared, reply } => self.verify(prepared, reply, cx),
            Message::Suspend { reply } => {
                let may = self.ledger.may_switch();
                if may.is_ok() {
                    self.ready = Err("the IMEX daemon of this node is being switched to another domain".into());
                }
                reply.send(may);
            }
            Message::Daemon(ready) => {
                self.ready = ready;
                self.changed(cx);
            }
            Message::Guard(guard) => {
                self.withheld = guard.withholds();
                self.changed(cx);
            }
            Message::View(view) => {
                self.view = Some(view);
                self.changed(cx);
            }
            Message::Inventory(inventory) => {
                self.fabric = Some(inventory.fabric);
                self.changed(cx);
            }
            Message::Entered { cd_uid, answer } => self.entered(&cd_uid, answer, cx),
            Message::SecondLook { cd_uid } => self.second_look(cd_uid, cx),
            Message::Read { cd_uid, outcome: Ok(()) } => self.allocate(cd_uid, cx),
            Message::Read { cd_uid, outcome: Err(fault) } => {
                self.underway.remove(&cd_uid);
                self.cannot_allocate(&cd_uid, fault, cx);
            }
            Message::Allocated { cd_uid, outcome } => self.allocated(&cd_uid, outcome, cx),
            Message::Kept { cd_uid, answer } => self.kept(cd_uid, answer, cx),
            Message::Again => self.advance(cx),
        }
        self.reconcile(cx);
        Ok(())
    }
}

impl ChannelAllocator {
    fn changed(&mut self, cx: &mut Cx<'_, Self>) {
        self.underway.values_mut().for_each(|changed| *changed = true);
        self.advance(cx);
    }
}
