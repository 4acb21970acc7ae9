//! Runs what `heddle_core::claim::plan` decides for one claim.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use heddle_core::claim::checkpoint::{Checkpoint, State};
use heddle_core::claim::plan::{self, Demand, Known, Step, Undo};
use heddle_core::claim::{ClaimKey, Grant, cdi, request};
use heddle_core::fault::{Fault, reason};
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::time::Instant;

use super::context::{Cancel, Context, Driver, superseded, token};
use super::{lookup, pods};
use crate::channel_allocator;
use crate::runtime::{AskError, Reply, SendError};

/// Pause before the ChannelAllocator is told or asked again what it did not take.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// One claim of one driver, and where its preparation is.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) context: Rc<Context>,
    pub(crate) driver: Driver,
    pub(crate) claim: ClaimKey,
    pub(crate) cancel: Cancel,
    pub(crate) progress: Rc<Progress>,
    /// Other claims of the same pod are being prepared.
    pub(crate) together: bool,
}

/// What a Prepare is waiting for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// For something of this node.
    #[default]
    Local,
    /// For what NVML says of the GPUs.
    Inventory,
    /// For the API server.
    Api,
    /// For the ChannelAllocator, which knows more.
    Channel,
    /// For the container toolkit.
    Toolkit,
}

/// Where a Prepare is, and since when.
#[derive(Debug)]
pub(crate) struct Progress(Cell<(Stage, Instant)>);

impl Default for Progress {
    fn default() -> Self {
        Self(Cell::new((Stage::default(), Instant::now())))
    }
}

impl Progress {
    pub(crate) fn reach(&self, stage: Stage) {
        self.0.set((stage, Instant::now()));
    }

    /// The stage, and how many seconds it has lasted.
    pub(crate) fn get(&self) -> (Stage, u64) {
        let (stage, since) = self.0.get();
        (stage, since.elapsed().as_secs())
    }
}

/// How a Prepare ended.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// What the kubelet can be answered.
    pub(crate) checkpoint: Result<Checkpoint, Fault>,
    /// The claim as it was read, if it was.
    pub(crate) claim: Option<ResourceClaim>,
}

impl Job {
    /// Prepares the claim, however long it takes.
    pub(crate) async fn prepare(self) -> Outcome {
        let mut claim = None;
        Outcome { checkpoint: self.try_to_prepare(&mut claim).await, claim }
    }

    async fn try_to_prepare(&self, claim: &mut Option<ResourceClaim>) -> Result<Checkpoint, Fault> {
        self.claim.check()?;
        let on_disk = self.context.remembered(self.driver, &self.claim)?;
        let kept = match &on_disk {
            Some(_) => None,
            // The checkpoint may be lost and its CDI file not: a second one beside it would be nobody's.
            None => self.context.cdi.token_of(&self.claim.uid)?,
        };
        let token = kept.map_or_else(token, Ok)?;
        if self.driver == Driver::Gpu && on_disk.is_none() {
            self.progress.reach(Stage::Inventory);
            self.cancel.or(self.context.inventory_known()).await?;
        }
        let node = self.context.node_facts()?;
        let mut known = Known::new(self.claim.clone(), self.driver.name(), node, token, on_disk);
        let result = self.run(&mut known, claim).await;
        self.context.granted.borrow_mut().remove(&self.claim.uid);
        if result.is_err() && known.on_disk.as_ref().is_none_or(|c| c.held().is_none()) {
            // Nothing on disk tells of the channel, so no Unprepare would give it back.
            self.give_back(&known).await;
            self.context.neighbours.go(&self.claim);
        }
        let checkpoint = result?;
        if let Some(facts) = &known.domain {
            self.context.domains.hold(facts, &self.claim);
        }
        Ok(checkpoint)
    }

    async fn run(&self, known: &mut Known, claim: &mut Option<ResourceClaim>) -> Result<Checkpoint, Fault> {
        loop {
            self.look_at_cdi(known)?;
            self.look_around(known);
            match plan::next(known)? {
                Step::Answer(_) => break,
                step => self.step(step, known, claim).await?,
            }
        }
        known.on_disk.clone().ok_or_else(superseded)
    }

    fn look_at_cdi(&self, known: &mut Known) -> Result<(), Fault> {
        let Some(checkpoint) = known.on_disk.as_ref().filter(|c| c.state != State::Tombstone) else { return Ok(()) };
        let file = cdi::file(checkpoint)?;
        known.cdi_intact = file.as_ref().is_none_or(|file| self.context.cdi.intact(file));
        if let Some(file) = file.filter(|_| known.cdi_intact) {
            self.context.cdi.keep(&file);
        }
        Ok(())
    }

    /// Whether another ComputeDomain may be used by a pod of the claim.
    fn look_around(&self, known: &mut Known) {
        if let Some(facts) = &known.domain {
            let (namespace, uid) = (&self.claim.namespace, &facts.reference.uid);
            known.accompanied = self.together || self.context.neighbours.has_other(namespace, uid);
        }
    }

    async fn step(&self, step: Step, known: &mut Known, read: &mut Option<ResourceClaim>) -> Result<(), Fault> {
        let Context { client, cdi, domains, .. } = &*self.context;
        match step {
            Step::Undo => {
                self.undo(known.on_disk.take()).await?;
            }
            Step::Verify(prepared) => {
                self.progress.reach(Stage::Channel);
                let verify = |reply| channel_allocator::Message::Verify { prepared: prepared.clone(), reply };
                self.cancel.or(self.ask_allocator(verify)).await???;
                known.entry_verified = true;
            }
            Step::GetClaim => {
                self.progress.reach(Stage::Api);
                let claim = self.cancel.or(lookup::claim(client, &self.claim)).await??;
                known.demand = Some(self.demand(&claim)?);
                *read = Some(claim);
            }
            Step::GetComputeDomain(config) => {
                self.progress.reach(Stage::Api);
                let namespace = &self.claim.namespace;
                let asked = request::isolation(read.as_ref().ok_or_else(superseded)?);
                known.domain = match domains.get(&config.domain_id, namespace) {
                    Some(facts) => Some(facts),
                    None => Some(self.cancel.or(lookup::compute_domain(client, namespace, &config, asked)).await??),
                };
            }
            Step::CheckContainers(domain) => {
                self.progress.reach(Stage::Api);
                let claim = read.as_ref().ok_or_else(superseded)?;
                self.cancel.or(pods::check_containers(client, claim, &domain)).await??;
                known.containers_checked = true;
            }
            Step::Enter(facts) => {
                self.progress.reach(Stage::Channel);
                // Before it is granted: of two that come at once, at least one sees the other.
                self.context.neighbours.come(&self.claim, &facts.reference.uid);
                let enter = |reply| {
                    let (claim, cd, mode) = (self.claim.clone(), facts.reference.clone(), facts.isolation);
                    channel_allocator::Message::Enter { claim, cd, mode, reply }
                };
                let grant = self.cancel.or(self.ask_allocator(enter)).await???;
                self.context.note_grant(&self.claim.uid, &known.domain, &grant);
                known.grant = Some(grant);
            }
            Step::Write(checkpoint) => {
                if self.cancel.is_cancelled() {
                    return Err(superseded());
                }
                self.progress.reach(Stage::Local);
                self.write(checkpoint.clone(), known.on_disk.is_some()).await?;
                known.on_disk = Some(checkpoint);
            }
            Step::AwaitToolkit(missing) => {
                let toolkit = &self.context.toolkit;
                toolkit.awaited.borrow_mut().insert(self.claim.uid.clone(), missing);
                self.progress.reach(Stage::Toolkit);
                let changed = self.cancel.or(toolkit.other_than(&known.node.toolkit)).await;
                toolkit.awaited.borrow_mut().remove(&self.claim.uid);
                changed?;
                known.node = self.context.node_facts()?;
            }
            Step::WriteCdi(file) => cdi.write(&file)?,
            Step::Answer(_) => {}
        }
        Ok(())
    }

    fn demand(&self, claim: &ResourceClaim) -> Result<Demand, Fault> {
        let devices = request::devices(claim, &self.claim, self.driver.name(), &self.context.node)?;
        let config = match self.driver {
            Driver::ComputeDomain => Some(request::channel_config(claim, &self.claim, &devices)?),
            Driver::Gpu => None,
        };
        Ok(Demand { devices, config })
    }

    /// Undoes the claim from what is on this node alone. A claim that is not known is undone.
    pub(crate) async fn unprepare(self) -> Result<(), Fault> {
        if let Err(fault) = self.claim.check() {
            // It can never have been prepared, and an error would keep its pod from ending.
            tracing::warn!("asked to unprepare what is no claim: {fault}");
            return Ok(());
        }
        let on_disk = self.context.remembered(self.driver, &self.claim)?;
        self.undo(on_disk).await
    }

    async fn undo(&self, on_disk: Option<Checkpoint>) -> Result<(), Fault> {
        if on_disk.is_none() && self.driver == Driver::ComputeDomain {
            // Of a claim whose checkpoint was lost nothing else tells; nor of one whose preparer died between its grant
            // and its checkpoint.
            self.context.cdi.remove_all_of(&self.claim.uid)?;
            let claim_uid = self.claim.uid.clone();
            self.tell_allocator(channel_allocator::Message::Cancel { claim_uid }).await;
        }
        for effect in plan::undo(on_disk.as_ref()) {
            match effect {
                Undo::Bury => {
                    if let Some(checkpoint) = &on_disk {
                        self.context.store(self.driver)?.advance(&checkpoint.with_state(State::Tombstone))?;
                    }
                }
                Undo::RemoveCdi(name) => self.context.cdi.remove(&name)?,
                Undo::Forget => self.context.store(self.driver)?.remove(&self.claim.uid)?,
                Undo::Leave { cd_uid } => self.leave(cd_uid).await,
            }
        }
        self.context.neighbours.go(&self.claim);
        Ok(())
    }

    async fn give_back(&self, known: &Known) {
        match (&known.grant, &known.domain) {
            (Some(Grant::Channel { .. }), Some(facts)) => self.leave(facts.reference.uid.clone()).await,
            (None, Some(_)) => {
                let claim_uid = self.claim.uid.clone();
                self.tell_allocator(channel_allocator::Message::Cancel { claim_uid }).await;
            }
            _ => {}
        }
    }

    async fn leave(&self, cd_uid: String) {
        self.context.domains.release(&cd_uid, &self.claim);
        let claim_uid = self.claim.uid.clone();
        self.tell_allocator(channel_allocator::Message::Leave { claim_uid, cd_uid }).await;
    }

    /// Asks until there is an answer: hundreds of pods may come at once, and an allocator that failed is back in no time.
    async fn ask_allocator<T>(&self, make: impl Fn(Reply<T>) -> channel_allocator::Message) -> Result<T, AskError> {
        loop {
            match self.context.allocator.ask(&make).await {
                Err(AskError::Full(_) | AskError::Dropped(_)) => tokio::time::sleep(ASK_AGAIN).await,
                answer => return answer,
            }
        }
    }

    /// A lost `Leave` would keep a channel until the agent restarts, so a full mailbox is waited for.
    async fn tell_allocator(&self, mut message: channel_allocator::Message) {
        while let Err(SendError::Full(refused)) = self.context.allocator.send(message) {
            message = refused;
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// A claim's first record waits for the disk. What follows only says that less remains to be done in this boot.
    async fn write(&self, checkpoint: Checkpoint, is_known: bool) -> Result<(), Fault> {
        let store = self.context.store(self.driver)?.clone();
        if is_known {
            return store.advance(&checkpoint);
        }
        blocking(move || store.write(&checkpoint)).await
    }
}

/// Runs what waits for a disk away from the actors' thread.
async fn blocking(work: impl FnOnce() -> Result<(), Fault> + Send + 'static) -> Result<(), Fault> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Fault::retryable(reason::NODE_IO, format!("a write was cut off: {error}"))))
}
