//! The controller: what belongs to no node alone.

mod bucket;
mod domain_controller;
mod effects;
mod metrics;
mod retries;
mod watches;

use std::future::Future;
use std::net::SocketAddr;

use heddle_core::fault::{Fault, reason};
use kube::Client;

use crate::api_requests::ApiRequests;
use crate::runtime::{Runtime, Spec};
use domain_controller::DomainController;
use metrics::ControllerMetrics;

/// What a controller is started with.
#[derive(Clone)]
pub struct Settings {
    /// The API.
    pub client: Client,
    /// Where its requests are counted.
    pub requests: ApiRequests,
    /// Where metrics and probes are served.
    pub metrics: Option<SocketAddr>,
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
    let spec = Spec { gates_readiness: true, ..Spec::default() };
    runtime.root().supervise(spec, move || Ok(DomainController::new(settings.client.clone(), metrics.clone())));
    runtime.run(until).await
}
