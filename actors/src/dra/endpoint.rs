//! The two sockets of one driver, and the gRPC servers behind them.

use std::path::{Path, PathBuf};

use heddle_core::fault::{Fault, reason};
use heddle_proto::dra::{v1, v1beta1};
use heddle_proto::health;
use heddle_proto::registration::registration_server::RegistrationServer;
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::Server;
use tonic::transport::server::Router;

use super::context::Driver;
use super::health::HealthService;
use super::metrics::ClaimMetrics;
use super::registration::RegistrationService;
use super::server::DraServer;
use super::service::Plugin;
use super::settings::DraSettings;
use super::sockets::{self, Place};
use super::{HealthBoard, front};
use crate::runtime::{Cx, Task};

/// One driver as the kubelet sees it.
pub(crate) struct Endpoint {
    driver: Driver,
    node: String,
    service: PathBuf,
    registration: PathBuf,
    health: HealthBoard,
    metrics: ClaimMetrics,
    listening: Vec<Listening>,
}

struct Listening {
    place: Place,
    server: Task,
}

impl Endpoint {
    pub(crate) fn new(settings: &DraSettings, driver: Driver, health: HealthBoard) -> Self {
        let (service, registration) = settings.sockets(driver);
        let (node, metrics) = (settings.node_name.clone(), settings.metrics.clone());
        Self { driver, node, service, registration, health, metrics, listening: Vec::new() }
    }

    pub(crate) fn driver(&self) -> Driver {
        self.driver
    }

    /// Removes what dead agents left in the driver's folders.
    pub(crate) fn remove_dead(&self) {
        let folder = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
        sockets::remove_dead(&folder(&self.service), sockets::is_service_name);
        let name = self.driver.name();
        sockets::remove_dead(&folder(&self.registration), |file| sockets::is_registration_name(file, name));
    }

    /// Whether both sockets are where they were put.
    pub(crate) fn stands(&self) -> bool {
        self.listening.len() == 2 && self.listening.iter().all(|listening| listening.place.stands())
    }

    /// Listens, anew if need be. The kubelet may call as soon as it has found the registration socket, so that one
    /// comes second.
    pub(crate) fn open(&mut self, cx: &mut Cx<'_, DraServer>) -> Result<(), Fault> {
        // One that stands is left alone: putting it there anew would be a change in a folder that is watched, and so a
        // reason to look again at once, without end while the other one cannot be made.
        let stands = self.listening.first().is_some_and(|service| service.place.stands());
        self.close_from(usize::from(stands));
        if !stands {
            let (listener, place) = listen(&self.service, true)?;
            let server = cx.spawn("service", serve(self.service_router(cx), private(listener), "service"));
            self.listening.push(Listening { place, server });
        }

        let (listener, place) = listen(&self.registration, false)?;
        let registration =
            RegistrationService { driver: self.driver, endpoint: self.service.clone(), server: cx.address() };
        let router = Server::builder().add_service(RegistrationServer::new(registration));
        let server = cx.spawn("registration", serve(router, front::incoming(listener), "registration"));
        self.listening.push(Listening { place, server });
        Ok(())
    }

    fn service_router(&self, cx: &Cx<'_, DraServer>) -> Router {
        let plugin = Plugin { driver: self.driver, server: cx.address(), metrics: self.metrics.clone() };
        let health = HealthService { board: self.health.clone(), driver: self.driver, pool: self.node.clone() };
        Server::builder()
            .add_service(v1::dra_plugin_server::DraPluginServer::new(plugin.clone()))
            .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(plugin))
            .add_service(health::v1::dra_resource_health_server::DraResourceHealthServer::new(health.clone()))
            .add_service(health::v1alpha1::dra_resource_health_server::DraResourceHealthServer::new(health))
    }

    /// Stops listening and removes the sockets, the registration first.
    pub(crate) fn close(&mut self) {
        self.close_from(0);
    }

    fn close_from(&mut self, first: usize) {
        for listening in self.listening.drain(first..).rev() {
            listening.place.remove();
            listening.server.cancel();
        }
    }
}

fn listen(path: &Path, make_folder: bool) -> Result<(UnixListener, Place), Fault> {
    sockets::listen(path, make_folder).map_err(|error| {
        Fault::retryable(
            reason::NODE_IO,
            format!("cannot listen on {}: {error}; is the kubelet's folder right?", path.display()),
        )
    })
}

/// Connections of root and of our own user; the socket's permissions say the same, unless somebody has changed them.
fn private(listener: UnixListener) -> impl futures::Stream<Item = std::io::Result<UnixStream>> + Send + 'static {
    let own = rustix::process::geteuid().as_raw();
    futures::stream::unfold(listener, move |listener| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own) => {
                    return Some((Ok(stream), listener));
                }
                Ok(_) => tracing::warn!("a connection to a service socket comes from another user and is closed"),
                Err(error) => {
                    // Out of file descriptors, mostly: that passes, and an error would only end the server.
                    tracing::warn!("service socket: cannot accept: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    })
}

/// Serves until cancelled. A server that ends by itself leaves a process that looks well and hears nothing: it must not
/// go on.
async fn serve<I, S>(router: Router, incoming: I, what: &'static str) -> Result<(), Fault>
where
    I: futures::Stream<Item = std::io::Result<S>>,
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + tonic::transport::server::Connected + Unpin + Send + 'static,
    S::ConnectInfo: Clone + Send + Sync + 'static,
{
    let ended = router.serve_with_incoming(incoming).await;
    let why = ended.map_or_else(|error| error.to_string(), |()| "it ended".to_owned());
    Err(Fault::fatal(reason::NODE_IO, format!("the gRPC server of a {what} socket failed: {why}")))
}

#[cfg(test)]
mod tests {
    use heddle_core::fault::Class;

    use super::*;

    #[tokio::test]
    async fn case_9_a_server_that_ends_ends_the_process() {
        let board = HealthBoard::default();
        let health = HealthService { board, driver: Driver::Gpu, pool: "n1".into() };
        let router =
            Server::builder().add_service(health::v1::dra_resource_health_server::DraResourceHealthServer::new(health));
        let fault =
            serve(router, futures::stream::empty::<std::io::Result<UnixStream>>(), "service").await.unwrap_err();
        assert_eq!(fault.class, Class::Fatal);
        assert!(fault.message.contains("gRPC server of a service socket"), "{fault}");
    }
}
