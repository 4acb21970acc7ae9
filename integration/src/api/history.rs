//! Every committed change, for those who check invariants.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;

use super::server::ApiServer;
use super::watch::Change;

/// Changes were forgotten before they were read: the server's history is too short for this reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("changes after version {after} were forgotten before they were read; make the server's history longer")]
pub struct Lagged {
    /// The last version that was read.
    pub after: u64,
}

/// Reads all changes of a server in their order.
pub struct History {
    server: ApiServer,
    newest: watch::Receiver<u64>,
    seen: u64,
    read: VecDeque<Arc<Change>>,
}

impl History {
    pub(super) fn new(server: ApiServer) -> Self {
        let (newest, seen) = {
            let store = server.store();
            (store.newest(), store.oldest())
        };
        Self { server, newest, seen, read: VecDeque::new() }
    }

    /// The next change, if it has happened.
    ///
    /// # Errors
    /// When it was forgotten; reading goes on with the oldest that is known.
    pub fn try_next(&mut self) -> Result<Option<Arc<Change>>, Lagged> {
        if self.read.is_empty() {
            let store = self.server.store();
            let Ok(changes) = store.since(self.seen) else {
                let lagged = Lagged { after: self.seen };
                self.seen = store.oldest();
                return Err(lagged);
            };
            self.read.extend(changes.cloned());
            self.seen = store.version();
        }
        Ok(self.read.pop_front())
    }

    /// The next change, once it happens.
    ///
    /// # Errors
    /// See [`Self::try_next`].
    pub async fn next(&mut self) -> Result<Arc<Change>, Lagged> {
        loop {
            self.newest.mark_unchanged();
            if let Some(change) = self.try_next()? {
                return Ok(change);
            }
            // The sender lives in the server, which this holds.
            let _ = self.newest.changed().await;
        }
    }
}
