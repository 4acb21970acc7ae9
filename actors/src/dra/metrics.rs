use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::context::Driver;

/// From a prepared claim that is answered from its checkpoint to one that waits to the deadline.
const SECONDS: [f64; 14] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 40.0];

const DONE: &str = "done";
const FAILED: &str = "failed";

/// How long the kubelet waits for claims.
#[derive(Clone, Debug)]
pub struct ClaimMetrics {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    driver: &'static str,
    call: &'static str,
    outcome: &'static str,
}

impl Default for ClaimMetrics {
    fn default() -> Self {
        Self { seconds: Family::new_with_constructor(|| Histogram::new(SECONDS)) }
    }
}

impl ClaimMetrics {
    /// Adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // Each is there with a zero before its first claim: the rise to that one is seen too.
        for driver in [Driver::ComputeDomain, Driver::Gpu] {
            for (call, outcome) in [("prepare", DONE), ("prepare", FAILED), ("unprepare", DONE), ("unprepare", FAILED)]
            {
                drop(metrics.seconds.get_or_create(&Labels { driver: driver.name(), call, outcome }));
            }
        }
        let help = "Time from the kubelet's call to the answer for one claim, waiting included";
        registry.register("claim_seconds", help, metrics.seconds.clone());
        metrics
    }

    pub(super) fn answered(&self, driver: Driver, call: &'static str, done: bool, took: Duration) {
        let labels = Labels { driver: driver.name(), call, outcome: if done { DONE } else { FAILED } };
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_counted_by_driver_call_and_outcome() {
        let mut registry = Registry::default();
        let metrics = ClaimMetrics::register(&mut registry);
        let none = r#"claim_seconds_count{driver="gpu.nvidia.com",call="unprepare",outcome="failed"} 0"#;
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(text.contains(none), "{text}");
        metrics.answered(Driver::ComputeDomain, "prepare", true, Duration::from_millis(3));
        metrics.answered(Driver::ComputeDomain, "prepare", false, Duration::from_secs(40));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let of = r#"driver="compute-domain.nvidia.com",call="prepare",outcome="#;
        for (outcome, le) in [("done", "0.005"), ("failed", "40.0")] {
            assert!(text.contains(&format!("claim_seconds_bucket{{le=\"{le}\",{of}\"{outcome}\"}} 1")), "{text}");
        }
    }
}
