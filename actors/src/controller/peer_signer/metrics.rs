use heddle_core::fault::reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What the signer counts.
#[derive(Clone, Debug, Default)]
pub struct PeerMetrics {
    signed: Counter,
    denied: Family<Denied, Counter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Denied {
    reason: &'static str,
}

impl PeerMetrics {
    /// Adds the metrics to a registry, each with a zero before its first event.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("peer_certificates_signed", "Peer certificates signed", metrics.signed.clone());
        let help = "Requests for peer certificates denied, by reason; anything but a rare NotAMember is looked into";
        registry.register("peer_certificates_denied", help, metrics.denied.clone());
        for reason in [reason::NOT_AN_AGENT, reason::REQUEST_NOT_EXACT, reason::NOT_A_MEMBER, reason::TOO_MANY_REQUESTS]
        {
            drop(metrics.denied.get_or_create(&Denied { reason }));
        }
        metrics
    }

    /// One more was signed.
    pub(super) fn signed(&self) {
        self.signed.inc();
    }

    /// One more was denied.
    pub(super) fn denied(&self, reason: &'static str) {
        self.denied.get_or_create(&Denied { reason }).inc();
    }
}
