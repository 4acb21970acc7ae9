//! The health of devices, as their plugins report it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use heddle_proto::health::v1 as proto;
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tonic::Code;
use tracing::{debug, info};

use super::{backoff::sleep_until, options::Limits, plugin::Plugin};

/// The kubelet remembers no more devices of a driver than this.
const MAX_DEVICES: usize = 16_384;

/// The health of devices, as their plugins report it.
#[derive(Clone)]
pub struct Health(Arc<Shared>);

struct Shared {
    devices: Mutex<BTreeMap<Device, Report>>,
    changes: watch::Sender<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Device {
    driver: String,
    pool: String,
    name: String,
}

#[derive(Clone, Debug)]
struct Report {
    health: &'static str,
    until: Instant,
}

impl Health {
    /// Nothing is known yet.
    pub fn new() -> Self {
        Self(Arc::new(Shared { devices: Mutex::default(), changes: watch::Sender::new(0) }))
    }

    fn devices(&self) -> MutexGuard<'_, BTreeMap<Device, Report>> {
        self.0.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes when the health of some device changed or went stale.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn changed(&self) {
        self.0.changes.send_modify(|version| *version += 1);
    }

    /// `Healthy`, `Unhealthy` or `Unknown`.
    pub fn of(&self, driver: &str, pool: &str, name: &str) -> &'static str {
        let device = Device { driver: driver.into(), pool: pool.into(), name: name.into() };
        match self.devices().get(&device) {
            Some(report) if report.until > Instant::now() => report.health,
            _ => "Unknown",
        }
    }

    /// Takes a driver's report.
    fn take(&self, driver: &str, reports: Vec<proto::DeviceHealth>, stale: Duration) {
        let mut devices = self.devices();
        let now = Instant::now();
        for report in reports.into_iter().take(MAX_DEVICES) {
            let id = report.device.unwrap_or_default();
            let device = Device { driver: driver.into(), pool: id.pool_name, name: id.device_name };
            let health = match proto::HealthStatus::try_from(report.health) {
                Ok(proto::HealthStatus::Healthy) => "Healthy",
                Ok(proto::HealthStatus::Unhealthy) => "Unhealthy",
                _ => "Unknown",
            };
            let timeout = match u64::try_from(report.health_check_timeout_seconds) {
                Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
                _ => stale,
            };
            devices.insert(device, Report { health, until: now + timeout });
        }
        drop(devices);
        self.changed();
    }

    /// Forgets a driver's devices: its stream has ended.
    pub fn forget(&self, driver: &str) {
        self.devices().retain(|device, _| device.driver != driver);
        self.changed();
    }

    /// Wakes the others when a report goes stale.
    pub async fn expire(self) {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            let now = Instant::now();
            let next = self.devices().values().map(|report| report.until).filter(|until| *until > now).min();
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until(next) => self.changed(),
            }
        }
    }
}

/// Follows a plugin's health stream for as long as it is registered.
pub async fn watch(plugin: Plugin, health: Health, limits: Limits) {
    loop {
        let end = match plugin.watch_health().await {
            None => return std::future::pending().await,
            Some(Ok(mut reports)) => {
                info!(driver = plugin.driver, "health stream opened");
                let end = loop {
                    match reports.message().await {
                        Ok(Some(report)) => health.take(&plugin.driver, report.devices, limits.health_stale),
                        Ok(None) => break None,
                        Err(status) => break Some(status),
                    }
                };
                health.forget(&plugin.driver);
                end
            }
            Some(Err(status)) => Some(status),
        };
        debug!(driver = plugin.driver, ?end, "no health stream");
        if end.is_some_and(|status| status.code() == Code::Unimplemented) {
            return std::future::pending().await;
        }
        time::sleep(limits.health_retry).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(name: &str, health: proto::HealthStatus, timeout: i64) -> proto::DeviceHealth {
        proto::DeviceHealth {
            device: Some(proto::DeviceIdentifier { pool_name: "n".into(), device_name: name.into() }),
            health: health.into(),
            last_updated_time: 0,
            health_check_timeout_seconds: timeout,
            message: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_goes_stale_and_others_are_told() {
        let health = Health::new();
        let mut changes = health.changes();
        tokio::spawn(health.clone().expire());
        let stale = Duration::from_secs(30);
        health.take("d", vec![report("a", proto::HealthStatus::Healthy, 0)], stale);
        changes.changed().await.unwrap();
        assert_eq!(health.of("d", "n", "a"), "Healthy");
        changes.changed().await.unwrap();
        assert_eq!(health.of("d", "n", "a"), "Unknown");
    }

    #[tokio::test(start_paused = true)]
    async fn the_plugin_may_set_the_time_itself() {
        let health = Health::new();
        health.take("d", vec![report("a", proto::HealthStatus::Unhealthy, 90)], Duration::from_secs(30));
        time::advance(Duration::from_secs(60)).await;
        assert_eq!(health.of("d", "n", "a"), "Unhealthy");
        assert_eq!(health.of("d", "n", "other"), "Unknown");
    }
}
