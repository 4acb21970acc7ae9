//! Publishes the node's slots and GPUs, and again when they are wiped.

mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_core::api::DomainKind;
use heddle_core::fault::{Fault, reason};
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
    /// The reason, where slots are withheld whatever the fabric and the daemon are; that does not pass by itself.
    pub withheld: Option<&'static str>,
    /// The node's IMEX daemon is the host's: no exclusive ComputeDomain can be served.
    pub host_managed: bool,
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
    /// Whether the server keeps taints; not known before the first of them, and asked anew after each list, for the server
    /// may be another one by then.
    keeps_taints: Option<bool>,
}

/// Whether slots are offered.
enum Slots {
    /// Not known yet: what another agent has published stays as it is.
    Unknown,
    /// They are.
    Offered(Vec<Device>),
    /// They were, and are not: these have taints.
    Tainted(Vec<Device>),
    /// They never were: a node that is coming up, or that has no driver.
    Withheld,
}

/// Why slots cannot be used.
struct Hindrance {
    /// From [`reason`].
    reason: &'static str,
    text: String,
    /// It does not pass in seconds.
    lasting: bool,
}

/// Whether slots can be used, by all that is known of the node.
fn hindrance(inventory: &Inventory, usable: &Usable) -> Option<Hindrance> {
    if let Err(text) = inventory.channels_usable() {
        return Some(Hindrance { reason: reason::NO_CHANNELS, text, lasting: true });
    }
    if usable.usable {
        return None;
    }
    if let Some(reason) = usable.withheld {
        return Some(Hindrance { reason, text: usable.reason.clone(), lasting: true });
    }
    let lasting = matches!(inventory.fabric, Fabric::Unhealthy(_));
    let reason = match inventory.fabric {
        Fabric::Unhealthy(_) | Fabric::Pending(_) => reason::FABRIC_UNHEALTHY,
        Fabric::None | Fabric::Ready(_) => reason::DAEMON_NOT_READY,
    };
    Some(Hindrance { reason, text: usable.reason.clone(), lasting })
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
            keeps_taints: None,
        }
    }

    /// Offers slots, taints them, or waits with that.
    fn decide(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(inventory), Some(usable)) = (&self.inventory, &self.usable) else { return };
        let slots = self.make(inventory, usable);
        let Some(hindrance) = hindrance(inventory, usable) else {
            self.slots = Slots::Offered(slots);
            return self.end_grace();
        };
        match &self.slots {
            Slots::Withheld => {}
            Slots::Unknown if !self.found_slots() => self.slots = Slots::Withheld,
            Slots::Tainted(_) => self.taint(slots, &hindrance),
            Slots::Unknown | Slots::Offered(_) if hindrance.lasting => {
                self.end_grace();
                self.taint(slots, &hindrance);
            }
            Slots::Unknown | Slots::Offered(_) if self.grace.is_none() => {
                tracing::info!(grace = ?self.settings.grace, "slots cannot be used at the moment: {}", hindrance.text);
                self.grace = Some(cx.after(self.settings.grace, Message::GraceOver));
            }
            Slots::Unknown | Slots::Offered(_) => {}
        }
    }

    fn make(&self, inventory: &Inventory, usable: &Usable) -> Vec<Device> {
        let mut slots = slices::slots(self.settings.slots, &inventory.fabric, usable.kind);
        if usable.host_managed {
            slices::mark_host_managed(&mut slots);
        }
        slots
    }

    fn taint(&mut self, mut slots: Vec<Device>, hindrance: &Hindrance) {
        if !matches!(self.slots, Slots::Tainted(_)) {
            tracing::warn!("slots are offered to nobody any more: {}", hindrance.text);
        }
        slices::taint_slots(&mut slots, hindrance.reason);
        self.slots = Slots::Tainted(slots);
    }

    fn end_grace(&mut self) {
        if let Some(grace) = self.grace.take() {
            grace.cancel();
        }
    }

    fn grace_over(&mut self) {
        let (Some(inventory), Some(usable)) = (&self.inventory, &self.usable) else { return };
        // A timer that was cancelled too late finds the slots usable again.
        if let (Some(_), Some(hindrance)) = (self.grace.take(), hindrance(inventory, usable)) {
            let slots = self.make(inventory, usable);
            self.taint(slots, &hindrance);
        }
    }

    fn found_slots(&self) -> bool {
        self.published.iter().flat_map(BTreeMap::values).any(|slice| slice.spec.driver == names::DRIVER)
    }

    /// What should be published for a driver; none while that is not known.
    fn desired(&self, driver: Driver) -> Option<Vec<Device>> {
        let mut devices = match driver {
            Driver::ComputeDomain => match &self.slots {
                Slots::Unknown => return None,
                Slots::Offered(devices) | Slots::Tainted(devices) => devices.clone(),
                Slots::Withheld => Vec::new(),
            },
            Driver::Gpu => slices::gpus(self.inventory.as_ref()?),
        };
        if self.keeps_taints == Some(false) {
            slices::withdraw_tainted(&mut devices);
        }
        Some(devices)
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
        let ask = self.keeps_taints.is_none();
        cx.spawn_then("write", write::run(client, node, changes, ask), Message::Written);
    }

    fn written(&mut self, outcome: Outcome, cx: &mut Cx<'_, Self>) {
        self.writing = false;
        if let Some(kept) = outcome.keeps_taints {
            if !kept && self.keeps_taints.is_none() {
                tracing::info!("this API server keeps no device taints: what cannot be used is withdrawn instead");
            }
            self.keeps_taints = Some(kept);
        }
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
            watcher::Event::InitDone => {
                self.published = Some(std::mem::take(&mut self.listing));
                self.keeps_taints = None;
            }
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
        let hindrance = hindrance(inventory, usable).map(|hindrance| hindrance.text);
        let slots = (0..self.settings.slots.min(names::MAX_SLOTS))
            .map(|id| DeviceHealth::of(slices::slot_name(id), hindrance.clone()));
        self.settings.health.show(Driver::ComputeDomain, slots.collect());
        let gpus = inventory.gpus.iter().map(|gpu| {
            let fabric = match &gpu.fabric {
                Fabric::Unhealthy(why) => Some(why.clone()),
                _ => None,
            };
            DeviceHealth::of(slices::gpu_name(gpu), gpu.trouble().or(fabric))
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
