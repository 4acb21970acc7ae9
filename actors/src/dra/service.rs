//! The kubelet's calls: `dra/v1` and `dra/v1beta1`, by one implementation.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use heddle_core::claim::ClaimKey;
use heddle_core::claim::checkpoint::PreparedDevice;
use heddle_core::fault::{Fault, plain, reason};
use heddle_proto::dra;
use tonic::{Request, Response, Status};

use super::context::Driver;
use super::message::Message;
use super::metrics::ClaimMetrics;
use crate::runtime::{Addr, AskError};

/// The kubelet gives a call 45 s, and tells nobody more than that they are over. We say before what was missing.
const DEADLINE: Duration = Duration::from_secs(40);
/// Finding out what was missing must fit in between.
const ASKING: Duration = Duration::from_secs(2);
/// Longest error text: it becomes part of an Event.
const ERROR: usize = 800;

/// Answers on a service socket.
#[derive(Clone, Debug)]
pub(crate) struct Plugin {
    pub(crate) driver: Driver,
    pub(crate) server: Addr<Message>,
    pub(crate) metrics: ClaimMetrics,
}

impl Plugin {
    /// An answer for each claim, in parallel and in time: one that is missing fails the whole call.
    async fn prepare_all(&self, claims: Vec<ClaimKey>) -> BTreeMap<String, Result<Vec<PreparedDevice>, String>> {
        let together = claims.len() > 1;
        let each = claims.into_iter().map(|claim| async move {
            let uid = claim.uid.clone();
            let answer = self.timed("prepare", self.prepare(claim, together)).await;
            (uid, answer.map_err(|fault| text(&fault)))
        });
        futures::future::join_all(each).await.into_iter().collect()
    }

    async fn unprepare_all(&self, claims: Vec<ClaimKey>) -> BTreeMap<String, Result<(), String>> {
        let each = claims.into_iter().map(|claim| async move {
            let uid = claim.uid.clone();
            (uid, self.timed("unprepare", self.unprepare(claim)).await.map_err(|fault| text(&fault)))
        });
        futures::future::join_all(each).await.into_iter().collect()
    }

    async fn timed<T>(&self, call: &'static str, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let began = Instant::now();
        let answer = answer.await;
        self.metrics.answered(self.driver, call, answer.is_ok(), began.elapsed());
        answer
    }

    async fn prepare(&self, claim: ClaimKey, together: bool) -> Result<Vec<PreparedDevice>, Fault> {
        let (driver, key) = (self.driver, claim.clone());
        let asked = self.server.ask(|reply| Message::Prepare { driver, claim, together, reply });
        match tokio::time::timeout(DEADLINE, asked).await {
            Ok(answer) => answer?,
            Err(_) => Err(self.too_late("prepared", &key).await),
        }
    }

    async fn unprepare(&self, claim: ClaimKey) -> Result<(), Fault> {
        let (driver, key) = (self.driver, claim.clone());
        let asked = self.server.ask(|reply| Message::Unprepare { driver, claim, reply });
        match tokio::time::timeout(DEADLINE, asked).await {
            Ok(answer) => answer?,
            Err(_) => Err(self.too_late("unprepared", &key).await),
        }
    }

    /// The work goes on: when the kubelet comes again it is answered at once, or waits for the same effect.
    async fn too_late(&self, verb: &str, claim: &ClaimKey) -> Fault {
        let (driver, uid) = (self.driver, claim.uid.clone());
        let asked = self.server.ask(|reply| Message::Missing { driver, uid, reply });
        let missing = match tokio::time::timeout(ASKING, asked).await {
            Ok(Ok(fault)) => fault.message,
            // It has ended in this very moment.
            Ok(Err(AskError::Dropped(_))) => "it was about to be".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the agent is too busy to say why".to_owned(),
        };
        let seconds = DEADLINE.as_secs();
        Fault::retryable(reason::DEADLINE, format!("not {verb} after {seconds} s: {missing}"))
    }
}

fn text(fault: &Fault) -> String {
    plain(&fault.message).take(ERROR).collect()
}

macro_rules! serve_dra {
    ($version:ident, $device:expr) => {
        #[tonic::async_trait]
        impl dra::$version::dra_plugin_server::DraPlugin for Plugin {
            async fn node_prepare_resources(
                &self,
                request: Request<dra::$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<dra::$version::NodePrepareResourcesResponse>, Status> {
                use dra::$version as api;
                let claims = request.into_inner().claims.into_iter();
                let keys = claims.map(|c| ClaimKey { namespace: c.namespace, name: c.name, uid: c.uid }).collect();
                let answers = self.prepare_all(keys).await.into_iter().map(|(uid, answer)| {
                    let answer = match answer {
                        Ok(devices) => api::NodePrepareResourceResponse {
                            devices: devices.into_iter().map($device).collect(),
                            error: String::new(),
                        },
                        Err(error) => api::NodePrepareResourceResponse { devices: Vec::new(), error },
                    };
                    (uid, answer)
                });
                Ok(Response::new(api::NodePrepareResourcesResponse { claims: answers.collect() }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<dra::$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<dra::$version::NodeUnprepareResourcesResponse>, Status> {
                use dra::$version as api;
                let claims = request.into_inner().claims.into_iter();
                let keys = claims.map(|c| ClaimKey { namespace: c.namespace, name: c.name, uid: c.uid }).collect();
                let answers = self.unprepare_all(keys).await.into_iter().map(|(uid, answer)| {
                    (uid, api::NodeUnprepareResourceResponse { error: answer.err().unwrap_or_default() })
                });
                Ok(Response::new(api::NodeUnprepareResourcesResponse { claims: answers.collect() }))
            }
        }
    };
}

serve_dra!(v1, |device: PreparedDevice| dra::v1::Device {
    request_names: device.request_names,
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi_ids,
    share_id: device.share_id,
});
serve_dra!(v1beta1, |device: PreparedDevice| dra::v1beta1::Device {
    request_names: device.request_names,
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi_ids,
});
