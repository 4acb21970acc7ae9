//! Watches whether the node's container runtime gives pods IMEX channels by itself, and tells it on change.

mod places;
mod reading;
mod watch;

use std::collections::BTreeSet;
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use heddle_core::runtime_guard::{Guard, Mode, Verdict, judge};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

pub use places::Places;
pub use reading::{Reader, Reading};
pub(crate) use watch::Watch;

use crate::agent::Tell;
use crate::host_root::HostRoot;
use crate::runtime::{self, Actor, Addr, Cx, Overflow};

/// The files are read no more often: CDI files come and go with every claim.
const PAUSE: Duration = Duration::from_millis(200);

/// What a [`RuntimeGuard`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// What is done about an open door.
    pub mode: Mode,
    /// Where the host's `/` is.
    pub host: HostRoot,
    /// What is read there.
    pub places: Places,
    /// Who hears of it.
    pub guard: Tell<Guard>,
    /// Shows it.
    pub metrics: GuardMetrics,
}

/// What it is told.
#[derive(Debug)]
pub enum Message {
    /// The files were read.
    Looked(Verdict),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Looked(_) => "Looked",
        }
    }

    fn overflow(&self) -> Overflow {
        Overflow::Replace
    }
}

/// Owns what is known of the second door.
pub struct RuntimeGuard {
    settings: Settings,
    guard: Guard,
}

impl RuntimeGuard {
    /// One that has not looked yet.
    pub fn new(settings: Settings) -> Self {
        let guard = Guard::new(settings.mode);
        Self { settings, guard }
    }
}

impl Actor for RuntimeGuard {
    const KIND: &'static str = "RuntimeGuard";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        (self.settings.guard)(self.guard.clone());
        if self.guard != Guard::Off {
            let reader = Reader::new(self.settings.host.clone(), self.settings.places.clone());
            cx.spawn("watch", look(reader, cx.address()));
        }
        Ok(())
    }

    fn handle(&mut self, message: Message, _: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let Message::Looked(verdict) = message;
        let seen = self.guard.seen(verdict);
        if seen == self.guard {
            return Ok(());
        }
        if let Guard::On { verdict: Some(verdict), .. } = &seen {
            match verdict {
                Verdict::Closed | Verdict::NotNvidia => {
                    tracing::info!(
                        state = verdict.label(),
                        "the container runtime gives pods no IMEX channels by itself"
                    );
                }
                Verdict::Open { why, set } => {
                    tracing::warn!(
                        reason = reason::RUNTIME_GUARD_OPEN,
                        "a pod can have any IMEX channel: {why}; {set}"
                    );
                }
                Verdict::Unknown { why } => tracing::warn!(
                    reason = reason::RUNTIME_GUARD_UNKNOWN,
                    "whether the container runtime gives pods IMEX channels cannot be told: {why}"
                ),
            }
            self.settings.metrics.show(verdict);
        }
        (self.settings.guard)(seen.clone());
        self.guard = seen;
        Ok(())
    }
}

/// Reads the files at once and whenever they may have changed; for ever.
async fn look(mut reader: Reader, tell: Addr<Message>) -> Result<(), Fault> {
    let mut folders = BTreeSet::new();
    loop {
        let watch = Watch::start(&folders);
        let began = Instant::now();
        let read = tokio::task::spawn_blocking(move || {
            let reading = reader.read();
            (reader, reading)
        });
        let failed =
            |panic| Fault::retryable(reason::ACTOR_FAILED, format!("reading the host's files failed: {panic}"));
        let reading;
        (reader, reading) = read.await.map_err(failed)?;
        if reading.folders != folders {
            // What was read may have changed before its folder was watched.
            folders = reading.folders;
            continue;
        }
        tell.tell(Message::Looked(judge(&reading.facts)));
        watch.changed().await;
        tokio::time::sleep_until(began + PAUSE).await;
    }
}

/// The state of the door, as a metric.
#[derive(Clone, Debug, Default)]
pub struct GuardMetrics {
    states: Family<StateLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

impl GuardMetrics {
    /// Adds it to a registry: 1 at the state that is, 0 at the others; none is 1 before the first look, and ever while
    /// nobody looks.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "runtime_guard",
            "Whether the node's container runtime gives pods IMEX channels by itself: open, closed, not-nvidia or unknown",
            metrics.states.clone(),
        );
        for state in Verdict::LABELS {
            drop(metrics.states.get_or_create(&StateLabels { state }));
        }
        metrics
    }

    fn show(&self, verdict: &Verdict) {
        for state in Verdict::LABELS {
            self.states.get_or_create(&StateLabels { state }).set((state == verdict.label()).into());
        }
    }
}
