//! A point in time before which some actors must not run.

use std::sync::Arc;

use tokio::sync::watch;

/// Begins once and never ends. Actors whose [`super::Spec`] names it are built when it begins; what they are told before
/// waits in their mailboxes.
#[derive(Clone, Debug)]
pub struct Turn {
    begun: Arc<watch::Sender<bool>>,
}

impl Default for Turn {
    fn default() -> Self {
        Self { begun: Arc::new(watch::Sender::new(false)) }
    }
}

impl Turn {
    /// From now on its actors run.
    pub fn begin(&self) {
        self.begun.send_replace(true);
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        *self.begun.borrow()
    }

    /// Waits until it begins.
    pub async fn begun(&self) {
        // The sender is in `self`.
        let _ = self.begun.subscribe().wait_for(|begun| *begun).await;
    }
}
