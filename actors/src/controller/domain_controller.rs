//! The DomainController decides for ComputeDomains, cliques and nodes what to write, and writes it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use futures::StreamExt;
use heddle_core::controller::{self, Dirty, DriverMatch, Kind, TemplateKey, Turn, View, Write};
use heddle_core::fault::Fault;
use heddle_core::{api, names};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use super::bucket::Buckets;
use super::crds;
use super::effects::Effects;
use super::held::Held;
use super::metrics::{ControllerMetrics, Outcome};
use super::retries::{Key, Retries};
use super::watches::{Shared, Watches};
use crate::lease::Leadership;
use crate::runtime::{self, Actor, Cx, Overflow, Task};

/// Changes that come within this time are decided together.
const GATHER: Duration = Duration::from_millis(10);
/// Words about the health of an IMEXDomain follow what they are about after this long, if they still differ then.
const WORDS: Duration = Duration::from_secs(5);
/// Writes under way at a time.
const CONCURRENT: usize = 16;
/// One watch may be behind another for a moment; what still contradicts itself after this is examined.
const SUSPICION: Duration = Duration::from_secs(2);
/// What was examined and still contradicts itself needs a person.
const EXAMINED: Duration = Duration::from_secs(60);
/// A foreign template in the way carries no label of ours, so no watch tells when it goes.
const RECHECK: Duration = Duration::from_secs(15);

/// Owns the view of the cluster. One pass at a time: all writes of a pass have ended before the next is decided.
pub struct DomainController {
    client: Client,
    leadership: Leadership,
    metrics: ControllerMetrics,
    effects: Effects,
    view: Shared,
    unsynced: BTreeSet<Kind>,
    /// The CRDs at which nobody has looked yet, by name.
    unseen: BTreeSet<String>,
    cd_watch: Option<Task>,
    pass: Pass,
    turn: Turn,
    buckets: Buckets,
    /// When the health of an IMEXDomain was last written.
    told: BTreeMap<String, Instant>,
    retries: Retries,
    /// Domains that contradict their nodes, by name: in which version, and when to examine them.
    suspects: BTreeMap<String, (Option<String>, Instant)>,
    rechecks: BTreeSet<TemplateKey>,
    /// Fences that their nodes may make needless yet.
    held: Held,
    /// Numbers in quarantine by clique, of those that have any.
    quarantined: BTreeMap<String, usize>,
}

/// What an operator decides.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// A node gets a certificate of a domain before it moves there.
    pub peer_certificates: bool,
    /// Which drivers may meet in an IMEX domain.
    pub driver_match: DriverMatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Idle,
    Scheduled,
    Running,
}

/// What the DomainController is told.
#[derive(Debug)]
pub enum Message {
    /// This process has begun to lead, or has ended to.
    Led(bool),
    /// A watch has listed everything once.
    Synced(Kind),
    /// A CRD fits or does not, as the view says; `anew` if that has changed.
    Looked {
        /// Its name.
        crd: String,
        /// It was another way before.
        anew: bool,
    },
    /// The view has changed.
    Changed,
    /// Decide now.
    Decide,
    /// The writes of a pass have ended, each like this.
    Done(Vec<(Key, Outcome)>),
    /// Decide these anew.
    Touch(Box<Dirty>),
    /// Look whether a foreign template still stands in the way.
    Recheck(TemplateKey),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Led(_) => "led",
            Self::Synced(_) => "synced",
            Self::Looked { .. } => "looked",
            Self::Changed => "changed",
            Self::Decide => "decide",
            Self::Done(_) => "done",
            Self::Touch(_) => "touch",
            Self::Recheck(_) => "recheck",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::Changed | Self::Decide | Self::Led(_) => Overflow::Replace,
            _ => Overflow::Reject,
        }
    }
}

impl DomainController {
    /// A controller that knows nothing yet.
    pub fn new(client: Client, leadership: Leadership, metrics: ControllerMetrics, rules: Rules) -> Self {
        let view = View::new(rules.peer_certificates).with_driver_match(rules.driver_match);
        let view: Shared = Rc::new(RefCell::new(view));
        Self {
            effects: Effects::new(client.clone(), view.clone(), metrics.clone()),
            client,
            leadership,
            metrics,
            view,
            unsynced: Kind::ALL.into(),
            unseen: api::crds().iter().map(ResourceExt::name_any).collect(),
            cd_watch: None,
            pass: Pass::Idle,
            turn: Turn::default(),
            buckets: Buckets::default(),
            told: BTreeMap::new(),
            retries: Retries::default(),
            suspects: BTreeMap::new(),
            rechecks: BTreeSet::new(),
            held: Held::default(),
            quarantined: BTreeMap::new(),
        }
    }
}

impl Actor for DomainController {
    const KIND: &'static str = "DomainController";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        for (name, watch) in self.watches(cx).others() {
            cx.spawn(name, watch);
        }
        self.watch_cds(cx);
        for crd in api::crds() {
            let (view, metrics) = (self.view.clone(), self.metrics.clone());
            cx.spawn("watch-crd", crds::follow(self.client.clone(), crd, view, metrics, cx.address()));
        }
        let (mut changes, address) = (self.leadership.changes(), cx.address());
        cx.spawn("leadership", async move {
            loop {
                let leads = *changes.borrow_and_update();
                address.tell(Message::Led(leads));
                if changes.changed().await.is_err() {
                    return Ok(());
                }
            }
        });
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Led(leads) => {
                if leads {
                    // What changed while somebody else led was his to decide.
                    self.view.borrow_mut().touch_all();
                }
                self.schedule(cx);
            }
            Message::Synced(kind) => {
                if kind == Kind::Template {
                    let effects = self.effects.clone();
                    let find = async move { effects.find_stripped().await };
                    cx.spawn_then("find-templates", find, |()| Message::Changed);
                }
                if self.unsynced.remove(&kind) {
                    self.came_to_know(cx);
                }
                self.schedule(cx);
            }
            Message::Looked { crd, anew } => {
                // The same ComputeDomains are read otherwise now, and not every API server ends the watches for it.
                if anew && crd == names::COMPUTE_DOMAIN_CRD {
                    self.watch_cds(cx);
                }
                if self.unseen.remove(&crd) {
                    self.came_to_know(cx);
                }
                self.schedule(cx);
            }
            Message::Changed => self.schedule(cx),
            Message::Decide => self.decide(cx),
            Message::Done(outcomes) => self.done(outcomes, cx),
            Message::Touch(dirty) => {
                self.view.borrow_mut().dirty.merge(*dirty);
                self.schedule(cx);
            }
            Message::Recheck(key) => {
                self.rechecks.remove(&key);
                let effects = self.effects.clone();
                cx.spawn_then("recheck-template", async move { effects.recheck(key).await }, |()| Message::Changed);
            }
        }
        Ok(())
    }
}

impl DomainController {
    fn watch_cds(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(before) = self.cd_watch.take() {
            before.cancel();
        }
        let watch = self.watches(cx).compute_domains();
        self.cd_watch = Some(cx.spawn("watch-computedomains", watch));
    }

    fn watches(&self, cx: &Cx<'_, Self>) -> Watches<'_> {
        Watches { client: &self.client, view: &self.view, metrics: &self.metrics, address: cx.address() }
    }

    fn knows_all(&self) -> bool {
        self.unsynced.is_empty() && self.unseen.is_empty()
    }

    fn came_to_know(&mut self, cx: &mut Cx<'_, Self>) {
        if self.knows_all() {
            self.view.borrow_mut().touch_all();
            tracing::info!("the controller knows the cluster");
            cx.ready();
            self.leadership.knows();
        }
    }

    fn schedule(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.leadership.leads() {
            // Whoever stands by for a long time must not remember all that there has ever been.
            self.view.borrow_mut().dirty = Dirty::default();
            // What it counted while it led is the leader's to tell.
            self.quarantined.clear();
            self.metrics.quarantined.set(0);
            self.held.clear();
            return;
        }
        if self.knows_all() && self.pass == Pass::Idle && !self.view.borrow().dirty.is_empty() {
            self.pass = Pass::Scheduled;
            cx.after(GATHER, Message::Decide);
        }
    }

    fn decide(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.leadership.leads() {
            self.pass = Pass::Idle;
            return self.schedule(cx);
        }
        let dirty = self.view.borrow_mut().dirty.take(&mut self.turn);
        let mut work: Vec<(Key, Write)> = Vec::new();
        let mut problems = Vec::new();
        {
            let view = self.view.borrow();
            let now = jiff::Timestamp::now().to_string();
            for uid in &dirty.cds {
                let writes = controller::compute_domain(&view, uid, &now);
                work.extend(writes.into_iter().map(|write| (Key::Cd(uid.clone()), write)));
            }
            for clique in &dirty.cliques {
                let plan = controller::clique(&view, clique);
                self.quarantined.remove(clique);
                if plan.quarantined > 0 {
                    self.quarantined.insert(clique.clone(), plan.quarantined);
                }
                problems.push((clique.clone(), plan.problems));
                let fenced = plan.writes.iter().filter_map(|write| match write {
                    Write::Fence { node, .. } => node.metadata.name.as_deref(),
                    _ => None,
                });
                if let Some(pause) = self.held.set(clique, fenced, Instant::now()) {
                    cx.after(pause, Message::Touch(Box::new(Key::Clique(clique.clone()).dirty())));
                }
                work.extend(plan.writes.into_iter().map(|write| (Key::Clique(clique.clone()), write)));
            }
            for node in &dirty.nodes {
                work.extend(controller::node(&view, node).map(|write| (Key::Node(node.clone()), write)));
            }
        }
        for (clique, problems) in problems {
            let new = self.view.borrow_mut().set_problems(&clique, problems);
            for (node, fault) in new {
                tracing::warn!(node, reason = fault.reason, "{fault}");
                let effects = self.effects.clone();
                cx.spawn("node-event", async move { effects.note_node(&node, &fault).await });
            }
        }
        self.metrics.quarantined.set(self.quarantined.values().sum::<usize>() as i64);
        let now = Instant::now();
        work.retain(|(key, write)| self.is_due(key, write, now, cx));
        self.buckets.forget_idle(now);
        self.told.retain(|_, at| now - *at < WORDS);
        if work.is_empty() {
            self.pass = Pass::Idle;
            return self.schedule(cx);
        }
        self.pass = Pass::Running;
        let effects = self.effects.clone();
        let run = async move {
            let tasks = futures::stream::iter(work.into_iter().map(|(key, write)| {
                let effects = effects.clone();
                async move { (key, effects.run(write).await) }
            }));
            tasks.buffer_unordered(CONCURRENT).collect::<Vec<_>>().await
        };
        cx.spawn_then("writes", run, Message::Done);
    }

    /// Whether the write is to be made in this pass; if it is not, its decision is made again later.
    fn is_due(&mut self, key: &Key, write: &Write, now: Instant, cx: &mut Cx<'_, Self>) -> bool {
        match write {
            Write::Status { cd, .. } => self.has_turn(cd.uid(), key, now, cx),
            Write::Domain(domain) if domain.members.is_none() && !domain.changes_channels() => {
                let name = domain.domain.metadata.name.as_deref().unwrap_or_default();
                let told = self.told.get(name).filter(|_| domain.changes_words_alone());
                if let Some(rest) = told.map(|at| WORDS.saturating_sub(now - *at)).filter(|rest| !rest.is_zero()) {
                    cx.after(rest, Message::Touch(Box::new(key.dirty())));
                    return false;
                }
                let due = self.has_turn(name, key, now, cx);
                if due {
                    self.told.insert(name.to_owned(), now);
                }
                due
            }
            Write::Fence { node, .. } => {
                let Key::Clique(clique) = key else { return true };
                let name = node.metadata.name.as_deref().unwrap_or_default();
                // Nobody there would note it.
                self.view.borrow().lost(name) || self.held.is_due(clique, name, now)
            }
            Write::RecheckTemplate(template) => {
                if self.rechecks.insert(template.clone()) {
                    cx.after(RECHECK, Message::Recheck(template.clone()));
                }
                false
            }
            Write::Examine { domain, .. } => {
                let version =
                    self.view.borrow().domain(domain).and_then(|domain| domain.metadata.resource_version.clone());
                let fresh = (version, now + SUSPICION);
                let known = self.suspects.entry(domain.clone()).or_insert_with(|| fresh.clone());
                // What was examined was another version: repaired meanwhile, maybe, and lost anew.
                if known.0 != fresh.0 {
                    known.0 = fresh.0;
                    known.1 = known.1.min(fresh.1);
                }
                let due = known.1;
                if due <= now {
                    known.1 = now + EXAMINED;
                    return true;
                }
                cx.after(due - now, Message::Touch(Box::new(key.dirty())));
                false
            }
            _ => true,
        }
    }

    fn has_turn(&mut self, name: &str, key: &Key, now: Instant, cx: &mut Cx<'_, Self>) -> bool {
        match self.buckets.take(name, now) {
            Ok(()) => true,
            Err(pause) => {
                cx.after(pause, Message::Touch(Box::new(key.dirty())));
                false
            }
        }
    }

    fn done(&mut self, outcomes: Vec<(Key, Outcome)>, cx: &mut Cx<'_, Self>) {
        self.pass = Pass::Idle;
        let failed = outcomes.iter().filter(|(key, outcome)| match outcome {
            Outcome::Done => false,
            // Nobody has changed what it was decided on: it is refused for another reason.
            Outcome::Conflict => !key.is_in(&self.view.borrow().dirty),
            Outcome::Failed => true,
        });
        let failed: BTreeSet<Key> = failed.map(|(key, _)| key.clone()).collect();
        for key in outcomes.iter().map(|(key, _)| key).filter(|key| !failed.contains(key)) {
            self.retries.succeeded(key);
        }
        for key in failed {
            let pause = self.retries.failed(&key);
            cx.after(pause, Message::Touch(Box::new(key.dirty())));
        }
        self.schedule(cx);
    }
}
