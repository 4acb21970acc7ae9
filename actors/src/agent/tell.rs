use std::cell::OnceCell;
use std::rc::Rc;

use crate::runtime::{Addr, Message};

/// How an actor says something without knowing who listens: the wiring does.
pub type Tell<T> = Rc<dyn Fn(T)>;

/// An address that the wiring fills in later: actors know each other in circles.
///
/// No actor runs before the wiring is complete, so nothing is said into the void.
pub struct Later<M>(Rc<OnceCell<Addr<M>>>);

impl<M> Clone for Later<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M> Default for Later<M> {
    fn default() -> Self {
        Self(Rc::default())
    }
}

impl<M: Message> Later<M> {
    /// The address is known now.
    pub fn set(&self, address: &Addr<M>) {
        // Set twice would be the same wiring run twice, which gives the same address.
        let _ = self.0.set(address.clone());
    }

    /// Tells the actor.
    pub fn tell(&self, message: M) {
        match self.0.get() {
            Some(address) => address.tell(message),
            None => tracing::error!(message = message.kind(), "told an actor that is not wired"),
        }
    }
}
