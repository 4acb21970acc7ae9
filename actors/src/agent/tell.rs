use std::cell::{OnceCell, RefCell};
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

/// What was said last, and who listens: a listener that is built anew is told it again.
pub(super) struct Word<T> {
    last: RefCell<Option<T>>,
    listeners: RefCell<Vec<Tell<T>>>,
}

impl<T: Clone + 'static> Word<T> {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self { last: RefCell::default(), listeners: RefCell::default() })
    }

    /// Another listener. What it gives back tells it the last word again.
    pub(super) fn heard_by<M: Message>(self: &Rc<Self>, listener: &Later<M>, as_message: fn(T) -> M) -> Box<dyn Fn()> {
        let listener = listener.clone();
        let tell: Tell<T> = Rc::new(move |word| listener.tell(as_message(word)));
        self.listeners.borrow_mut().push(tell.clone());
        let word = self.clone();
        Box::new(move || {
            if let Some(last) = word.last() {
                tell(last);
            }
        })
    }

    /// How it is said.
    pub(super) fn teller(self: &Rc<Self>) -> Tell<T> {
        let word = self.clone();
        Rc::new(move |said| {
            *word.last.borrow_mut() = Some(said.clone());
            for listener in word.listeners.borrow().iter() {
                listener(said.clone());
            }
        })
    }

    pub(super) fn last(&self) -> Option<T> {
        self.last.borrow().clone()
    }
}
