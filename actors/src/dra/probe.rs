//! gRPC health for the kubelet's probes: each check calls our own sockets, as the kubelet does.
//!
//! A process may live and look well while a socket of it was removed, or is not answered any more. Only a call tells.

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use heddle_proto::dra::v1::NodePrepareResourcesRequest;
use heddle_proto::dra::v1::dra_plugin_client::DraPluginClient;
use heddle_proto::registration::InfoRequest;
use heddle_proto::registration::registration_client::RegistrationClient;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::context::Driver;
use super::settings::DraSettings;
use crate::cause::innermost;
use crate::runtime::{self, Actor, Cx};

/// Both calls to a driver take no longer, or it does not serve. The kubelet's own patience with a probe is one second,
/// and with `GetInfo` too.
const LIMIT: Duration = Duration::from_millis(900);
/// Services that may be asked for: the whole, and the name that the reference plugin has for it.
const SERVICES: [&str; 2] = ["", "liveness"];

/// Serves `grpc.health.v1` on a TCP address: Kubernetes probes know no Unix sockets.
pub struct HealthProbe {
    listener: TcpListener,
    sockets: Vec<Sockets>,
}

/// Where the kubelet reaches one driver.
#[derive(Clone, Debug)]
struct Sockets {
    driver: Driver,
    service: PathBuf,
    registration: PathBuf,
}

impl HealthProbe {
    /// For the drivers of `settings`, on a listener that does not block.
    pub fn new(listener: TcpListener, settings: &DraSettings) -> Self {
        let sockets = settings.drivers().into_iter().map(|driver| {
            let (service, registration) = settings.sockets(driver);
            Sockets { driver, service, registration }
        });
        Self { listener, sockets: sockets.collect() }
    }
}

/// A [`HealthProbe`] is told nothing.
pub enum Nothing {}

impl runtime::Message for Nothing {
    fn kind(&self) -> &'static str {
        match *self {}
    }
}

impl Actor for HealthProbe {
    const KIND: &'static str = "HealthProbe";
    type Message = Nothing;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let fault = |error: &dyn std::fmt::Display| {
            Fault::retryable(reason::ACTOR_FAILED, format!("the health probe's server ended: {error}"))
        };
        let listener = self.listener.try_clone().and_then(tokio::net::TcpListener::from_std);
        let incoming = TcpListenerStream::new(listener.map_err(|error| fault(&error))?);
        let router = Server::builder().add_service(HealthServer::new(Check { sockets: self.sockets.clone() }));
        cx.spawn("serve", async move {
            let ended = router.serve_with_incoming(incoming).await;
            Err(ended.map_or_else(|error| fault(&error), |()| fault(&"nothing more to accept")))
        });
        Ok(())
    }

    fn handle(&mut self, message: Nothing, _cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {}
    }
}

#[derive(Clone, Debug)]
struct Check {
    sockets: Vec<Sockets>,
}

impl Check {
    /// Why the kubelet would not be served.
    async fn broken(&self) -> Option<String> {
        let each = self.sockets.iter().map(async |sockets| {
            let called = tokio::time::timeout(LIMIT, sockets.call()).await;
            let why = called.unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}"))).err()?;
            Some(format!("driver {}: {why}", sockets.driver.name()))
        });
        futures::future::join_all(each).await.into_iter().flatten().next()
    }
}

impl Sockets {
    async fn call(&self) -> Result<(), String> {
        let failed = |path: &PathBuf, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let registration = connect(&self.registration).await?;
        let info = RegistrationClient::new(registration).get_info(InfoRequest {}).await;
        let info = info.map_err(|status| failed(&self.registration, &status.message()))?.into_inner();
        if info.name != self.driver.name() || self.service.to_str() != Some(info.endpoint.as_str()) {
            return Err(failed(&self.registration, &format_args!("it is of {} at {}", info.name, info.endpoint)));
        }
        let nothing = NodePrepareResourcesRequest { claims: Vec::new() };
        let prepared = DraPluginClient::new(connect(&self.service).await?).node_prepare_resources(nothing).await;
        prepared.map(drop).map_err(|status| failed(&self.service, &status.message()))
    }
}

async fn connect(path: &std::path::Path) -> Result<Channel, String> {
    let failed = |error: &dyn std::error::Error| format!("{}: {}", path.display(), innermost(error));
    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).map_err(|error| failed(&error))?;
    endpoint.connect().await.map_err(|error| failed(&error))
}

#[tonic::async_trait]
impl Health for Check {
    type WatchStream = futures::stream::Empty<Result<HealthCheckResponse, Status>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        if !SERVICES.contains(&request.get_ref().service.as_str()) {
            return Err(Status::not_found("there is no such service; leave its name empty"));
        }
        let broken = self.broken().await;
        if let Some(why) = &broken {
            tracing::warn!("the kubelet cannot be served: {why}");
        }
        let status = broken.map_or(ServingStatus::Serving, |_| ServingStatus::NotServing);
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    async fn watch(&self, _request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("probes ask, they do not watch"))
    }
}
