//! Whether the process is ready: when everybody who holds a handle has said so, and until it drains.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the process waits for before it is ready.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Names that are not ready yet, and how many handles stand behind each.
    waiting: BTreeMap<String, usize>,
    draining: bool,
}

impl Readiness {
    /// Something without which the process is not ready, until its handle says that it is there.
    pub fn handle(&self, name: impl Into<String>) -> ReadyHandle {
        let name = name.into();
        *self.lock().waiting.entry(name.clone()).or_default() += 1;
        ReadyHandle { readiness: self.clone(), name: Mutex::new(Some(name)) }
    }

    /// Whether nothing is waited for and the process does not shut down.
    pub fn is_ready(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && !state.draining
    }

    /// What is waited for, by name.
    pub fn waiting(&self) -> Vec<String> {
        self.lock().waiting.keys().cloned().collect()
    }

    /// Whether the process shuts down.
    pub fn is_draining(&self) -> bool {
        self.lock().draining
    }

    /// From now on the process is not ready, whatever the handles say.
    pub fn drain(&self) {
        self.lock().draining = true;
    }

    fn arrived(&self, name: &str) {
        let mut state = self.lock();
        if let Some(handles) = state.waiting.get_mut(name) {
            *handles -= 1;
            if *handles == 0 {
                state.waiting.remove(name);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One thing that the process waits for. Dropped without a word it is waited for all the same: what was given up by
/// mistake shows as a process that never becomes ready, by name.
#[derive(Debug)]
pub struct ReadyHandle {
    readiness: Readiness,
    name: Mutex<Option<String>>,
}

impl ReadyHandle {
    /// It is there; it stays so.
    pub fn ready(&self) {
        let name = self.name.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(name) = name {
            self.readiness.arrived(&name);
        }
    }
}
