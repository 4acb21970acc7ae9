//! The controller: what belongs to no node alone.

mod bucket;
mod crds;
mod domain_controller;
mod effects;
mod held;
mod metrics;
pub mod peer_signer;
mod retries;
mod watches;

use std::future::Future;
use std::net::SocketAddr;

use heddle_core::controller::DriverMatch;
use heddle_core::fault::{Fault, reason};
use heddle_core::identity::Agents;
use heddle_core::lease::Terms;
use kube::Client;

use crate::api_requests::ApiRequests;
use crate::lease::{self, Leadership, LeaseMetrics};
use crate::policies::{PolicyMetrics, PolicyWatch};
use crate::runtime::{Runtime, Spec};
use domain_controller::{DomainController, Rules};
use metrics::ControllerMetrics;
use peer_signer::{PeerMetrics, PeerSigner};
pub(crate) use watches::compute_domain_resource;

/// What a controller is started with.
#[derive(Clone)]
pub struct Settings {
    /// The API.
    pub client: Client,
    /// Where its requests are counted.
    pub requests: ApiRequests,
    /// Where metrics and probes are served.
    pub metrics: Option<SocketAddr>,
    /// Which drivers may meet in an IMEX domain.
    pub driver_match: DriverMatch,
    /// Who signs the certificates of peers: us, by these settings, or somebody else.
    pub signer: Option<Signer>,
    /// The Lease by which one of several controllers leads. None: there is no other.
    pub election: Option<Election>,
}

/// How controllers stand for election.
#[derive(Clone, Debug)]
pub struct Election {
    /// Heddle's own namespace: the Lease is there.
    pub namespace: String,
    /// This process, other than every other one and than itself before a restart.
    pub identity: String,
    /// How the lease is held.
    pub terms: Terms,
}

/// Name of the Lease.
const LEASE: &str = "heddle-controller";

/// How the certificates of peers are signed.
#[derive(Clone, Debug)]
pub struct Signer {
    /// Heddle's own namespace: the authorities' Secrets are there.
    pub namespace: String,
    /// Who may ask.
    pub agents: Agents,
    /// Longest life of a certificate, in seconds.
    pub longest: u32,
}

/// Runs the controller until `until` ends.
///
/// # Errors
/// When the metrics' address cannot be taken, or an actor has failed too often.
pub async fn run(settings: Settings, until: impl Future<Output = ()>) -> Result<(), Fault> {
    let runtime = Runtime::new();
    if let Some(address) = settings.metrics {
        runtime.serve(address).await.map_err(|error| {
            Fault::fatal(reason::SETTINGS, format!("metrics cannot be served at {address}: {error}; choose another"))
        })?;
    }
    runtime.metrics().register(|registry| settings.requests.register(registry));
    let metrics = runtime.metrics().register(ControllerMetrics::register);
    let leadership = if settings.election.is_some() { Leadership::contended() } else { Leadership::sole() };
    let election = settings.election.clone().map(|election| {
        lease::Election::new(lease::Settings {
            client: settings.client.clone(),
            namespace: election.namespace,
            name: LEASE.into(),
            identity: election.identity,
            terms: election.terms,
            leadership: leadership.clone(),
            metrics: runtime.metrics().register(LeaseMetrics::register),
        })
    });
    if let Some(election) = election.clone() {
        // The first to be started is the last to be finished.
        runtime.root().supervise(Spec::default(), move || Ok(election.clone()));
    }
    // Nothing below this line can write past it.
    let client = leadership.guard(settings.client.clone());
    if let Some(signer) = settings.signer.clone() {
        let signer = peer_signer::Settings {
            client: client.clone(),
            leadership: leadership.clone(),
            namespace: signer.namespace,
            agents: signer.agents,
            longest: signer.longest,
            metrics: runtime.metrics().register(PeerMetrics::register),
        };
        runtime.root().supervise(Spec::default(), move || Ok(PeerSigner::new(signer.clone())));
    }
    let rules = Rules { peer_certificates: settings.signer.is_some(), driver_match: settings.driver_match };
    let (reader, policies) = (settings.client.clone(), runtime.metrics().register(PolicyMetrics::register));
    runtime.root().supervise(Spec::default(), move || Ok(PolicyWatch::new(reader.clone(), policies.clone())));
    let spec = Spec { gates_readiness: true, ..Spec::default() };
    runtime
        .root()
        .supervise(spec, move || Ok(DomainController::new(client.clone(), leadership.clone(), metrics.clone(), rules)));
    let ended = runtime.run(until).await;
    if let Some(election) = election {
        election.release().await;
    }
    ended
}
