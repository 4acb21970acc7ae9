//! One incarnation of an actor: how it ends, and the effects that end with it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::Waker;

use heddle_core::fault::Fault;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::watchdog::InHand;

/// What an actor failed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// A handler or the factory panicked.
    Panic,
    /// A handler or the factory returned a fault.
    Error,
    /// Nothing moved for longer than was allowed.
    Stall,
    /// An effect returned a fault or panicked.
    Effect,
}

impl Cause {
    pub(super) const ALL: [Self; 4] = [Self::Panic, Self::Error, Self::Stall, Self::Effect];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::Error => "error",
            Self::Stall => "stall",
            Self::Effect => "effect",
        }
    }
}

/// How an incarnation ended.
#[derive(Debug)]
pub(super) enum Exit {
    /// It is to be rebuilt, or given up.
    Failed(Cause, Fault),
    /// It stopped by itself.
    Stopped,
    /// Its scope was killed.
    Killed,
    /// The process shuts down.
    Finished,
}

/// What the shell reports when the incarnation's value is gone.
pub(super) struct Ended {
    pub(super) exit: Exit,
    /// Aborted effects, which are gone once these have been awaited.
    pub(super) effects: Vec<JoinHandle<()>>,
}

/// The part of an incarnation that its shell, its effects and its supervisor share.
pub(super) struct Life {
    /// Decided, and carried out at the shell's next turn.
    verdict: RefCell<Option<Exit>>,
    /// The shell.
    waker: RefCell<Option<Waker>>,
    ended: RefCell<Option<oneshot::Sender<Ended>>>,
    effects: RefCell<BTreeMap<u64, JoinHandle<()>>>,
    next_effect: Cell<u64>,
    pub(super) in_hand: InHand,
    pub(super) span: tracing::Span,
}

impl Life {
    pub(super) fn begin(in_hand: InHand, span: tracing::Span) -> (Rc<Self>, oneshot::Receiver<Ended>) {
        let (sender, ended) = oneshot::channel();
        let life = Self {
            verdict: RefCell::default(),
            waker: RefCell::default(),
            ended: RefCell::new(Some(sender)),
            effects: RefCell::default(),
            next_effect: Cell::new(0),
            in_hand,
            span,
        };
        (Rc::new(life), ended)
    }

    pub(super) fn fail(&self, cause: Cause, fault: Fault) {
        self.decide(Exit::Failed(cause, fault));
    }

    pub(super) fn stop(&self) {
        self.decide(Exit::Stopped);
    }

    /// The first verdict stands; only a wish to stop gives way to what went wrong in the same turn or to a kill.
    pub(super) fn decide(&self, exit: Exit) {
        let mut verdict = self.verdict.borrow_mut();
        if matches!(*verdict, None | Some(Exit::Stopped)) {
            *verdict = Some(exit);
        }
        drop(verdict);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// The verdict, if there is one; else `waker` is called when there is.
    pub(super) fn verdict(&self, waker: &Waker) -> Option<Exit> {
        let verdict = self.verdict.borrow_mut().take();
        if verdict.is_none() {
            *self.waker.borrow_mut() = Some(waker.clone());
        }
        verdict
    }

    /// Aborts all effects and reports the end. The value has been dropped before.
    pub(super) fn end(&self, exit: Exit) {
        let effects: Vec<_> = std::mem::take(&mut *self.effects.borrow_mut()).into_values().collect();
        for effect in &effects {
            effect.abort();
        }
        if let Some(sender) = self.ended.borrow_mut().take() {
            // The supervisor waits for this until the whole runtime is dropped.
            let _ = sender.send(Ended { exit, effects });
        }
    }

    pub(super) fn next_effect(&self) -> u64 {
        let id = self.next_effect.get();
        self.next_effect.set(id + 1);
        id
    }

    pub(super) fn add_effect(&self, id: u64, handle: JoinHandle<()>) {
        self.effects.borrow_mut().insert(id, handle);
    }

    pub(super) fn remove_effect(&self, id: u64) {
        self.effects.borrow_mut().remove(&id);
    }
}

/// What a panic said.
pub(super) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
