//! What an actor is: a value, its messages, and how it is looked after.

use std::time::Duration;

use heddle_core::fault::Fault;

use super::context::Cx;
use super::turn::Turn;

/// A value that handles one message at a time, owned by the runtime and rebuilt by a factory when it fails.
pub trait Actor: Sized + 'static {
    /// The actor's name in metrics and logs, such as `ChannelAllocator`.
    const KIND: &'static str;
    /// What it is told.
    type Message: Message;

    /// Called before the first message of every incarnation. An error fails the actor.
    fn started(&mut self, _cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        Ok(())
    }

    /// Handles one message. It must not block: what has to wait is an effect ([`Cx::spawn`]). An error fails the
    /// actor, which is then dropped and rebuilt; a fault of class `Fatal` ends the process.
    fn handle(&mut self, message: Self::Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault>;

    /// Called on graceful shutdown only, never on a kill or a failure.
    fn stopping(&mut self) {}
}

/// What an actor is told.
pub trait Message: Send + 'static {
    /// The message's name in metrics; one of a small, fixed set.
    fn kind(&self) -> &'static str;

    /// What happens when the mailbox is full.
    fn overflow(&self) -> Overflow {
        Overflow::Reject
    }
}

/// What happens to a message whose mailbox is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// It is refused, and the sender told so.
    Reject,
    /// The oldest queued message with this same policy makes room; if there is none, it is refused.
    DropOldest,
    /// For views of a state: at any depth, it takes the place of a queued message of its kind. The first of its kind
    /// is always let in, so such kinds add at most one entry each to the mailbox's bound.
    Replace,
}

/// How one actor is looked after.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Which one of its kind it is, such as a claim's UID. In logs, never a metric label.
    pub name: String,
    /// Messages that may wait.
    pub mailbox: usize,
    /// A message that waits for longer while nothing at all is handled means that the actor is stuck.
    pub stall: Duration,
    /// What is done when it fails.
    pub restart: Restart,
    /// The process is not ready before the actor has called [`Cx::ready`] once.
    pub gates_readiness: bool,
    /// It is not built before this has begun, and until then the process is ready without it.
    pub after: Option<Turn>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            name: String::new(),
            // An actor's handlers take microseconds, so this is several bursts of everybody on a node at once.
            mailbox: 256,
            stall: Duration::from_secs(30),
            restart: Restart::default(),
            gates_readiness: false,
            after: None,
        }
    }
}

/// How often, and after which pause, a failed actor is rebuilt.
#[derive(Clone, Copy, Debug)]
pub struct Restart {
    /// Failures within the window that are answered by a restart; one more escalates to the scope.
    pub max: u32,
    /// The window.
    pub within: Duration,
    /// The pause before each.
    pub backoff: Backoff,
}

impl Default for Restart {
    fn default() -> Self {
        // With the default backoff eight failures in a row take some twenty seconds: a hiccup of the driver or of the
        // API server is survived in place, anything longer is the kubelet's to show as a crash loop.
        Self { max: 8, within: Duration::from_secs(120), backoff: Backoff::default() }
    }
}

/// A pause that doubles from `min` to `max`, with jitter.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first pause.
    pub min: Duration,
    /// No pause is longer.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { min: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}
