//! Which ComputeDomains this node has entered, and for which claims: allocates, enters and leaves channels.
//!
//! All numbers come from the objects. What the claims hold comes from the checkpoints (`Restore`) and from what was
//! granted since, so that after a restart of the agent both sides are compared and the difference is acted on.

mod allocate;
mod keep;
mod message;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use heddle_core::api::{ComputeDomainRef, IMEXNodeStatus, IsolationMode};
use heddle_core::claim::{Grant, Prepared};
use heddle_core::fault::{Fault, reason};
use heddle_core::imex::{Answer, Gate, Ledger, Standing, gate};
use heddle_core::inventory::Fabric;
use kube::Client;

use tokio::time::Instant;

pub use message::{Allocated, Message, Ready};
use waiting::Waiting;

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
    /// Who hears how many claims hold a channel, once the checkpoints are known.
    pub prepared: Tell<Vec<Prepared>>,
    /// Who runs the node's IMEX daemon; none while that is not known.
    pub standing: Option<Standing>,
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
    standing: Option<Standing>,
    said_prepared: Option<Vec<Prepared>>,
}

impl ChannelAllocator {
    /// An allocator without claims.
    pub fn new(settings: Settings) -> Self {
        Self {
            standing: settings.standing.clone(),
            said_prepared: None,
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
        let name = node.and_then(|node| node.metadata.name.as_deref()).unwrap_or_default();
        let refused = |standing: &Standing| standing.refuses(&waiting.cd, waiting.mode, name);
        let withheld = self.standing.as_ref().and_then(refused).or_else(|| self.withheld.clone());
        let unknown = Err("it is not known yet who runs the IMEX daemon of this node".to_owned());
        let ready = if self.standing.is_some() { &self.ready } else { &unknown };
        gate(&waiting.cd, waiting.mode, self.fabric.as_ref(), node, ready, withheld.as_ref())
    }

    /// Takes every waiting enter as far as it gets now.
    fn advance(&mut self, cx: &mut Cx<'_, Self>) {
        self.forget_askers_that_went_away();
        let claims: Vec<String> = self.waiting.keys().cloned().collect();
        let abandoned = self.abandoned();
        for claim_uid in claims {
            let Some(waiting) = self.waiting.get(&claim_uid) else { continue };
            let (cd, mode) = (waiting.cd.clone(), waiting.mode);
            let open = self.pass_gate(&claim_uid).is_some() && !abandoned.contains(&cd.uid);
            if open && !self.underway.contains_key(&cd.uid) {
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

    fn say_whether_the_daemon_may_be_ended(&mut self) {
        let may = self.ledger.may_switch();
        if self.said.as_ref() != Some(&may) {
            (self.settings.may_switch)(may.clone());
            self.said = Some(may);
        }
        let prepared = self.ledger.claims();
        if self.said_prepared != prepared
            && let Some(claims) = &prepared
        {
            (self.settings.prepared)(claims.clone());
            self.said_prepared = prepared;
        }
    }
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
            Message::Standing(standing) => {
                self.standing = Some(standing);
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
