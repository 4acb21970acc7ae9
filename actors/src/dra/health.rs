//! The health of slots and GPUs, as the kubelet shows it in a pod's status.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::Stream;
use heddle_proto::health;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::context::Driver;

/// A device's health counts as unknown when it is older than this.
const STALE: Duration = Duration::from_secs(30);
/// So it is told anew well before.
const REPEAT: Duration = Duration::from_secs(10);

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its name in the node's pool.
    pub device: String,
    /// Whether it can be used.
    pub healthy: bool,
    /// Why not; may be empty.
    pub message: String,
}

impl DeviceHealth {
    /// A device that can be used, unless there is a reason why not.
    pub(crate) fn of(device: String, trouble: Option<String>) -> Self {
        Self { device, healthy: trouble.is_none(), message: trouble.unwrap_or_default() }
    }
}

/// The health of all devices of a node, written by the SlicePublisher and read by every stream of the kubelet.
#[derive(Clone, Debug)]
pub struct HealthBoard {
    slots: Arc<watch::Sender<Vec<DeviceHealth>>>,
    gpus: Arc<watch::Sender<Vec<DeviceHealth>>>,
}

impl Default for HealthBoard {
    fn default() -> Self {
        let board = || Arc::new(watch::Sender::new(Vec::new()));
        Self { slots: board(), gpus: board() }
    }
}

impl HealthBoard {
    /// Shows the health of a driver's devices.
    pub fn show(&self, driver: Driver, devices: Vec<DeviceHealth>) {
        self.of(driver).send_if_modified(|shown| {
            let changed = *shown != devices;
            *shown = devices;
            changed
        });
    }

    /// What is shown.
    pub fn shown(&self, driver: Driver) -> Vec<DeviceHealth> {
        self.of(driver).borrow().clone()
    }

    fn of(&self, driver: Driver) -> &watch::Sender<Vec<DeviceHealth>> {
        match driver {
            Driver::ComputeDomain => &self.slots,
            Driver::Gpu => &self.gpus,
        }
    }

    /// The health now, after each change, and again before it is stale.
    fn follow(&self, driver: Driver) -> impl Stream<Item = Vec<DeviceHealth>> + Send + use<> {
        let receiver = self.of(driver).subscribe();
        futures::stream::unfold((receiver, true), async |(mut receiver, first)| {
            if !first {
                // The end of the board is the end of the process: until then the kubelet is told what was last known.
                if let Ok(Err(_)) = tokio::time::timeout(REPEAT, receiver.changed()).await {
                    return None;
                }
            }
            let devices = receiver.borrow_and_update().clone();
            Some((devices, (receiver, false)))
        })
    }
}

/// The kubelet's health service of one driver.
#[derive(Clone, Debug)]
pub(crate) struct HealthService {
    pub(crate) board: HealthBoard,
    pub(crate) driver: Driver,
    pub(crate) pool: String,
}

macro_rules! serve_health {
    ($version:ident) => {
        #[tonic::async_trait]
        impl health::$version::dra_resource_health_server::DraResourceHealth for HealthService {
            type NodeWatchResourcesStream =
                Pin<Box<dyn Stream<Item = Result<health::$version::NodeWatchResourcesResponse, Status>> + Send>>;

            async fn node_watch_resources(
                &self,
                _request: Request<health::$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                use futures::StreamExt;
                use health::$version as api;
                let pool = self.pool.clone();
                let stream = self.board.follow(self.driver).map(move |devices| {
                    let now = unix_seconds();
                    let devices = devices.into_iter().map(|device| api::DeviceHealth {
                        device: Some(api::DeviceIdentifier { pool_name: pool.clone(), device_name: device.device }),
                        health: match device.healthy {
                            true => api::HealthStatus::Healthy.into(),
                            false => api::HealthStatus::Unhealthy.into(),
                        },
                        last_updated_time: now,
                        health_check_timeout_seconds: STALE.as_secs() as i64,
                        message: device.message.chars().take(1024).collect(),
                    });
                    Ok(api::NodeWatchResourcesResponse { devices: devices.collect() })
                });
                Ok(Response::new(Box::pin(stream)))
            }
        }
    };
}

serve_health!(v1alpha1);
serve_health!(v1);

fn unix_seconds() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    fn slot(healthy: bool) -> Vec<DeviceHealth> {
        vec![DeviceHealth { device: "slot-0".into(), healthy, message: String::new() }]
    }

    #[tokio::test(start_paused = true)]
    async fn case_45_health_is_told_at_once_on_change_and_before_it_is_stale() {
        let board = HealthBoard::default();
        board.show(Driver::ComputeDomain, slot(true));
        let mut told = Box::pin(board.follow(Driver::ComputeDomain));
        assert_eq!(told.next().await.unwrap(), slot(true));
        board.show(Driver::Gpu, slot(false));
        board.show(Driver::ComputeDomain, slot(false));
        assert_eq!(told.next().await.unwrap(), slot(false));
        let before = tokio::time::Instant::now();
        assert_eq!(told.next().await.unwrap(), slot(false));
        assert!(before.elapsed() < STALE);
    }
}
