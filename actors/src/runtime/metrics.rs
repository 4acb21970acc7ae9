//! What every actor shows without a line of its own, and where others add theirs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::life::Cause;
use super::scope::Actors;

/// The process's metrics. All names begin with `heddle_`.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    actors: Families,
}

#[derive(Clone, Debug)]
struct Families {
    handling: Family<MessageLabels, Histogram, fn() -> Histogram>,
    queueing: Family<MessageLabels, Histogram, fn() -> Histogram>,
    restarts: Family<CauseLabels, Counter>,
    refused: Family<RefusedLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActorLabels {
    actor: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MessageLabels {
    actor: &'static str,
    message: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    actor: &'static str,
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    actor: &'static str,
    message: &'static str,
    cause: &'static str,
}

/// Handlers take microseconds; what is near a second blocks everybody on the thread. Few buckets, as every kind of
/// message has its own.
fn seconds() -> Histogram {
    Histogram::new([0.0001, 0.001, 0.01, 0.1, 1.0, 10.0])
}

impl Metrics {
    pub(super) fn new(actors: &Actors) -> Self {
        let families = Families {
            handling: Family::new_with_constructor(seconds),
            queueing: Family::new_with_constructor(seconds),
            restarts: Family::default(),
            refused: Family::default(),
        };
        let mut registry = Registry::with_prefix("heddle");
        registry.register("build", "The version that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        registry.register("actor_message_seconds", "Time an actor took to handle a message", families.handling.clone());
        registry.register(
            "actor_queue_seconds",
            "Time a message waited in an actor's mailbox",
            families.queueing.clone(),
        );
        registry.register(
            "actor_restarts",
            "Failures of actors, each answered by a restart or by escalation, by cause",
            families.restarts.clone(),
        );
        registry.register(
            "actor_mailbox_refused",
            "Messages that an actor's mailbox did not keep, by message and cause",
            families.refused.clone(),
        );
        registry.register_collector(Box::new(MailboxCollector { actors: actors.clone() }));
        Self { registry: Arc::new(Mutex::new(registry)), actors: families }
    }

    /// Adds metrics and collectors. Names get the prefix `heddle_`; each is to be registered once in a process.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(&mut self.lock())
    }

    /// Everything, as OpenMetrics text.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.lock())?;
        Ok(text)
    }

    /// Everything, as text of Prometheus's older format, for those who read no OpenMetrics.
    pub fn encode_plain(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::prometheus_text::encode(&mut text, &self.lock())?;
        Ok(text)
    }

    pub(super) fn actor(&self, actor: &'static str) -> ActorMetrics {
        for cause in Cause::ALL {
            // The series is there with a zero before the first failure, so that its rise is seen.
            drop(self.actors.restarts.get_or_create(&CauseLabels { actor, cause: cause.label() }));
        }
        ActorMetrics { actor, families: self.actors.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The metrics of one kind of actor.
#[derive(Clone, Debug)]
pub(super) struct ActorMetrics {
    actor: &'static str,
    families: Families,
}

impl ActorMetrics {
    pub(super) fn handled(&self, message: &'static str, waited: Duration, took: Duration) {
        let labels = MessageLabels { actor: self.actor, message };
        self.families.queueing.get_or_create(&labels).observe(waited.as_secs_f64());
        self.families.handling.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub(super) fn failed(&self, cause: Cause) {
        self.families.restarts.get_or_create(&CauseLabels { actor: self.actor, cause: cause.label() }).inc();
    }

    pub(super) fn refused(&self, message: &'static str, cause: &'static str) {
        self.families.refused.get_or_create(&RefusedLabels { actor: self.actor, message, cause }).inc();
    }
}

/// Looks into the mailboxes when somebody asks.
#[derive(Debug)]
struct MailboxCollector {
    actors: Actors,
}

impl Collector for MailboxCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut kinds: BTreeMap<&'static str, (usize, Duration)> = BTreeMap::new();
        self.actors.measure(|actor, depth, age| {
            let (depths, oldest) = kinds.entry(actor).or_default();
            *depths += depth;
            *oldest = age.max(*oldest);
        });
        let mut depths = encoder.encode_descriptor(
            "actor_mailbox_depth",
            "Messages that wait in the mailboxes of a kind of actor",
            None,
            MetricType::Gauge,
        )?;
        for (actor, (depth, _)) in &kinds {
            let depth = i64::try_from(*depth).unwrap_or(i64::MAX);
            ConstGauge::new(depth).encode(depths.encode_family(&ActorLabels { actor })?)?;
        }
        let mut ages = encoder.encode_descriptor(
            "actor_last_progress_age_seconds",
            "Time since an actor with messages waiting last handled one; 0 for actors with nothing to do",
            None,
            MetricType::Gauge,
        )?;
        for (actor, (_, age)) in &kinds {
            ConstGauge::new(age.as_secs_f64()).encode(ages.encode_family(&ActorLabels { actor })?)?;
        }
        Ok(())
    }
}
