//! The bounded queue behind an address. It belongs to the address and not to the actor's incarnation: so it outlives
//! restarts, can be measured at any time, and can keep to a policy when it is full (actix's own `do_send` ignores its
//! limit, and its queue dies with a panicking actor).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::time::Instant;

use super::actor::{Message, Overflow};
use super::metrics::ActorMetrics;

/// Refusals of one mailbox are logged at most this often.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Full,
    Stopped,
}

/// A queued message.
pub(super) struct Envelope<M> {
    pub(super) message: M,
    pub(super) queued: Instant,
    sequence: u64,
}

pub(super) struct Mailbox<M> {
    actor: &'static str,
    capacity: usize,
    metrics: ActorMetrics,
    queue: Mutex<Queue<M>>,
}

struct Queue<M> {
    waiting: VecDeque<Envelope<M>>,
    closed: bool,
    sequence: u64,
    /// When a message was last taken or handled.
    progress: Instant,
    /// Refusals since one was last logged, and when that was.
    refusals: u64,
    logged: Option<Instant>,
    /// Who drains, while there is an incarnation with nothing to do.
    waker: Option<Waker>,
}

impl<M: Message> Mailbox<M> {
    pub(super) fn new(actor: &'static str, capacity: usize, metrics: ActorMetrics) -> Self {
        let queue = Queue {
            waiting: VecDeque::new(),
            closed: false,
            sequence: 0,
            progress: Instant::now(),
            refusals: 0,
            logged: None,
            waker: None,
        };
        Self { actor, capacity: capacity.max(1), metrics, queue: Mutex::new(queue) }
    }

    /// Queues a message from anybody, within the bound.
    pub(super) fn push(&self, message: M) -> Result<(), (M, Refused)> {
        self.enqueue(message, true)
    }

    /// Queues the outcome of an actor's own effect or timer. It is let in beyond the bound, which would otherwise
    /// leave the actor waiting for ever; there are no more of these than the effects the actor itself has begun.
    pub(super) fn push_own(&self, message: M) -> Result<(), (M, Refused)> {
        self.enqueue(message, false)
    }

    fn enqueue(&self, message: M, bounded: bool) -> Result<(), (M, Refused)> {
        let kind = message.kind();
        let mut queue = self.lock();
        if queue.closed {
            drop(queue);
            self.metrics.refused(kind, "stopped");
            return Err((message, Refused::Stopped));
        }
        let policy = message.overflow();
        // A message that gave way; dropped after the lock, as its drop may run other code (a reply wakes its asker).
        let mut displaced = None;
        if policy == Overflow::Replace
            && let Some(older) = queue.waiting.iter_mut().find(|older| older.message.kind() == kind)
        {
            displaced = Some(std::mem::replace(&mut older.message, message));
        } else {
            if bounded && policy != Overflow::Replace && queue.waiting.len() >= self.capacity {
                let oldest = match policy {
                    Overflow::DropOldest => {
                        queue.waiting.iter().position(|older| older.message.overflow() == Overflow::DropOldest)
                    }
                    Overflow::Reject | Overflow::Replace => None,
                };
                let Some(oldest) = oldest else {
                    drop(queue);
                    self.metrics.refused(kind, "full");
                    return Err((message, Refused::Full));
                };
                displaced = queue.waiting.remove(oldest).map(|envelope| envelope.message);
                if let Some(older) = &displaced {
                    self.metrics.refused(older.kind(), "dropped_oldest");
                }
            }
            queue.sequence += 1;
            let sequence = queue.sequence;
            queue.waiting.push_back(Envelope { message, queued: Instant::now(), sequence });
        }
        let waker = queue.waker.take();
        drop(queue);
        drop(displaced);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Takes the oldest message, or has `waker` called when there is one.
    pub(super) fn pop(&self, waker: &Waker) -> Option<Envelope<M>> {
        let mut queue = self.lock();
        match queue.waiting.pop_front() {
            Some(envelope) => {
                queue.progress = Instant::now();
                Some(envelope)
            }
            None => {
                queue.waker = Some(waker.clone());
                None
            }
        }
    }

    /// Counts a refusal; how many have come since the last that was logged, if one is due: a flood of messages is not
    /// to become a flood of lines.
    pub(super) fn refusals_to_log(&self) -> Option<u64> {
        let mut queue = self.lock();
        queue.refusals += 1;
        let now = Instant::now();
        if queue.logged.is_some_and(|logged| now.duration_since(logged) < LOG_INTERVAL) {
            return None;
        }
        queue.logged = Some(now);
        Some(std::mem::take(&mut queue.refusals))
    }

    /// A message has been handled.
    pub(super) fn progressed(&self) {
        self.lock().progress = Instant::now();
    }

    /// The oldest message, if it has waited for longer than `limit` while nothing was handled.
    pub(super) fn overdue(&self, limit: Duration) -> Option<Overdue> {
        let queue = self.lock();
        let oldest = queue.waiting.front()?;
        let now = Instant::now();
        let waited = now.duration_since(oldest.queued);
        (waited > limit && now.duration_since(queue.progress) > limit).then(|| Overdue {
            sequence: oldest.sequence,
            kind: oldest.message.kind(),
            waited,
        })
    }

    /// Ends the address: what waits is dropped, what comes is refused.
    pub(super) fn close(&self) {
        let waiting = {
            let mut queue = self.lock();
            queue.closed = true;
            queue.waker = None;
            std::mem::take(&mut queue.waiting)
        };
        drop(waiting);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub(super) fn metrics(&self) -> &ActorMetrics {
        &self.metrics
    }
}

impl<M> Mailbox<M> {
    pub(super) fn actor(&self) -> &'static str {
        self.actor
    }

    fn lock(&self) -> MutexGuard<'_, Queue<M>> {
        // Nothing panics under the lock but `Message::kind`; the queue is whole at every such point.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that waits for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overdue {
    /// Which one, to recognise it.
    pub(super) sequence: u64,
    pub(super) kind: &'static str,
    pub(super) waited: Duration,
}

/// What a scrape wants to know of a mailbox, whatever its messages.
pub(super) trait Gauge: Send + Sync {
    fn actor(&self) -> &'static str;
    /// Messages that wait, and how long the actor with something to do has done nothing.
    fn measure(&self) -> (usize, Duration);
}

impl<M: Message> Gauge for Mailbox<M> {
    fn actor(&self) -> &'static str {
        self.actor
    }

    fn measure(&self) -> (usize, Duration) {
        let queue = self.lock();
        let idle = match queue.waiting.front() {
            // An actor that slept until this message came is as old as the message, not as its sleep.
            Some(oldest) => Instant::now().duration_since(queue.progress.max(oldest.queued)),
            None => Duration::ZERO,
        };
        (queue.waiting.len(), idle)
    }
}
