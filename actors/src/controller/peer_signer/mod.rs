//! The PeerSigner answers the agents' requests for the certificates by which the daemons of an IMEX domain know each
//! other. It decides each request on what the API says of the node and the domain at that moment.

mod authority;
mod metrics;
mod sign;
mod watch;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use heddle_core::identity::{Agents, Rates, Request, fits};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::Client;
use tokio::time::Instant;

pub use metrics::PeerMetrics;
use sign::{Ended, Signing};
use watch::Pending;

use crate::lease::Leadership;
use crate::runtime::{self, Actor, Cx, Overflow};

/// Requests that are being answered at a time.
const CONCURRENT: usize = 8;
/// Pauses before one that could not be answered is tried again.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// What a [`PeerSigner`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// The API.
    pub client: Client,
    /// Whether it is up to this process to answer.
    pub leadership: Leadership,
    /// Where the authorities are kept: Heddle's own namespace.
    pub namespace: String,
    /// Who may ask.
    pub agents: Agents,
    /// Longest life of a certificate, in seconds.
    pub longest: u32,
    /// Shows what it does.
    pub metrics: PeerMetrics,
}

/// What it is told.
#[derive(Debug)]
pub enum Message {
    /// There may be other requests than before.
    Changed,
    /// One was answered, or could not be.
    Ended {
        /// Its name.
        name: String,
        /// How.
        how: Ended,
    },
    /// The pause of one is over.
    Again(String),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Changed => "Changed",
            Self::Ended { .. } => "Ended",
            Self::Again(_) => "Again",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::Changed => Overflow::Replace,
            Self::Ended { .. } | Self::Again(_) => Overflow::Reject,
        }
    }
}

/// Owns the requests that wait for an answer.
pub struct PeerSigner {
    settings: Settings,
    pending: Pending,
    /// Those that are being answered, or wait for their next try.
    busy: BTreeSet<String>,
    /// How often one could not be answered.
    failures: BTreeMap<String, u32>,
    rates: Rates,
    began: Instant,
}

impl PeerSigner {
    /// One that knows no request yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            pending: Rc::new(RefCell::new(BTreeMap::new())),
            busy: BTreeSet::new(),
            failures: BTreeMap::new(),
            rates: Rates::default(),
            began: Instant::now(),
        }
    }

    /// Begins to answer as many as may be answered at a time.
    fn step(&mut self, cx: &mut Cx<'_, Self>) {
        if !self.settings.leadership.leads() {
            return;
        }
        let waiting: Vec<CertificateSigningRequest> = {
            let pending = self.pending.borrow();
            self.failures.retain(|name, _| pending.contains_key(name));
            let idle = pending.iter().filter(|(name, _)| !self.busy.contains(*name));
            let running = self.busy.len().saturating_sub(self.failures.len());
            idle.take(CONCURRENT.saturating_sub(running)).map(|(_, request)| request.clone()).collect()
        };
        for csr in waiting {
            self.answer(csr, cx);
        }
    }

    fn answer(&mut self, csr: CertificateSigningRequest, cx: &mut Cx<'_, Self>) {
        let (request, pem) = sign::facts(&csr);
        let decision = fits(&request, &self.settings.agents, self.settings.longest)
            .and_then(|verdict| self.has_turn(&request, &verdict.node).map(|()| verdict));
        let name = request.name;
        self.busy.insert(name.clone());
        let signing = Signing { client: self.settings.client.clone(), namespace: self.settings.namespace.clone() };
        let answered = async move { signing.answer(csr, &pem, decision).await };
        cx.spawn_then("answer", answered, move |how| Message::Ended { name, how });
    }

    /// A request that is tried again has had its turn.
    fn has_turn(&mut self, request: &Request, node: &str) -> Result<(), Fault> {
        if self.failures.contains_key(&request.name) {
            return Ok(());
        }
        self.rates.take(node, self.began.elapsed()).map_err(|left| {
            let left = left.as_secs() + 1;
            let text =
                format!("node {node} has asked for too many certificates; the next may be asked for in {left} s");
            Fault::permanent(reason::TOO_MANY_REQUESTS, text)
        })
    }

    fn ended(&mut self, name: String, how: Ended, cx: &mut Cx<'_, Self>) {
        match how {
            Ended::Signed { node, domain } => {
                tracing::info!(request = name, node, domain, "a peer certificate was signed");
                self.settings.metrics.signed();
                self.forget(&name);
            }
            Ended::Denied(fault) => {
                tracing::warn!(request = name, reason = fault.reason, "a peer certificate was denied: {fault}");
                self.settings.metrics.denied(fault.reason);
                self.forget(&name);
            }
            Ended::Failed(fault) => {
                let failures = self.failures.entry(name.clone()).or_default();
                let pause = RETRY_MIN.saturating_mul(1 << (*failures).min(8)).min(RETRY_MAX);
                *failures += 1;
                tracing::warn!(request = name, "a request for a peer certificate is answered later: {fault}");
                cx.after(pause.mul_f64(0.5 + fastrand::f64() / 2.0), Message::Again(name));
            }
        }
    }

    fn forget(&mut self, name: &str) {
        self.busy.remove(name);
        self.failures.remove(name);
        // The watch will say so too, but may be late.
        self.pending.borrow_mut().remove(name);
    }
}

impl Actor for PeerSigner {
    const KIND: &'static str = "PeerSigner";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let follow = watch::follow(self.settings.client.clone(), self.pending.clone(), cx.address());
        cx.spawn("watch-requests", follow);
        let (mut changes, address) = (self.settings.leadership.changes(), cx.address());
        cx.spawn("leadership", async move {
            while changes.changed().await.is_ok() {
                address.tell(Message::Changed);
            }
            Ok(())
        });
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Changed => {}
            Message::Ended { name, how } => self.ended(name, how, cx),
            Message::Again(name) => {
                self.busy.remove(&name);
            }
        }
        self.step(cx);
        Ok(())
    }
}
