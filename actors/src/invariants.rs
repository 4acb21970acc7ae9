//! Watches over the invariants on a node, and counts what is as it must never be.

use std::time::Duration;

use heddle_core::claim::Prepared;
use heddle_core::fault::Fault;
use heddle_core::invariants::{DaemonWatch, Lasting, RunningDaemon, of_node};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use crate::imex_supervisor::Running;
use crate::node_link::DomainView;
use crate::runtime::{self, Actor, Cx, Overflow};

/// Copies of objects may be behind each other for so long, and claims behind both.
const SETTLE: Duration = Duration::from_secs(10);

/// Violations by invariant.
#[derive(Clone, Debug, Default)]
pub struct InvariantMetrics(Family<InvariantLabels, Counter>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InvariantLabels {
    invariant: &'static str,
}

impl InvariantMetrics {
    /// Adds them to a registry, a zero for each before its first violation.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "invariant_violations",
            "Violations of the invariants S1 to S4 found in the API's objects, and on a node in its claims and its daemon's life; \
             any is a fault of ours, a restored backup, or an imex-runner that somebody ended under claims",
            metrics.0.clone(),
        );
        for invariant in ["S1", "S2", "S3", "S4"] {
            drop(metrics.0.get_or_create(&InvariantLabels { invariant }));
        }
        metrics
    }

    /// Counts a violation.
    pub fn violated(&self, invariant: &'static str) {
        self.0.get_or_create(&InvariantLabels { invariant }).inc();
    }
}

/// What an [`InvariantWatch`] is told.
#[derive(Debug)]
pub enum Message {
    /// From the node link.
    View(DomainView),
    /// From the allocator: the claims that hold a channel.
    Prepared(Vec<Prepared>),
    /// From the supervisor of the daemon.
    Running(Running),
    /// What was there may have lasted by now.
    Again,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::View(_) => "View",
            Self::Prepared(_) => "Prepared",
            Self::Running(_) => "Running",
            Self::Again => "Again",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            // Each end of a daemon counts.
            Self::Running(_) => Overflow::Reject,
            _ => Overflow::Replace,
        }
    }
}

/// Owns what is known of this node for that.
pub struct InvariantWatch {
    metrics: InvariantMetrics,
    began: Instant,
    view: Option<DomainView>,
    /// None before the checkpoints are known.
    prepared: Option<Vec<Prepared>>,
    daemon: DaemonWatch,
    serves: Option<String>,
    lasting: Lasting,
    looks_again: bool,
}

impl InvariantWatch {
    /// Nothing is known yet.
    pub fn new(metrics: InvariantMetrics) -> Self {
        Self {
            metrics,
            began: Instant::now(),
            view: None,
            prepared: None,
            daemon: DaemonWatch::default(),
            serves: None,
            lasting: Lasting::default(),
            looks_again: false,
        }
    }

    fn look(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(view), Some(prepared)) = (&self.view, &self.prepared) else { return };
        let daemon =
            RunningDaemon { domain: self.serves.clone(), stopped_under_claims: self.daemon.stopped_under_claims() };
        let report = of_node(&view.node, view.domain.as_deref(), prepared, Some(&daemon));
        for violation in self.lasting.see(&report, self.began.elapsed(), SETTLE) {
            self.metrics.violated(violation.invariant);
            tracing::error!(invariant = violation.invariant, "{}", violation.what);
        }
        if self.lasting.waits() && !self.looks_again {
            self.looks_again = true;
            cx.after(SETTLE, Message::Again);
        }
    }
}

impl Actor for InvariantWatch {
    const KIND: &'static str = "InvariantWatch";
    type Message = Message;

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::View(view) => self.view = Some(view),
            Message::Prepared(prepared) => self.prepared = Some(prepared),
            Message::Running(running) => {
                self.daemon.see(running.life, self.prepared.as_deref().unwrap_or_default());
                self.serves = running.domain;
            }
            Message::Again => self.looks_again = false,
        }
        self.look(cx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use heddle_core::api::IMEXNode;
    use heddle_core::invariants::Life;
    use serde_json::json;

    use super::*;
    use crate::runtime::{Runtime, Spec, block_on};

    fn view() -> DomainView {
        let node: IMEXNode = serde_json::from_value(json!({
            "metadata": {"name": "n1"}, "spec": {"domain": "d"},
            "status": {"channels": {"green": {"channel": 1, "domain": "d", "since": ""}}},
        }))
        .unwrap();
        let domain = json!({"metadata": {"name": "d"}, "spec": {"clique": "c.1"}, "status": {"epoch": 1, "channels": {
            "green": {"channel": 1, "state": "Active", "epoch": 1, "computeDomain": "team/green"}}}});
        DomainView { node: Arc::new(node), domain: Some(Arc::new(serde_json::from_value(domain).unwrap())) }
    }

    fn running(domain: &str, pid: u32, ended: u32) -> Message {
        Message::Running(Running { life: Life { runner: 1, pid, ended }, domain: Some(domain.into()) })
    }

    #[test]
    fn what_lasts_on_a_node_is_counted_once_and_what_passes_is_not() {
        block_on(async {
            tokio::time::pause();
            let runtime = Runtime::new();
            let metrics = runtime.metrics().register(InvariantMetrics::register);
            let counted = metrics.clone();
            let counts = || {
                ["S1", "S2", "S3", "S4"].map(|invariant| counted.0.get_or_create(&InvariantLabels { invariant }).get())
            };
            let watch = runtime.root().supervise(Spec::default(), move || Ok(InvariantWatch::new(metrics.clone())));
            let claim = Prepared { claim_uid: "c".into(), cd_uid: "green".into(), channel: 1, domain: "d".into() };
            watch.tell(Message::View(view()));
            watch.tell(Message::Prepared(vec![claim]));
            watch.tell(running("d", 7, 0));
            // A daemon that has crashed, and for a moment one that seems to serve another domain.
            watch.tell(running("e", 8, 0));
            tokio::time::sleep(SETTLE / 2).await;
            watch.tell(running("d", 8, 0));
            tokio::time::sleep(SETTLE * 3).await;
            assert_eq!(counts(), [0; 4]);

            // It was ended and started for another domain, under a claim.
            watch.tell(running("e", 9, 1));
            tokio::time::sleep(SETTLE * 3).await;
            assert_eq!(counts(), [0, 1, 0, 1]);
        });
    }
}
