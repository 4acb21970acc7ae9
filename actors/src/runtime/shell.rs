//! The actix actor around one incarnation of ours. actix runs it; the queue is the address's own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use actix::{ActorContext, ActorFuture, AsyncContext, Context};
use heddle_core::fault::{Fault, reason};
use tokio::time::Instant;

use super::actor::{Actor, Message};
use super::context::Cx;
use super::life::{Cause, Exit, Life, panic_text};
use super::mailbox::{Envelope, Mailbox};
use super::readiness::ReadyHandle;

/// Messages handled before the other actors of the thread get their turn.
const BATCH: usize = 32;

pub(super) struct Shell<A: Actor> {
    /// Boxed because actix wants its actors `Unpin`; none once the incarnation has ended.
    value: Option<Box<A>>,
    mailbox: Arc<Mailbox<A::Message>>,
    life: Rc<Life>,
    ready: Option<Rc<ReadyHandle>>,
}

impl<A: Actor> Shell<A> {
    pub(super) fn start(
        value: Box<A>,
        mailbox: Arc<Mailbox<A::Message>>,
        life: Rc<Life>,
        ready: Option<Rc<ReadyHandle>>,
    ) {
        actix::Actor::start(Self { value: Some(value), mailbox, life, ready });
    }

    /// Runs a piece of the actor's own code; what goes wrong in it becomes the incarnation's end.
    fn guard(&mut self, hand: &'static str, run: impl FnOnce(&mut A, &mut Cx<'_, A>) -> Result<(), Fault>) {
        let Some(value) = &mut self.value else { return };
        let mut cx = Cx::new(&self.mailbox, &self.life, self.ready.as_deref());
        let _in_hand = self.life.in_hand.hold(hand);
        let _span = self.life.span.enter();
        match catch_unwind(AssertUnwindSafe(|| run(value, &mut cx))) {
            Ok(Ok(())) => {}
            Ok(Err(fault)) => self.life.fail(Cause::Error, fault),
            Err(panic) => self.life.fail(
                Cause::Panic,
                Fault::retryable(reason::ACTOR_FAILED, format_args!("panicked at {hand}: {}", panic_text(&*panic))),
            ),
        }
    }

    fn handle(&mut self, envelope: Envelope<A::Message>) {
        let kind = envelope.message.kind();
        let begun = Instant::now();
        self.guard(kind, |value, cx| value.handle(envelope.message, cx));
        self.mailbox.progressed();
        self.mailbox.metrics().handled(kind, begun - envelope.queued, begun.elapsed());
    }

    fn end(&mut self, exit: Exit) {
        if matches!(exit, Exit::Finished) {
            self.guard("stopping", |value, _| {
                value.stopping();
                Ok(())
            });
        }
        let value = self.value.take();
        // A value that panics while it is dropped is gone all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(value)));
        self.life.end(exit);
    }
}

impl<A: Actor> actix::Actor for Shell<A> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.guard("started", |value, cx| value.started(cx));
        ctx.spawn(Drain);
    }
}

/// Takes messages from the mailbox for as long as the incarnation lives.
struct Drain;

impl<A: Actor> ActorFuture<Shell<A>> for Drain {
    type Output = ();

    fn poll(
        self: Pin<&mut Self>,
        shell: &mut Shell<A>,
        ctx: &mut Context<Shell<A>>,
        task: &mut TaskContext<'_>,
    ) -> Poll<()> {
        for _ in 0..BATCH {
            if let Some(exit) = shell.life.verdict(task.waker()) {
                shell.end(exit);
                ctx.terminate();
                return Poll::Ready(());
            }
            match shell.mailbox.pop(task.waker()) {
                Some(envelope) => shell.handle(envelope),
                None => return Poll::Pending,
            }
        }
        task.waker().wake_by_ref();
        Poll::Pending
    }
}
