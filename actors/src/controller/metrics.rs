use heddle_core::controller::Kind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::invariants::InvariantMetrics;

/// What the controller counts.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    writes: Family<WriteLabels, Counter>,
    violations: InvariantMetrics,
    crd_fits: Family<CrdLabels, Gauge>,
    unreadable: Family<KindLabels, Counter>,
    /// Objects that contradict each other so that nothing can be put right without a person.
    pub clashes: Counter,
    /// Numbers of ComputeDomains that are gone, which lost nodes keep from being given to others.
    pub quarantined: Gauge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WriteLabels {
    write: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CrdLabels {
    crd: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Accepted.
    Done,
    /// Somebody was faster; it is decided anew.
    Conflict,
    /// The API could not be asked, or refused.
    Failed,
}

impl ControllerMetrics {
    /// Adds the metrics to a registry, each with a zero before its first event.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self { violations: InvariantMetrics::register(registry), ..Self::default() };
        registry.register(
            "controller_writes",
            "Writes of the controller, by what they do and how they ended",
            metrics.writes.clone(),
        );
        registry.register(
            "channel_clashes",
            "Channels about which objects contradict each other; see the log",
            metrics.clashes.clone(),
        );
        registry.register(
            "crd_fits",
            "1 while the CRD that the API serves keeps all that this release writes; otherwise no new ComputeDomain is served",
            metrics.crd_fits.clone(),
        );
        registry.register(
            "unreadable_objects",
            "Versions of objects that the controller was shown and could not read; the log names them",
            metrics.unreadable.clone(),
        );
        registry.register(
            "channels_quarantined",
            "IMEX channel numbers that lost nodes keep from being given to others; heddle channel list --quarantined names them",
            metrics.quarantined.clone(),
        );
        for kind in Kind::ALL {
            drop(metrics.unreadable.get_or_create(&KindLabels { kind: kind.name() }));
        }
        for write in ["drain", "free", "fence", "move"] {
            drop(metrics.writes.get_or_create(&WriteLabels { write, outcome: "done" }));
        }
        metrics
    }

    /// Counts an object that cannot be read.
    pub fn unreadable(&self, kind: Kind) {
        self.unreadable.get_or_create(&KindLabels { kind: kind.name() }).inc();
    }

    /// Counts a write.
    pub fn wrote(&self, write: &'static str, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Conflict => "conflict",
            Outcome::Failed => "failed",
        };
        self.writes.get_or_create(&WriteLabels { write, outcome }).inc();
    }

    /// Shows whether a CRD fits.
    pub fn crd(&self, crd: &str, fits: bool) {
        self.crd_fits.get_or_create(&CrdLabels { crd: crd.to_owned() }).set(i64::from(fits));
    }

    /// Counts a violation.
    pub fn violated(&self, invariant: &'static str) {
        self.violations.violated(invariant);
    }
}
