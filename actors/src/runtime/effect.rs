//! Work that takes time, begun by a handler and bound to the incarnation that began it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::life::{Cause, Life, panic_text};

thread_local! {
    /// The effect that is being polled.
    static CURRENT: RefCell<Option<Rc<Cell<Instant>>>> = const { RefCell::new(None) };
}

/// Says that the effect which calls it has got on: a limit given to [`super::Cx::spawn_limited`] begins anew.
/// Outside of effects it does nothing.
pub fn progress() {
    CURRENT.with_borrow(|current| {
        if let Some(moved) = current {
            moved.set(Instant::now());
        }
    });
}

/// A running effect or timer. Dropping it does not cancel it.
#[derive(Clone, Debug)]
pub struct Task {
    abort: AbortHandle,
}

impl Task {
    /// Stops the effect. A message that it has sent already is still handled.
    pub fn cancel(&self) {
        self.abort.abort();
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.abort.is_finished()
    }
}

pub(super) fn spawn(
    life: &Rc<Life>,
    name: &'static str,
    limit: Option<Duration>,
    fut: impl Future<Output = Result<(), Fault>> + 'static,
) -> Task {
    let id = life.next_effect();
    let moved = Rc::new(Cell::new(Instant::now()));
    // Weak: the effect's handle is in the life, and the life would never go away.
    let entry = Entry { life: Rc::downgrade(life), id };
    let watched = Watched { name, moved: moved.clone(), life: entry.life.clone(), fut: Box::pin(fut) };
    let handle = tokio::task::spawn_local(async move {
        let failed = match limit {
            None => watched.await,
            Some(limit) => tokio::select! {
                biased;
                outcome = watched => outcome,
                () = overdue(&moved, limit) => Some((
                    Cause::Stall,
                    Fault::retryable(reason::ACTOR_FAILED, format_args!("{name} has not moved for {limit:?}")),
                )),
            },
        };
        if let Some((cause, fault)) = failed
            && let Some(life) = entry.life.upgrade()
        {
            life.fail(cause, fault);
        }
    });
    let abort = handle.abort_handle();
    life.add_effect(id, handle);
    Task { abort }
}

/// Ends when `moved` is older than `limit`.
async fn overdue(moved: &Cell<Instant>, limit: Duration) {
    loop {
        let due = moved.get() + limit;
        tokio::time::sleep_until(due).await;
        if moved.get() + limit <= due {
            return;
        }
    }
}

/// Takes the effect off the incarnation's list, also when it is cancelled.
struct Entry {
    life: Weak<Life>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(life) = self.life.upgrade() {
            life.remove_effect(self.id);
        }
    }
}

/// Polls an effect with its name in hand, and turns its error or panic into a failure.
struct Watched {
    name: &'static str,
    moved: Rc<Cell<Instant>>,
    life: Weak<Life>,
    fut: Pin<Box<dyn Future<Output = Result<(), Fault>>>>,
}

impl Future for Watched {
    type Output = Option<(Cause, Fault)>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(life) = this.life.upgrade() else { return Poll::Ready(None) };
        let _in_hand = life.in_hand.hold(this.name);
        let _span = life.span.enter();
        CURRENT.set(Some(this.moved.clone()));
        let polled = catch_unwind(AssertUnwindSafe(|| this.fut.as_mut().poll(cx)));
        CURRENT.set(None);
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(Ok(()))) => Poll::Ready(None),
            Ok(Poll::Ready(Err(fault))) => Poll::Ready(Some((Cause::Effect, fault))),
            Err(panic) => Poll::Ready(Some((
                Cause::Effect,
                Fault::retryable(reason::ACTOR_FAILED, format_args!("{} panicked: {}", this.name, panic_text(&*panic))),
            ))),
        }
    }
}
