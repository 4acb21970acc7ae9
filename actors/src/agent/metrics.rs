use heddle_core::api::{DaemonStatus, LinksState};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::node_link::DomainView;

/// The node's daemon, and the numbers of the IMEX domain that it serves.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeMetrics {
    ready: Family<DomainLabels, Gauge>,
    state: Family<StateLabels, Gauge>,
    recovery: Family<DomainLabels, Gauge>,
    missing: Family<DomainLabels, Gauge>,
    certificate: Family<DomainLabels, Gauge>,
    used: Family<DomainLabels, Gauge>,
    there: Family<DomainLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DomainLabels {
    domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    domain: String,
    state: String,
}

impl NodeMetrics {
    /// Adds them to a registry.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "1 while the daemon is READY in the IMEX domain that the node belongs to, else 0; nothing for a node that belongs to none";
        registry.register("imex_daemon_ready", help, metrics.ready.clone());
        let help = "1 for the state of the daemon by its own word, DOWN while none runs and UNAVAILABLE while it does not answer";
        registry.register("imex_daemon_state", help, metrics.state.clone());
        let help = "1 while the driver asks for something to be done before the node's GPUs or its IMEX domain can be relied on, else 0";
        registry.register("imex_recovery_action", help, metrics.recovery.clone());
        let help = "Members of the IMEX domain to which the daemon's connection does not stand; nothing while that is not known";
        registry.register("imex_peers_missing", help, metrics.missing.clone());
        let help =
            "End of the life of the certificate that the daemon shows its peers, Unix seconds; nothing without one";
        registry.register("imex_peer_certificate_expiry_timestamp_seconds", help, metrics.certificate.clone());
        let help = "Channel numbers that ComputeDomains hold in the node's IMEX domain";
        registry.register("imex_channels_used", help, metrics.used.clone());
        let help = "Channel numbers that there are in the node's IMEX domain, by this node's kernel module";
        registry.register("imex_channels", help, metrics.there.clone());
        metrics
    }

    /// Shows what is known now.
    pub(super) fn show(&self, view: &DomainView) {
        // A node has one domain; the one that it has left is no longer its to tell of.
        self.ready.clear();
        self.state.clear();
        self.recovery.clear();
        self.missing.clear();
        self.certificate.clear();
        self.used.clear();
        self.there.clear();
        let Some(domain) = view.node.spec.domain.clone() else { return };
        let status = view.node.status.clone().unwrap_or_default();
        let ready = status.daemon.domain.as_ref() == Some(&domain) && status.daemon.state == "READY";
        let labels = DomainLabels { domain };
        self.ready.get_or_create(&labels).set(ready.into());
        self.show_daemon(&status.daemon, &labels);
        let Some(domain) = &view.domain else { return };
        let used = domain.status.as_ref().map_or(0, |status| status.channels.len());
        self.used.get_or_create(&labels).set(i64::try_from(used).unwrap_or(i64::MAX));
        // Number 0 is never given.
        self.there.get_or_create(&labels).set(i64::from(status.channel_count.saturating_sub(1)));
    }

    fn show_daemon(&self, daemon: &DaemonStatus, labels: &DomainLabels) {
        self.recovery.get_or_create(labels).set(daemon.recovery_action.is_some().into());
        if !daemon.state.is_empty() {
            let labels = StateLabels { domain: labels.domain.clone(), state: daemon.state.clone() };
            self.state.get_or_create(&labels).set(1);
        }
        if let Some(links) = daemon.links.as_ref().filter(|links| links.state == LinksState::Known) {
            self.missing.get_or_create(labels).set(i64::try_from(links.missing.len()).unwrap_or(i64::MAX));
        }
        let until = daemon.certificate_not_after.as_ref().and_then(|until| until.parse::<jiff::Timestamp>().ok());
        if let Some(until) = until {
            self.certificate.get_or_create(labels).set(until.as_second());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use heddle_core::api::{IMEXDomain, IMEXNode};
    use serde_json::json;

    use super::*;

    fn view(serves: &str, state: &str) -> DomainView {
        let node: IMEXNode = serde_json::from_value(json!({
            "metadata": {"name": "n1"}, "spec": {"domain": "d"},
            "status": {"channelCount": 2048, "daemon": {"state": state, "domain": serves}},
        }))
        .unwrap();
        let entry = json!({"channel": 1, "state": "Active", "epoch": 1, "computeDomain": "team/x"});
        let domain: IMEXDomain = serde_json::from_value(json!({
            "metadata": {"name": "d"}, "spec": {"clique": "c.1"}, "status": {"channels": {"u": entry}},
        }))
        .unwrap();
        DomainView { node: Arc::new(node), domain: Some(Arc::new(domain)) }
    }

    fn told(metrics: &NodeMetrics) -> [Option<i64>; 3] {
        let labels = DomainLabels { domain: "d".into() };
        [&metrics.ready, &metrics.used, &metrics.there].map(|family| family.get(&labels).map(|gauge| gauge.get()))
    }

    #[test]
    fn a_daemon_counts_as_ready_in_the_domain_that_the_node_belongs_to() {
        let metrics = NodeMetrics::default();
        for (serves, state, ready) in
            [("d", "READY", 1), ("d", "NOT_READY", 0), ("d", "WAITING_FOR_PEERS", 0), ("e", "READY", 0)]
        {
            metrics.show(&view(serves, state));
            assert_eq!(told(&metrics), [Some(ready), Some(1), Some(2047)], "{serves} {state}");
        }
    }

    #[test]
    fn what_a_daemon_says_of_itself_is_told() {
        let labels = DomainLabels { domain: "d".into() };
        let state = |state: &str| StateLabels { domain: "d".into(), state: state.into() };
        let metrics = NodeMetrics::default();
        metrics.show(&view("d", "WAITING_FOR_RECOVERY"));
        let gauge = |family: &Family<DomainLabels, Gauge>| family.get(&labels).map(|gauge| gauge.get());
        assert_eq!(metrics.state.get(&state("WAITING_FOR_RECOVERY")).map(|gauge| gauge.get()), Some(1));
        assert_eq!([&metrics.recovery, &metrics.missing, &metrics.certificate].map(gauge), [Some(0), None, None]);

        let mut told = view("d", "READY");
        let daemon = &mut Arc::make_mut(&mut told.node).status.as_mut().unwrap().daemon;
        daemon.recovery_action = Some("GPU 1: recover the IMEX domain".into());
        daemon.certificate_not_after = Some("2026-01-01T00:00:00Z".into());
        let links = |state: &str| {
            let missing = json!([{"index": 3, "state": "DISCONNECTED"}]);
            serde_json::from_value(json!({"state": state, "connected": [0], "missing": missing})).unwrap()
        };
        daemon.links = Some(links("Known"));
        metrics.show(&told);
        assert_eq!(metrics.state.get(&state("READY")).map(|gauge| gauge.get()), Some(1));
        assert!(metrics.state.get(&state("WAITING_FOR_RECOVERY")).is_none());
        let all = [&metrics.recovery, &metrics.missing, &metrics.certificate].map(gauge);
        assert_eq!(all, [Some(1), Some(1), Some(1_767_225_600)]);
        Arc::make_mut(&mut told.node).status.as_mut().unwrap().daemon.links = Some(links("Unknown"));
        metrics.show(&told);
        assert_eq!(gauge(&metrics.missing), None);
    }

    #[test]
    fn what_is_not_known_is_not_told() {
        let metrics = NodeMetrics::default();
        metrics.show(&view("d", "READY"));
        metrics.show(&DomainView { domain: None, ..view("d", "READY") });
        assert_eq!(told(&metrics), [Some(1), None, None]);
        let mut without = view("d", "READY");
        Arc::make_mut(&mut without.node).spec.domain = None;
        metrics.show(&without);
        assert_eq!(told(&metrics), [None; 3]);
    }
}
