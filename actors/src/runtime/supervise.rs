//! Supervision by factory: an incarnation that fails is dropped with all its effects and built anew.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::fault::{Class, Fault, reason};
use tokio::sync::watch;
use tokio::time::Instant;

use super::actor::{Actor, Message, Restart, Spec};
use super::life::{Cause, Ended, Exit, Life, panic_text};
use super::mailbox::{Mailbox, Overdue};
use super::readiness::ReadyHandle;
use super::scope::{EndReceiver, Scope, Shared};
use super::shell::Shell;
use super::watchdog::InHand;

/// Where an actor hears that it is to end.
pub(super) struct Orders {
    /// The process shuts down.
    pub(super) process: watch::Receiver<Option<()>>,
    /// Where its own end is told.
    pub(super) scope: Scope,
    /// Its scope ended.
    pub(super) end: EndReceiver,
}

/// One actor with its address, over all its incarnations.
pub(super) struct Supervised<A: Actor> {
    id: u64,
    spec: Spec,
    mailbox: Arc<Mailbox<A::Message>>,
    orders: Orders,
    shared: Shared,
    ready: Option<Rc<ReadyHandle>>,
    in_hand: InHand,
    span: tracing::Span,
}

impl<A: Actor> Supervised<A> {
    pub(super) fn new(id: u64, spec: Spec, mailbox: Arc<Mailbox<A::Message>>, orders: Orders, shared: Shared) -> Self {
        let span = tracing::error_span!("actor", kind = A::KIND, name = tracing::field::Empty);
        if !spec.name.is_empty() {
            span.record("name", spec.name.as_str());
        }
        let in_hand = InHand::new(shared.hand.clone(), A::KIND, &spec.name);
        let mut this = Self { id, spec, mailbox, orders, shared, ready: None, in_hand, span };
        if this.spec.after.is_none() {
            this.gate_readiness();
        }
        this
    }

    fn gate_readiness(&mut self) {
        let Spec { name, gates_readiness, .. } = &self.spec;
        if *gates_readiness {
            let name = if name.is_empty() { A::KIND.to_owned() } else { format!("{}/{name}", A::KIND) };
            self.ready = Some(Rc::new(self.shared.readiness.handle(name)));
        }
    }

    /// Waits for the actor's turn. False if its end comes first.
    async fn admitted(&mut self) -> bool {
        let Some(turn) = self.spec.after.clone() else { return true };
        tokio::select! {
            biased;
            _ = self.orders.end() => return false,
            () = turn.begun() => {}
        }
        self.gate_readiness();
        true
    }

    /// Looks after the actor until its end.
    pub(super) async fn run(mut self, factory: impl FnMut() -> Result<A, Fault>) {
        if self.admitted().await {
            self.incarnations(factory).await;
        }
        self.mailbox.close();
        if let Some(ready) = &self.ready
            && self.orders.scope.cause().is_none()
        {
            // It ended on purpose, so nobody waits for it; after a failure the process must not look ready.
            ready.ready();
        }
        self.shared.actors.remove(self.id);
    }

    async fn incarnations(&mut self, mut factory: impl FnMut() -> Result<A, Fault>) {
        let mut history = History::new(self.spec.restart);
        loop {
            let Exit::Failed(cause, fault) = self.live(&mut factory).await else { break };
            self.mailbox.metrics().failed(cause);
            if fault.class == Class::Fatal {
                self.say(cause, &fault, "and cannot go on");
                self.orders.scope.kill_root(fault);
                break;
            }
            let Some(pause) = history.failed(Instant::now(), fastrand::f64()) else {
                self.say(cause, &fault, "too often, gives up");
                self.orders.scope.kill(gave_up::<A>(&self.spec, &fault));
                break;
            };
            self.say(cause, &fault, format_args!("and is rebuilt in {pause:?}"));
            tokio::select! {
                biased;
                _ = self.orders.end() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn say(&self, cause: Cause, fault: &Fault, then: impl std::fmt::Display) {
        let cause = cause.label();
        tracing::error!(parent: &self.span, cause, reason = fault.reason, "actor failed ({cause}) {then}: {fault}");
    }

    /// One incarnation, from the factory to the point where nothing of it is left.
    async fn live(&mut self, factory: &mut impl FnMut() -> Result<A, Fault>) -> Exit {
        let value = match self.build(factory) {
            Ok(value) => value,
            Err(exit) => return exit,
        };
        let (life, ended) = Life::begin(self.in_hand.clone(), self.span.clone());
        Shell::start(value, self.mailbox.clone(), life.clone(), self.ready.clone());
        let mut ended = pin!(ended);
        let mut told = false;
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut ended => break ended,
                exit = self.orders.end(), if !told => {
                    told = true;
                    life.decide(exit);
                }
                overdue = overdue(&self.mailbox, self.spec.stall), if !told => {
                    told = true;
                    let Overdue { kind, waited, .. } = overdue;
                    life.fail(Cause::Stall, Fault::retryable(
                        reason::ACTOR_FAILED,
                        format_args!("a {kind} message has waited for {waited:?} and nothing was handled"),
                    ));
                }
            }
        };
        // The shell reports its end in every case but one: that it was torn down by a panic of its own.
        let Ended { exit, effects } = ended.unwrap_or_else(|_| Ended {
            exit: Exit::Failed(Cause::Panic, Fault::retryable(reason::ACTOR_FAILED, "its shell panicked")),
            effects: Vec::new(),
        });
        for effect in effects {
            // Cancelled, or ended in the same turn; either way it is gone.
            let _ = effect.await;
        }
        exit
    }

    fn build(&self, factory: &mut impl FnMut() -> Result<A, Fault>) -> Result<Box<A>, Exit> {
        let _in_hand = self.in_hand.hold("factory");
        let _span = self.span.enter();
        match catch_unwind(AssertUnwindSafe(factory)) {
            Ok(Ok(value)) => Ok(Box::new(value)),
            Ok(Err(fault)) => Err(Exit::Failed(Cause::Error, fault)),
            Err(panic) => Err(Exit::Failed(
                Cause::Panic,
                Fault::retryable(reason::ACTOR_FAILED, format_args!("its factory panicked: {}", panic_text(&*panic))),
            )),
        }
    }
}

fn gave_up<A: Actor>(spec: &Spec, last: &Fault) -> Fault {
    let Restart { max, within, .. } = spec.restart;
    let name = &spec.name;
    let message = format!(
        "{}{}{name} failed more than {max} times within {within:?}, last: {last}",
        A::KIND,
        if name.is_empty() { "" } else { " " },
    );
    Fault::fatal(last.reason, message)
}

/// Ends when a message has waited for longer than `limit` although nothing else was handled. One look is not enough:
/// after the whole process stood still (a frozen cgroup, a suspended machine) every mailbox looks stuck, so the same
/// message must be found again after the thread has had time to come to it.
async fn overdue<M: Message>(mailbox: &Mailbox<M>, limit: Duration) -> Overdue {
    let look = (limit / 4).max(Duration::from_millis(1));
    let mut suspect: Option<Overdue> = None;
    loop {
        tokio::time::sleep(look).await;
        let found = mailbox.overdue(limit);
        if let (Some(before), Some(now)) = (suspect, found)
            && before.sequence == now.sequence
        {
            return now;
        }
        suspect = found;
    }
}

/// The failures that still count, and what follows from the next.
#[derive(Debug)]
struct History {
    restart: Restart,
    failures: VecDeque<Instant>,
}

impl History {
    fn new(restart: Restart) -> Self {
        Self { restart, failures: VecDeque::new() }
    }

    /// The pause before the restart; none if there have been too many. `chance` is in 0…1.
    fn failed(&mut self, now: Instant, chance: f64) -> Option<Duration> {
        let Restart { max, within, backoff } = self.restart;
        while self.failures.front().is_some_and(|failure| now.duration_since(*failure) > within) {
            self.failures.pop_front();
        }
        let before = self.failures.len();
        if before >= max as usize {
            return None;
        }
        self.failures.push_back(now);
        let doubled = backoff.min.saturating_mul(1 << before.min(16));
        // Between half and all of it, so that actors which failed together do not come back together.
        Some(doubled.min(backoff.max).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::runtime::metrics::Metrics;
    use crate::runtime::scope::Actors;

    struct Tick;

    impl Message for Tick {
        fn kind(&self) -> &'static str {
            "Tick"
        }
    }

    const LIMIT: Duration = Duration::from_secs(8);

    fn mailbox() -> Mailbox<Tick> {
        Mailbox::new("Clock", 8, Metrics::new(&Actors::default()).actor("Clock"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_nobody_takes_is_a_stall() {
        let mailbox = mailbox();
        assert!(mailbox.push(Tick).is_ok());
        let found = overdue(&mailbox, LIMIT).await;
        assert_eq!((found.kind, found.waited), ("Tick", Duration::from_secs(12)), "the second look after the limit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_queue_that_moves_is_none() {
        let mailbox = mailbox();
        let moving = async {
            for _ in 0..20 {
                assert!(mailbox.push(Tick).is_ok());
                tokio::time::sleep(Duration::from_secs(5)).await;
                assert!(mailbox.push(Tick).is_ok());
                assert!(mailbox.pop(Waker::noop()).is_some());
                assert!(mailbox.pop(Waker::noop()).is_some());
            }
        };
        tokio::select! {
            found = overdue(&mailbox, LIMIT) => panic!("{found:?}"),
            () = moving => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_frozen_is_none() {
        let mailbox = mailbox();
        assert!(mailbox.push(Tick).is_ok());
        let thawing = async {
            tokio::time::advance(Duration::from_secs(3600)).await;
            // The thread comes to the message, but not before the clock has been looked at.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(mailbox.pop(Waker::noop()).is_some());
            tokio::time::sleep(Duration::from_secs(60)).await;
        };
        tokio::select! {
            found = overdue(&mailbox, LIMIT) => panic!("{found:?}"),
            () = thawing => {}
        }
    }
}
