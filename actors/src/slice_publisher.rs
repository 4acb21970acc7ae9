//! Publishes the node's slots and GPUs, and again when they are wiped.

mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_core::api::DomainKind;
use heddle_core::fault::Fault;
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::{names, slices};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::Client;
use kube::runtime::watcher;

use crate::dra::{DeviceHealth, Driver, HealthBoard};
use crate::runtime::{self, Actor, Cx, Overflow, Task};
use write::{Failure, Outcome};

/// Slots stay offered for this long when the daemon is not READY: a restart of it takes seconds, and a claim that is
/// allocated meanwhile waits in its Prepare.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);
/// Pause before a write that met another writer's is decided anew: the watch has told of it by then.
const CONFLICT_RETRY: Duration = Duration::from_millis(50);
/// Pause before a write that failed is tried again, doubling up to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What a [`SlicePublisher`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// Name of the Node, and of the pools.
    pub node_name: String,
    /// Slots to publish.
    pub slots: u32,
    /// The drivers to publish for.
    pub drivers: Vec<Driver>,
    /// How long slots stay offered after they have become unusable, unless the fabric is why.
    pub grace: Duration,
    /// The API.
    pub client: Client,
    /// Where the devices' health is shown.
    pub health: HealthBoard,
}

/// Whether a claim on a slot of this node can be prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usable {
    /// Whether it can.
    pub usable: bool,
    /// Name of the IMEX domain that is served.
    pub domain: Option<String>,
    /// Its kind.
    pub kind: Option<DomainKind>,
    /// Why not.
    pub reason: String,
}

/// What a [`SlicePublisher`] is told.
#[derive(Debug)]
pub enum Message {
    /// From the inventory.
    Inventory(Inventory),
    /// Whether slots can be used.
    Usable(Usable),
    /// Something happened to a slice of this node.
    Event(Box<watcher::Event<ResourceSlice>>),
    /// A round of writes has ended.
    Written(Outcome),
    /// Slots have been unusable for long enough.
    GraceOver,
    /// The pause after a failed write is over.
    Retry,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Inventory(_) => "Inventory",
            Self::Usable(_) => "Usable",
            Self::Event(_) => "Event",
            Self::Written(_) => "Written",
            Self::GraceOver => "GraceOver",
            Self::Retry => "Retry",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::Inventory(_) | Self::Usable(_) => Overflow::Replace,
            _ => Overflow::Reject,
        }
    }
}

/// Owns the ResourceSlices of this node and our drivers.
pub struct SlicePublisher {
    settings: Settings,
    inventory: Option<Inventory>,
    usable: Option<Usable>,
    slots: Slots,
    grace: Option<Task>,
    /// The slices as the API server has them, by name; none before they were all listed once.
    published: Option<BTreeMap<String, ResourceSlice>>,
    /// A list that is still arriving.
    listing: BTreeMap<String, ResourceSlice>,
    /// What was deleted while a write was under way.
    deleted: BTreeSet<String>,
    writing: bool,
    pausing: Option<Task>,
    failures: u32,
    /// What we wrote last and what the server made of it, by driver: a server that does not know a field drops it, and
    /// would otherwise be written to for ever.
    accepted: BTreeMap<String, (Vec<Device>, Option<Vec<Device>>)>,
}

/// Whether slots are offered.
enum Slots {
    /// Not known yet: what another agent has published stays as it is.
    Unknown,
    /// They are.
    Offered(Vec<Device>),
    /// They are not.
    Withdrawn,
}

impl SlicePublisher {
    /// A publisher that has seen nothing yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            inventory: None,
            usable: None,
            slots: Slots::Unknown,
            grace: None,
            published: None,
            listing: BTreeMap::new(),
            deleted: BTreeSet::new(),
            writing: false,
            pausing: None,
            failures: 0,
            accepted: BTreeMap::new(),
        }
    }

    /// Offers slots, withdraws them, or waits with that.
    fn decide(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(inventory), Some(usable)) = (&self.inventory, &self.usable) else { return };
        if usable.usable {
            self.slots = Slots::Offered(slices::slots(self.settings.slots, &inventory.fabric, usable.kind));
            self.end_grace();
            return;
        }
        // A fabric that cannot be used does not come back by itself in seconds.
        let fabric = matches!(inventory.fabric, Fabric::Unhealthy(_));
        let offered = match &self.slots {
            Slots::Offered(_) => true,
            Slots::Unknown => self.found_slots(),
            Slots::Withdrawn => false,
        };
        if fabric || !offered {
            if offered {
                tracing::warn!("slots are withdrawn: {}", usable.reason);
            }
            self.slots = Slots::Withdrawn;
            self.end_grace();
        } else if self.grace.is_none() {
            tracing::info!(grace = ?self.settings.grace, "slots cannot be used at the moment: {}", usable.reason);
            self.grace = Some(cx.after(self.settings.grace, Message::GraceOver));
        }
    }

    fn end_grace(&mut self) {
        if let Some(grace) = self.grace.take() {
            grace.cancel();
        }
    }

    fn grace_over(&mut self) {
        // A timer that was cancelled too late finds the slots usable again.
        if self.grace.take().is_some() && self.usable.as_ref().is_some_and(|usable| !usable.usable) {
            tracing::warn!("slots are withdrawn: {}", self.usable.as_ref().map_or("", |usable| &usable.reason));
            self.slots = Slots::Withdrawn;
        }
    }

    fn found_slots(&self) -> bool {
        self.published.iter().flat_map(BTreeMap::values).any(|slice| slice.spec.driver == names::DRIVER)
    }

    /// What should be published for a driver; none while that is not known.
    fn desired(&self, driver: Driver) -> Option<Vec<Device>> {
        match driver {
            Driver::ComputeDomain => match &self.slots {
                Slots::Unknown => None,
                Slots::Offered(devices) => Some(devices.clone()),
                Slots::Withdrawn => Some(Vec::new()),
            },
            Driver::Gpu => self.inventory.as_ref().map(slices::gpus),
        }
    }

    /// Begins the writes that are needed, one round at a time.
    fn publish(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(published) = &self.published else { return };
        if self.writing || self.pausing.is_some() {
            return;
        }
        let mut changes = Vec::new();
        for &driver in &self.settings.drivers {
            let Some(mut devices) = self.desired(driver) else { continue };
            if let Some((sent, Some(stored))) = self.accepted.get(driver.name())
                && *sent == devices
            {
                devices.clone_from(stored);
            }
            let node = &self.settings.node_name;
            changes.extend(slices::plan(published.values(), driver.name(), node, &devices));
        }
        if changes.is_empty() {
            cx.ready();
            return;
        }
        self.writing = true;
        self.deleted.clear();
        let (client, node) = (self.settings.client.clone(), self.settings.node_name.clone());
        cx.spawn_then("write", write::run(client, node, changes), Message::Written);
    }

    fn written(&mut self, outcome: Outcome, cx: &mut Cx<'_, Self>) {
        self.writing = false;
        let published = self.published.get_or_insert_default();
        for (sent, stored) in outcome.stored {
            let stored_devices = stored.spec.devices.clone();
            self.accepted.insert(stored.spec.driver.clone(), (sent, stored_devices));
            let name = stored.metadata.name.clone().unwrap_or_default();
            // The watch may have told of its end before we hear of its beginning.
            if !self.deleted.contains(&name) {
                published.insert(name, stored);
            }
        }
        for name in outcome.removed {
            published.remove(&name);
        }
        let Some(failure) = outcome.failed else {
            self.failures = 0;
            return;
        };
        let (min, max) = RETRY;
        let pause = match &failure {
            // Somebody else has written: the watch tells what.
            Failure::Conflict => CONFLICT_RETRY,
            Failure::Other(_) => min.saturating_mul(1 << self.failures.min(8)).min(max),
        };
        self.failures += 1;
        tracing::warn!(?pause, "ResourceSlices could not be written: {failure}");
        self.pausing = Some(cx.after(pause, Message::Retry));
    }

    fn event(&mut self, event: watcher::Event<ResourceSlice>) {
        let name = |slice: &ResourceSlice| slice.metadata.name.clone().unwrap_or_default();
        match event {
            watcher::Event::Init => self.listing.clear(),
            watcher::Event::InitApply(slice) => drop(self.listing.insert(name(&slice), slice)),
            watcher::Event::InitDone => self.published = Some(std::mem::take(&mut self.listing)),
            watcher::Event::Apply(slice) => {
                if let Some(published) = &mut self.published {
                    published.insert(name(&slice), slice);
                }
            }
            watcher::Event::Delete(slice) => {
                let name = name(&slice);
                if let Some(published) = &mut self.published
                    && published.remove(&name).is_some()
                    && !self.writing
                {
                    tracing::warn!(slice = name, "a ResourceSlice was removed by somebody else");
                }
                self.deleted.insert(name);
            }
        }
    }

    fn show_health(&self) {
        let (Some(inventory), Some(usable)) = (&self.inventory, &self.usable) else { return };
        let slots = (0..self.settings.slots.min(names::MAX_SLOTS)).map(|id| DeviceHealth {
            device: slices::slot_name(id),
            healthy: usable.usable,
            message: if usable.usable { String::new() } else { usable.reason.clone() },
        });
        self.settings.health.show(Driver::ComputeDomain, slots.collect());
        let gpus = inventory.gpus.iter().map(|gpu| {
            let unhealthy = match &gpu.fabric {
                Fabric::Unhealthy(why) => Some(why.clone()),
                _ => None,
            };
            DeviceHealth {
                device: slices::gpu_name(gpu),
                healthy: unhealthy.is_none(),
                message: unhealthy.unwrap_or_default(),
            }
        });
        self.settings.health.show(Driver::Gpu, gpus.collect());
    }
}

impl Actor for SlicePublisher {
    const KIND: &'static str = "SlicePublisher";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        cx.spawn("watch", write::watch(self.settings.client.clone(), self.settings.node_name.clone(), cx.address()));
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Inventory(inventory) => self.inventory = Some(inventory),
            Message::Usable(usable) => self.usable = Some(usable),
            Message::Event(event) => self.event(*event),
            Message::Written(outcome) => self.written(outcome, cx),
            Message::GraceOver => self.grace_over(),
            Message::Retry => self.pausing = None,
        }
        if self.published.is_some() {
            self.decide(cx);
        }
        self.show_health();
        self.publish(cx);
        Ok(())
    }
}
