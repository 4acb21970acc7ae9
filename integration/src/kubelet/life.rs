//! One life of the kubelet's process.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, MutexGuard, PoisonError},
};

use futures::FutureExt;
use tokio::task::JoinHandle;
use tracing::error;

use super::{
    Machine, claims::Claims, events::Events, health::Health, node_object, nursery, plugins::Plugins, pods,
    registry::Registry, slices,
};

/// What the parts of one life share.
#[derive(Clone)]
pub struct Life {
    pub(super) machine: Arc<Machine>,
    pub(super) plugins: Plugins,
    pub(super) health: Health,
    pub(super) events: Arc<Events>,
    pub(super) spawner: nursery::Spawner,
}

impl Life {
    /// Begins a life: what the process has only in memory is empty, its checkpoint is as it was.
    pub fn begin(machine: Arc<Machine>) -> JoinHandle<()> {
        let (spawner, nursery) = nursery::nursery();
        let options = machine.options.clone();
        let health = Health::new();
        let life = Self {
            plugins: Plugins::new(machine.clone(), spawner.clone(), health.clone()),
            events: Arc::new(Events::new(options.client.clone(), options.node_name.clone())),
            health: health.clone(),
            spawner: spawner.clone(),
            machine: machine.clone(),
        };
        {
            let mut claims = life.claims();
            *claims = std::mem::take(&mut *claims).after_restart();
        }
        // No plugin is registered yet, so nothing that they offered can be served: the scheduler must not count on it.
        let (wiping, owner) = (machine.clone(), options.clone());
        spawner.spawn(async move {
            node_object::register(&owner).await;
            slices::wipe(&wiping, None).await;
        });
        spawner.spawn(health.expire());
        spawner.spawn(Registry::new(machine, life.plugins.clone()).run());
        spawner.spawn(pods::run(life));
        tokio::spawn(async move {
            if AssertUnwindSafe(nursery.run()).catch_unwind().await.is_err() {
                error!(node = options.node_name, "the kubelet double panicked: nothing happens on its node any more");
            }
        })
    }

    /// What is known of claims.
    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.machine.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
