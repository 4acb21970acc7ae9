use std::collections::BTreeMap;
use std::fmt;

use heddle_proto::runner::State;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::watch;

/// Word for a connection that stands.
const CONNECTED: &str = "CONNECTED";

/// The daemon as the runner sees it, looked at when somebody asks.
#[derive(Debug)]
pub(super) struct DaemonMetrics {
    state: watch::Receiver<State>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    domain: String,
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabels {
    connection: String,
}

impl DaemonMetrics {
    pub(super) fn new(state: watch::Receiver<State>) -> Self {
        Self { state }
    }
}

impl Collector for DaemonMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let state = self.state.borrow().clone();
        let gauge = MetricType::Gauge;
        let help = "1 for the state in which the daemon is by its own word, DOWN while none runs";
        let mut family = encoder.encode_descriptor("runner_daemon_state", help, None, gauge)?;
        let labels = StateLabels { domain: state.domain.clone(), state: state.daemon_state.clone() };
        ConstGauge::new(1).encode(family.encode_family(&labels)?)?;

        let help = "Starts of the daemon since the runner's own start; more than one is a daemon that has ended by itself or was switched";
        let starts = encoder.encode_descriptor("runner_daemon_starts", help, None, MetricType::Counter)?;
        ConstCounter::new(u64::from(state.starts)).encode(starts)?;

        // What is not known is not told.
        if state.links_unknown.is_empty() && state.links_since_unix_ms != 0 {
            let help = "Peers of the daemon that have an address, by its word for the connection";
            let mut peers = encoder.encode_descriptor("runner_peers", help, None, gauge)?;
            for (connection, number) in connections(&state) {
                ConstGauge::new(number).encode(peers.encode_family(&PeerLabels { connection })?)?;
            }
        }
        if state.identity_not_after_unix != 0 {
            let help = "Until when the certificate that the daemon shows its peers is valid";
            let until = encoder.encode_descriptor("runner_certificate_expiry_timestamp_seconds", help, None, gauge)?;
            ConstGauge::new(state.identity_not_after_unix).encode(until)?;
        }
        Ok(())
    }
}

fn connections(state: &State) -> BTreeMap<String, i64> {
    let mut numbers = BTreeMap::from([(CONNECTED.to_owned(), i64::from(state.peers_connected))]);
    for word in state.missing.values() {
        *numbers.entry(word.clone()).or_default() += 1;
    }
    numbers
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn told(state: State) -> String {
        let (_sender, receiver) = watch::channel(state);
        let mut registry = Registry::with_prefix("heddle");
        registry.register_collector(Box::new(DaemonMetrics::new(receiver)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn the_daemon_s_own_words_are_shown() {
        let text = told(State {
            domain: "d".into(),
            daemon_state: "READY".into(),
            starts: 2,
            peers_connected: 3,
            missing: [(4, "NEVER_CONNECTED".to_owned()), (5, "NEVER_CONNECTED".to_owned())].into(),
            links_since_unix_ms: 1,
            identity_not_after_unix: 1_900_000_000,
            ..Default::default()
        });
        for line in [
            r#"heddle_runner_daemon_state{domain="d",state="READY"} 1"#,
            "heddle_runner_daemon_starts_total 2",
            r#"heddle_runner_peers{connection="CONNECTED"} 3"#,
            r#"heddle_runner_peers{connection="NEVER_CONNECTED"} 2"#,
            "heddle_runner_certificate_expiry_timestamp_seconds 1900000000",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let unknown = State {
            daemon_state: "DOWN".into(),
            links_unknown: "it runs and does not answer".into(),
            links_since_unix_ms: 1,
            ..Default::default()
        };
        for state in [unknown, State { daemon_state: "DOWN".into(), ..Default::default() }] {
            let text = told(state);
            assert!(!text.contains("runner_peers") && !text.contains("expiry"), "{text}");
            assert!(text.contains(r#"{domain="",state="DOWN"} 1"#), "{text}");
        }
    }
}
