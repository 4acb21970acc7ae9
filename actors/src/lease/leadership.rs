use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;

use super::clock;
use super::gate::Gated;

/// Until when this process leads, by its own clock. Clones are the same.
#[derive(Clone, Debug)]
pub struct Leadership {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Nanoseconds of [`clock::now`]; 0 is never, the greatest number for ever.
    until: AtomicU64,
    leads: watch::Sender<bool>,
    knows: watch::Sender<bool>,
}

const FOR_EVER: u64 = u64::MAX;

impl Leadership {
    fn until(until: u64) -> Self {
        let leads = watch::Sender::new(until == FOR_EVER);
        Self { shared: Arc::new(Shared { until: AtomicU64::new(until), leads, knows: watch::Sender::new(false) }) }
    }

    /// It does not lead before it is told so.
    pub fn contended() -> Self {
        Self::until(0)
    }

    /// There is nobody else.
    pub fn sole() -> Self {
        Self::until(FOR_EVER)
    }

    /// For how much longer it leads. None if it does not. This is the clock's word: it needs nobody to notice the time.
    pub fn left(&self) -> Option<Duration> {
        match self.shared.until.load(Ordering::SeqCst) {
            FOR_EVER => Some(Duration::from_secs(3600)),
            until => Duration::from_nanos(until).checked_sub(clock::now()).filter(|left| !left.is_zero()),
        }
    }

    /// Whether it leads.
    pub fn leads(&self) -> bool {
        self.left().is_some()
    }

    /// It leads until then.
    pub(super) fn lead(&self, until: Duration) {
        let lapsed = !self.leads();
        self.shared.until.store(u64::try_from(until.as_nanos()).unwrap_or(FOR_EVER - 1), Ordering::SeqCst);
        if lapsed {
            // Also where nobody has noticed the lapse: what came meanwhile was not decided.
            self.shared.leads.send_replace(true);
        }
    }

    /// It does not lead any more.
    pub(super) fn resign(&self) {
        self.shared.until.store(0, Ordering::SeqCst);
        self.shared.leads.send_if_modified(|leads| std::mem::replace(leads, false));
    }

    /// Tells whenever it begins or ends to lead.
    pub fn changes(&self) -> watch::Receiver<bool> {
        self.shared.leads.subscribe()
    }

    /// This process knows what it would decide on: from now on it stands for election.
    pub fn knows(&self) {
        self.shared.knows.send_replace(true);
    }

    /// Waits for that.
    pub(super) async fn known(&self) {
        // The sender is in `self`, so that there is always an answer.
        let _ = self.shared.knows.subscribe().wait_for(|knows| *knows).await;
    }

    /// A client through which nothing is written but while this process leads.
    pub fn guard(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        Client::new(Gated::new(client, self.clone()), namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_alone_ends_it() {
        let leadership = Leadership::contended();
        let mut changes = leadership.changes();
        assert!(!leadership.leads());
        leadership.lead(clock::now() + Duration::from_secs(3600));
        assert!(leadership.leads() && *changes.borrow_and_update());
        leadership.lead(clock::now());
        assert!(!leadership.leads());
        assert!(!changes.has_changed().unwrap(), "nobody has noticed");
        leadership.lead(clock::now() + Duration::from_secs(3600));
        assert!(changes.has_changed().unwrap(), "it begins anew");
        changes.mark_unchanged();
        leadership.resign();
        assert!(!leadership.leads() && changes.has_changed().unwrap());
        changes.mark_unchanged();
        leadership.resign();
        assert!(!changes.has_changed().unwrap());
        assert!(Leadership::sole().leads());
    }
}
