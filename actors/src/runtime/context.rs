//! What a handler may do besides changing its actor: begin effects, set timers, stop.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::fault::Fault;

use super::actor::Actor;
use super::address::Addr;
use super::effect::{self, Task};
use super::life::Life;
use super::mailbox::Mailbox;
use super::readiness::ReadyHandle;

/// A handler's way to its runtime.
pub struct Cx<'a, A: Actor> {
    mailbox: &'a Arc<Mailbox<A::Message>>,
    life: &'a Rc<Life>,
    ready: Option<&'a ReadyHandle>,
}

impl<'a, A: Actor> Cx<'a, A> {
    pub(super) fn new(
        mailbox: &'a Arc<Mailbox<A::Message>>,
        life: &'a Rc<Life>,
        ready: Option<&'a ReadyHandle>,
    ) -> Self {
        Self { mailbox, life, ready }
    }

    /// The actor's own address.
    pub fn address(&self) -> Addr<A::Message> {
        Addr::new(self.mailbox.clone())
    }

    /// Begins an effect. It dies with this incarnation; its error or panic fails the actor.
    pub fn spawn(&mut self, name: &'static str, fut: impl Future<Output = Result<(), Fault>> + 'static) -> Task {
        effect::spawn(self.life, name, None, fut)
    }

    /// Begins an effect that must get on: when it neither ends nor calls [`super::progress`] for longer than `limit`,
    /// the actor has stalled.
    pub fn spawn_limited(
        &mut self,
        name: &'static str,
        fut: impl Future<Output = Result<(), Fault>> + 'static,
        limit: Duration,
    ) -> Task {
        effect::spawn(self.life, name, Some(limit), fut)
    }

    /// Begins an effect whose outcome comes back as a message.
    pub fn spawn_then<T: 'static>(
        &mut self,
        name: &'static str,
        fut: impl Future<Output = T> + 'static,
        then: impl FnOnce(T) -> A::Message + 'static,
    ) -> Task {
        let mailbox = self.mailbox.clone();
        effect::spawn(self.life, name, None, async move {
            let message = then(fut.await);
            // Refused only if the actor has stopped meanwhile, and then nobody waits for it.
            let _ = mailbox.push_own(message);
            Ok(())
        })
    }

    /// Sends the actor a message later.
    pub fn after(&mut self, d: Duration, m: A::Message) -> Task {
        self.spawn_then("timer", tokio::time::sleep(d), move |()| m)
    }

    /// What the actor needed before it could serve is there. With [`super::Spec::gates_readiness`] the process becomes
    /// ready when all have said so.
    pub fn ready(&self) {
        if let Some(ready) = self.ready {
            ready.ready();
        }
    }

    /// Ends the actor after this message, for good and without a restart.
    pub fn stop(&mut self) {
        self.life.stop();
    }
}
