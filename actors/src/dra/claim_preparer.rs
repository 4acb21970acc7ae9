//! One claim while something is done for it: prepares, undoes, never both at once and never one twice at once.

use std::cell::Cell;
use std::rc::Rc;

use heddle_core::claim::ClaimKey;
use heddle_core::claim::checkpoint::PreparedDevice;
use heddle_core::fault::{Class, Fault, reason};
use k8s_openapi::api::core::v1::ObjectReference;

use super::context::{Cancel, Context, Driver, superseded};
use super::message::Message as ServerMessage;
use super::prepare::{Job, Outcome, Progress, Stage};
use super::{events, lookup, pods};
use crate::channel_allocator;
use crate::runtime::{self, Actor, Addr, Cx, Reply, Task};

/// Where the answer to a Prepare goes.
pub(crate) type PrepareReply = Reply<Result<Vec<PreparedDevice>, Fault>>;
/// Where the answer to an Unprepare goes.
pub(crate) type UnprepareReply = Reply<Result<(), Fault>>;

/// What a [`ClaimPreparer`] is told.
#[derive(Debug)]
pub(crate) enum Message {
    Prepare {
        /// Others of the same pod are asked for in the same call.
        together: bool,
        reply: PrepareReply,
    },
    Unprepare(UnprepareReply),
    /// What a Prepare still waits for, in words.
    Missing(Reply<Fault>),
    /// A Prepare has ended.
    Prepared(Box<Outcome>),
    /// The claim's status has been written, or not.
    Shown,
    /// An Unprepare has ended.
    Undone(Result<(), Fault>),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "Prepare",
            Self::Unprepare(_) => "Unprepare",
            Self::Missing(_) => "Missing",
            Self::Prepared(_) => "Prepared",
            Self::Shown => "Shown",
            Self::Undone(_) => "Undone",
        }
    }
}

/// Owns what is under way for one claim of one driver. Everything that must outlive it is on disk.
pub(crate) struct ClaimPreparer {
    context: Rc<Context>,
    server: Addr<ServerMessage>,
    driver: Driver,
    claim: ClaimKey,
    doing: Doing,
    progress: Rc<Progress>,
    /// The kubelet has asked for it together with others.
    together: bool,
    /// Calls that were taken over all incarnations, for the server to know whether another is on its way.
    taken: Rc<Cell<u64>>,
}

/// What is under way, and who waits for it.
enum Doing {
    Nothing,
    /// Calls for the same UID share one effect; with `undo`, the claim is undone as soon as it can be.
    Preparing {
        cancel: Cancel,
        waiting: Vec<PrepareReply>,
        undo: Vec<UnprepareReply>,
    },
    /// Everybody is answered; the claim's status is being written.
    Showing(Task),
    /// Prepares that come meanwhile begin anew afterwards.
    Undoing {
        waiting: Vec<UnprepareReply>,
        again: Vec<PrepareReply>,
    },
}

impl ClaimPreparer {
    pub(crate) fn new(
        context: Rc<Context>,
        server: Addr<ServerMessage>,
        driver: Driver,
        claim: ClaimKey,
        taken: Rc<Cell<u64>>,
    ) -> Self {
        Self { context, server, driver, claim, doing: Doing::Nothing, progress: Rc::default(), together: false, taken }
    }

    fn prepare(&mut self, reply: PrepareReply, cx: &mut Cx<'_, Self>) {
        match &mut self.doing {
            Doing::Preparing { waiting, undo, .. } if undo.is_empty() => waiting.push(reply),
            // The undo goes before it; the kubelet tries again.
            Doing::Preparing { .. } => reply.send(Err(superseded())),
            Doing::Undoing { again, .. } => again.push(reply),
            Doing::Nothing | Doing::Showing(_) => self.begin_prepare(vec![reply], cx),
        }
    }

    fn begin_prepare(&mut self, waiting: Vec<PrepareReply>, cx: &mut Cx<'_, Self>) {
        self.stop_showing();
        let job = self.job();
        self.doing = Doing::Preparing { cancel: job.cancel.clone(), waiting, undo: Vec::new() };
        cx.spawn_then("prepare", job.prepare(), |result| Message::Prepared(Box::new(result)));
    }

    fn unprepare(&mut self, reply: UnprepareReply, cx: &mut Cx<'_, Self>) {
        match &mut self.doing {
            Doing::Preparing { cancel, undo, .. } => {
                cancel.cancel();
                undo.push(reply);
            }
            Doing::Undoing { waiting, .. } => waiting.push(reply),
            Doing::Nothing | Doing::Showing(_) => self.begin_undo(vec![reply], cx),
        }
    }

    fn begin_undo(&mut self, waiting: Vec<UnprepareReply>, cx: &mut Cx<'_, Self>) {
        self.stop_showing();
        self.doing = Doing::Undoing { waiting, again: Vec::new() };
        cx.spawn_then("undo", self.job().unprepare(), Message::Undone);
    }

    fn stop_showing(&mut self) {
        if let Doing::Showing(task) = &self.doing {
            task.cancel();
        }
    }

    fn prepared(&mut self, outcome: Outcome, cx: &mut Cx<'_, Self>) {
        let Outcome { checkpoint: result, claim } = outcome;
        let Doing::Preparing { waiting, undo, .. } = std::mem::replace(&mut self.doing, Doing::Nothing) else { return };
        let undone_meanwhile = !undo.is_empty();
        let answer = match &result {
            _ if undone_meanwhile => Err(superseded()),
            Ok(checkpoint) => Ok(checkpoint.devices.clone()),
            Err(fault) => Err(fault.clone()),
        };
        for reply in waiting {
            reply.send(answer.clone());
        }
        if undone_meanwhile {
            return self.begin_undo(undo, cx);
        }
        match (result, claim) {
            (Ok(checkpoint), Some(claim)) => {
                tracing::info!(claim = %self.claim, uid = self.claim.uid, driver = self.driver.name(), "prepared");
                let client = self.context.client.clone();
                let context = self.context.clone();
                let show = async move {
                    if let Err(rule) = lookup::show_prepared(&client, claim, &checkpoint).await
                        && !context.denied.replace(true)
                    {
                        tracing::warn!("{rule}; claims are prepared all the same");
                    }
                };
                self.doing = Doing::Showing(cx.spawn_then("status", show, |()| Message::Shown));
            }
            (Ok(_), None) => self.rest(),
            (Err(fault), claim) => {
                self.refused(&fault, claim.iter().flat_map(pods::of).collect());
                self.rest();
            }
        }
    }

    fn refused(&self, fault: &Fault, pods: Vec<ObjectReference>) {
        let (claim, uid, reason) = (&self.claim, &self.claim.uid, fault.reason);
        tracing::warn!(%claim, %uid, reason, driver = self.driver.name(), "not prepared: {fault}");
        if fault.class == Class::Permanent {
            self.context.events.tell(events::Message::Refused { claim: claim.clone(), pods, fault: fault.clone() });
        }
    }

    fn undone(&mut self, result: &Result<(), Fault>, cx: &mut Cx<'_, Self>) {
        let Doing::Undoing { waiting, again } = std::mem::replace(&mut self.doing, Doing::Nothing) else { return };
        match result {
            Ok(()) => {
                tracing::info!(claim = %self.claim, uid = self.claim.uid, driver = self.driver.name(), "unprepared")
            }
            Err(fault) => tracing::warn!(claim = %self.claim, uid = self.claim.uid, "not unprepared: {fault}"),
        }
        for reply in waiting {
            reply.send(result.clone());
        }
        if again.is_empty() {
            self.rest();
        } else {
            self.begin_prepare(again, cx);
        }
    }

    /// Nothing is under way. The server ends this actor, unless a call is on its way to it.
    fn rest(&self) {
        self.server.tell(ServerMessage::AtRest {
            driver: self.driver,
            uid: self.claim.uid.clone(),
            taken: self.taken.get(),
        });
    }

    fn missing(&self, reply: Reply<Fault>, cx: &mut Cx<'_, Self>) {
        let (stage, seconds) = self.progress.get();
        let local = match (&self.doing, stage) {
            (Doing::Undoing { .. }, _) => Fault::retryable(reason::SUPERSEDED, "the claim is still being unprepared"),
            (_, Stage::Local) => {
                Fault::retryable(reason::NODE_IO, "the node's disk has not taken the claim's checkpoint yet")
            }
            (_, Stage::Inventory) => Fault::retryable(reason::NVML, "NVML has not told yet which GPUs this node has"),
            (_, Stage::Api) => Fault::retryable(reason::API_UNAVAILABLE, "the API server has not answered yet"),
            (_, Stage::Toolkit) => {
                let awaited = self.context.toolkit.awaited.borrow().get(&self.claim.uid).cloned();
                awaited.unwrap_or_else(|| Fault::retryable(reason::NO_TOOLKIT_ENTRY, "the GPU has just been described"))
            }
            (_, Stage::Channel) => {
                let (allocator, claim_uid) = (self.context.allocator.clone(), self.claim.uid.clone());
                cx.spawn("missing", async move {
                    let asked = allocator.ask(|reply| channel_allocator::Message::Missing { claim_uid, reply }).await;
                    reply.send(asked.unwrap_or_else(Fault::from));
                    Ok(())
                });
                return;
            }
        };
        reply.send(local.lasting(seconds));
    }

    fn job(&self) -> Job {
        self.progress.reach(Stage::default());
        Job {
            context: self.context.clone(),
            driver: self.driver,
            claim: self.claim.clone(),
            cancel: Cancel::default(),
            progress: self.progress.clone(),
            together: self.together,
        }
    }
}

impl Actor for ClaimPreparer {
    const KIND: &'static str = "ClaimPreparer";
    type Message = Message;

    /// Only after a failure has this any effect: the first time, a call is on its way.
    fn started(&mut self, _cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.rest();
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Prepare { together, reply } => {
                self.taken.set(self.taken.get() + 1);
                self.together |= together;
                self.prepare(reply, cx);
            }
            Message::Unprepare(reply) => {
                self.taken.set(self.taken.get() + 1);
                self.unprepare(reply, cx);
            }
            Message::Missing(reply) => self.missing(reply, cx),
            Message::Prepared(result) => self.prepared(*result, cx),
            Message::Shown => {
                if matches!(self.doing, Doing::Showing(_)) {
                    self.doing = Doing::Nothing;
                    self.rest();
                }
            }
            Message::Undone(result) => self.undone(&result, cx),
        }
        Ok(())
    }
}
