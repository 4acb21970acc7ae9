//! One registered instance of a driver's plugin, and the calls that the kubelet makes to it.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use heddle_core::names;
use heddle_proto::{dra::v1 as dra, health::v1 as health};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::{sync::oneshot, time};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::link::Link;

/// Services that the kubelet can use for Prepare and Unprepare.
const DRA: &[&str] = &["v1.DRAPlugin", "v1beta1.DRAPlugin"];
/// Services that it can use for health, newest first.
const HEALTH: &[&str] = &["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"];

/// The services that the kubelet chose from a plugin's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Services {
    dra: &'static str,
    health: Option<&'static str>,
}

impl Services {
    /// Prepare and Unprepare: the first entry of the plugin's list that the kubelet knows. Health: the newest that
    /// both know.
    pub fn choose(offered: &[String]) -> Result<Self, String> {
        if offered.is_empty() {
            return Err("empty list of supported gRPC services (aka supported versions)".into());
        }
        let dra = offered.iter().find_map(|service| DRA.iter().find(|known| *known == service));
        let health = HEALTH.iter().find(|known| offered.iter().any(|service| service == *known));
        match dra {
            Some(dra) => Ok(Self { dra, health: health.copied() }),
            None => Err(format!(
                "none of services supported by the plugin ({offered:?}) are supported by the kubelet ({DRA:?})"
            )),
        }
    }
}

/// One registered instance of a driver's plugin.
#[derive(Clone)]
pub struct Plugin {
    /// The driver's name.
    pub driver: String,
    /// Its socket.
    pub endpoint: PathBuf,
    pub(super) services: Services,
    pub(super) link: Link,
}

/// A plugin and what ends its connection when dropped.
pub(super) struct Registered {
    pub(super) plugin: Plugin,
    pub(super) _close: oneshot::Sender<()>,
}

impl Plugin {
    /// A plugin that is called without having been registered. The connection ends with the runtime.
    pub fn connect(endpoint: PathBuf) -> Self {
        let retry = (Duration::from_millis(10), Duration::from_secs(1));
        let (link, keep) = Link::new(endpoint.clone(), retry, |_| {});
        tokio::spawn(keep);
        let services = Services { dra: DRA[0], health: Some(HEALTH[0]) };
        Self { driver: names::DRIVER.into(), endpoint, services, link }
    }

    /// `NodePrepareResources`.
    pub async fn prepare(
        &self,
        claims: Vec<dra::Claim>,
        limit: Duration,
    ) -> Result<BTreeMap<String, dra::NodePrepareResourceResponse>, Status> {
        let request = dra::NodePrepareResourcesRequest { claims };
        let answer: dra::NodePrepareResourcesResponse = self.unary("NodePrepareResources", request, limit).await?;
        Ok(answer.claims.into_iter().collect())
    }

    /// `NodeUnprepareResources`.
    pub async fn unprepare(
        &self,
        claims: Vec<dra::Claim>,
        limit: Duration,
    ) -> Result<BTreeMap<String, dra::NodeUnprepareResourceResponse>, Status> {
        let request = dra::NodeUnprepareResourcesRequest { claims };
        let answer: dra::NodeUnprepareResourcesResponse = self.unary("NodeUnprepareResources", request, limit).await?;
        Ok(answer.claims.into_iter().collect())
    }

    /// Messages of `v1` and `v1beta1` have the same fields with the same numbers, so those of `v1` serve for both;
    /// only the path differs.
    async fn unary<Q, R>(&self, method: &str, request: Q, limit: Duration) -> Result<R, Status>
    where
        Q: Message + Send + Sync + 'static,
        R: Message + Default + Send + 'static,
    {
        let call = async {
            let path = path(&format!("/k8s.io.kubelet.pkg.apis.dra.{}/{method}", self.services.dra))?;
            let mut client = self.link.client().await?;
            client.ready().await.map_err(|err| Status::unavailable(err.to_string()))?;
            let mut request = Request::new(request);
            request.set_timeout(limit);
            Ok(client.unary(request, path, ProstCodec::<Q, R>::default()).await?.into_inner())
        };
        let answer = time::timeout(limit, call).await;
        answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")))
    }

    /// `NodeWatchResources`, if the plugin offers it. Messages of both versions are the same.
    pub(super) async fn watch_health(&self) -> Option<Result<Streaming<health::NodeWatchResourcesResponse>, Status>> {
        let service = self.services.health?;
        let open = async {
            let path = path(&format!("/{service}/NodeWatchResources"))?;
            let mut client = self.link.client().await?;
            client.ready().await.map_err(|err| Status::unavailable(err.to_string()))?;
            let request = Request::new(health::NodeWatchResourcesRequest {});
            let codec = ProstCodec::<health::NodeWatchResourcesRequest, health::NodeWatchResourcesResponse>::default();
            Ok(client.server_streaming(request, path, codec).await?.into_inner())
        };
        Some(open.await)
    }
}

fn path(text: &str) -> Result<PathAndQuery, Status> {
    text.parse().map_err(|err| Status::internal(format!("{text}: {err}")))
}

/// A gRPC error in grpc-go's words, which the kubelet passes on to people.
pub fn go_words(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(offered: &[&str]) -> Result<Services, String> {
        Services::choose(&offered.iter().map(|service| (*service).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn the_plugins_order_decides_for_dra_and_the_newest_for_health() {
        let both = Services { dra: "v1.DRAPlugin", health: Some("v1.DRAResourceHealth") };
        assert_eq!(choose(heddle_proto::SUPPORTED_VERSIONS), Ok(both));
        let old = Services { dra: "v1beta1.DRAPlugin", health: Some("v1alpha1.DRAResourceHealth") };
        assert_eq!(choose(&["v1alpha1.DRAResourceHealth", "v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(old));
    }

    #[test]
    fn nothing_in_common_is_refused() {
        assert!(choose(&[]).is_err());
        assert!(choose(&["v1alpha3.Node"]).unwrap_err().contains("none of services"));
    }

    #[test]
    fn errors_read_like_grpc_go() {
        let status = Status::deadline_exceeded("context deadline exceeded");
        assert_eq!(go_words(&status), "rpc error: code = DeadlineExceeded desc = context deadline exceeded");
    }
}
