//! The registered plugins of all drivers.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::{sync::oneshot, time};
use tracing::{debug, info};

use super::{
    Machine,
    health::{self, Health},
    link::Link,
    nursery::Spawner,
    plugin::{Plugin, Registered, Services},
    slices,
};

/// The registered plugins of all drivers, in one life of the kubelet.
#[derive(Clone)]
pub struct Plugins(Arc<Shared>);

struct Shared {
    machine: Arc<Machine>,
    spawner: Spawner,
    health: Health,
    store: Mutex<Store>,
}

#[derive(Default)]
struct Store {
    /// Instances by driver, in the order in which they came.
    drivers: BTreeMap<String, Vec<Registered>>,
    /// Drivers whose slices will be deleted; dropping the entry calls it off.
    wipes: BTreeMap<String, oneshot::Sender<()>>,
}

impl Plugins {
    /// No plugins yet.
    pub fn new(machine: Arc<Machine>, spawner: Spawner, health: Health) -> Self {
        Self(Arc::new(Shared { machine, spawner, health, store: Mutex::default() }))
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an instance and begins to connect to it.
    pub fn add(&self, driver: &str, endpoint: PathBuf, services: Services) -> Result<(), String> {
        let mut store = self.store();
        let instances = store.drivers.entry(driver.to_owned()).or_default();
        if instances.iter().any(|other| other.plugin.endpoint == endpoint) {
            // One instance cannot take over another's endpoint.
            let endpoint = endpoint.display();
            return Err(format!("endpoint {endpoint} already registered for DRA driver plugin {driver}"));
        }
        let (close, closed) = oneshot::channel();
        let (shared, name) = (Arc::downgrade(&self.0), driver.to_owned());
        let changed = move |up| connection_changed(&shared, &name, up);
        let (link, keep) = Link::new(endpoint.clone(), self.0.machine.options.limits.reconnect, changed);
        let plugin = Plugin { driver: driver.to_owned(), endpoint, services, link };
        let (health, name) = (self.0.health.clone(), driver.to_owned());
        let watch = health::watch(plugin.clone(), health.clone(), self.0.machine.options.limits.clone());
        self.0.spawner.spawn(async move {
            tokio::select! {
                _ = closed => {}
                _ = async { tokio::join!(keep, watch) } => {}
            }
            health.forget(&name);
        });
        instances.push(Registered { plugin, _close: close });
        drop(store);
        self.sync(driver);
        Ok(())
    }

    /// Removes an instance and closes its connection.
    pub fn remove(&self, driver: &str, endpoint: &Path) {
        let mut store = self.store();
        if let Some(instances) = store.drivers.get_mut(driver) {
            instances.retain(|instance| instance.plugin.endpoint != endpoint);
            if instances.is_empty() {
                store.drivers.remove(driver);
            }
        }
        drop(store);
        self.sync(driver);
    }

    /// The instance to call: the most recent one that is connected, else the most recent one.
    pub fn get(&self, driver: &str) -> Result<Plugin, String> {
        let store = self.store();
        let instances = store.drivers.get(driver).map_or(&[][..], Vec::as_slice);
        instances
            .iter()
            .rfind(|instance| instance.plugin.link.is_up())
            .or(instances.last())
            .map(|instance| instance.plugin.clone())
            .ok_or_else(|| format!("DRA driver {driver} is not registered"))
    }

    /// The drivers that have a plugin, and whether one of its instances is connected.
    pub fn drivers(&self) -> BTreeMap<String, bool> {
        let usable = |instances: &Vec<Registered>| instances.iter().any(|other| other.plugin.link.is_up());
        self.store().drivers.iter().map(|(driver, instances)| (driver.clone(), usable(instances))).collect()
    }

    /// Plans to delete the driver's slices while none of its instances is connected, and calls that off otherwise.
    fn sync(&self, driver: &str) {
        let usable = self.drivers().get(driver).copied().unwrap_or(false);
        let mut store = self.store();
        if usable {
            store.wipes.remove(driver);
            return;
        }
        if store.wipes.contains_key(driver) {
            return;
        }
        let (call_off, called_off) = oneshot::channel();
        store.wipes.insert(driver.to_owned(), call_off);
        let (shared, driver) = (Arc::downgrade(&self.0), driver.to_owned());
        let delay = self.0.machine.options.limits.wipe_delay;
        self.0.spawner.spawn(async move {
            tokio::select! {
                _ = called_off => debug!(driver, "its plugin is back, its slices stay"),
                () = time::sleep(delay) => {
                    let Some(shared) = shared.upgrade() else { return };
                    let machine = shared.machine.clone();
                    Plugins(shared).store().wipes.remove(&driver);
                    slices::wipe(&machine, Some(&driver)).await;
                }
            }
        });
    }
}

fn connection_changed(shared: &Weak<Shared>, driver: &str, up: bool) {
    let Some(shared) = shared.upgrade() else { return };
    info!(node = shared.machine.options.node_name, driver, up, "plugin connection changed");
    if up {
        shared.machine.counters.connections.one();
    }
    Plugins(shared).sync(driver);
}
