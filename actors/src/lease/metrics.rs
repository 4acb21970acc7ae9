use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Whether this process leads.
#[derive(Clone, Debug, Default)]
pub struct LeaseMetrics {
    /// 1 while it does.
    pub leader: Gauge,
}

impl LeaseMetrics {
    /// Adds the metric to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("leader", "1 while this process leads, 0 while it stands by", metrics.leader.clone());
        metrics
    }
}
