//! How an actor is reached: addresses that survive restarts, and replies.

use std::sync::Arc;

use heddle_core::fault::{Fault, reason};
use tokio::sync::oneshot;

use super::actor::Message;
use super::mailbox::{Mailbox, Refused};

/// The address of an actor. It stays valid across restarts, and so do the messages that wait behind it; only the
/// message that was in hand when the actor failed is lost (an asker is told so).
pub struct Addr<M> {
    mailbox: Arc<Mailbox<M>>,
}

impl<M> Clone for Addr<M> {
    fn clone(&self) -> Self {
        Self { mailbox: self.mailbox.clone() }
    }
}

impl<M> std::fmt::Debug for Addr<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Addr({})", self.mailbox.actor())
    }
}

impl<M: Message> Addr<M> {
    pub(super) fn new(mailbox: Arc<Mailbox<M>>) -> Self {
        Self { mailbox }
    }

    /// Queues the message, or gives it back. Never blocks.
    pub fn send(&self, message: M) -> Result<(), SendError<M>> {
        self.mailbox.push(message).map_err(|(message, refused)| match refused {
            Refused::Full => SendError::Full(message),
            Refused::Stopped => SendError::Stopped(message),
        })
    }

    /// Queues the message; a refusal is counted and logged.
    pub fn tell(&self, message: M) {
        let kind = message.kind();
        let actor = self.mailbox.actor();
        match self.send(message) {
            Ok(()) => {}
            Err(SendError::Full(_)) => {
                if let Some(refusals) = self.mailbox.refusals_to_log() {
                    tracing::warn!(actor, message = kind, refusals, "mailbox is full, messages are dropped");
                }
            }
            // During a shutdown actors tell others that have ended before them.
            Err(SendError::Stopped(_)) => tracing::debug!(actor, message = kind, "told an actor that has stopped"),
        }
    }

    /// Sends a message that carries a [`Reply`] and waits for the answer.
    pub async fn ask<T>(&self, make: impl FnOnce(Reply<T>) -> M) -> Result<T, AskError> {
        let actor = self.mailbox.actor();
        let (sender, answer) = oneshot::channel();
        self.send(make(Reply { sender })).map_err(|error| match error {
            SendError::Full(_) => AskError::Full(actor),
            SendError::Stopped(_) => AskError::Stopped(actor),
        })?;
        answer.await.map_err(|_| AskError::Dropped(actor))
    }

    /// Whether the actor is gone for good.
    pub fn is_stopped(&self) -> bool {
        self.mailbox.is_closed()
    }
}

/// Where one answer goes. Dropping it unanswered tells the asker [`AskError::Dropped`].
pub struct Reply<T> {
    sender: oneshot::Sender<T>,
}

impl<T> std::fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reply")
    }
}

impl<T> Reply<T> {
    /// Answers. An asker who has gone away is no error.
    pub fn send(self, answer: T) {
        // The asker's interest ended; there is nobody to tell.
        let _ = self.sender.send(answer);
    }

    /// Whether the asker has gone away.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A reply without an actor, and where its answer arrives: for tests of handlers.
    pub fn channel() -> (Self, oneshot::Receiver<T>) {
        let (sender, answer) = oneshot::channel();
        (Self { sender }, answer)
    }
}

/// A message that was not queued.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError<M> {
    /// The mailbox is full.
    #[error("the mailbox is full")]
    Full(M),
    /// The actor is gone for good.
    #[error("the actor has stopped")]
    Stopped(M),
}

impl<M> std::fmt::Debug for SendError<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full",
            Self::Stopped(_) => "Stopped",
        })
    }
}

/// A question without an answer. Each names the actor asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The mailbox is full.
    #[error("{0} is busy: its mailbox is full")]
    Full(&'static str),
    /// The actor is gone for good.
    #[error("{0} has stopped")]
    Stopped(&'static str),
    /// The actor failed with the question in hand, or the question gave way to a newer one.
    #[error("{0} dropped the question: it failed and is being restarted, or a newer question took its place")]
    Dropped(&'static str),
}

impl From<AskError> for Fault {
    fn from(error: AskError) -> Self {
        Fault::retryable(reason::ACTOR_FAILED, error)
    }
}
