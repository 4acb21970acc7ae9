//! What all claims of a node have in common.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::rc::Rc;

use heddle_core::claim::checkpoint::Checkpoint;
use heddle_core::claim::plan::{DomainFacts, NodeFacts};
use heddle_core::claim::{ClaimKey, Grant, Prepared};
use heddle_core::fault::{Fault, reason};
use heddle_core::inventory::Inventory;
use heddle_core::{names, slices};
use kube::Client;
use tokio::sync::{Notify, watch};

use super::cdi_store::CdiStore;
use super::checkpoint_store::{CheckpointStore, Memory};
use super::events;
use super::neighbours::Neighbours;
use super::toolkit::ToolkitStore;
use crate::channel_allocator;
use crate::nvml::devices::Devices;
use crate::runtime::Addr;

/// The two drivers that the agent serves with one implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Driver {
    /// Slots.
    ComputeDomain,
    /// Whole GPUs.
    Gpu,
}

impl Driver {
    /// The driver's name in slices, claims and folders.
    pub fn name(self) -> &'static str {
        match self {
            Self::ComputeDomain => names::DRIVER,
            Self::Gpu => names::GPU_DRIVER,
        }
    }
}

/// What a claim's preparer works with.
pub(crate) struct Context {
    pub(crate) node: String,
    pub(crate) client: Client,
    pub(crate) allocator: Addr<channel_allocator::Message>,
    pub(crate) devices: Devices,
    pub(crate) cdi: CdiStore,
    pub(crate) checkpoints: BTreeMap<Driver, CheckpointStore>,
    pub(crate) events: Addr<events::Message>,
    /// None until NVML was read once.
    pub(crate) inventory: watch::Sender<Option<Inventory>>,
    /// The GPUs that the container toolkit knows.
    pub(crate) toolkit: ToolkitStore,
    pub(crate) domains: Domains,
    pub(crate) neighbours: Neighbours,
    /// It was said that the status of claims may not be written.
    pub(crate) denied: Cell<bool>,
    /// Channels that were granted to claims whose Prepare is still under way, by claim UID: they may not be on disk yet.
    pub(crate) granted: RefCell<BTreeMap<String, Prepared>>,
}

impl Context {
    /// The node as it is now. Majors and the boot id are read each time: the driver may have been loaded anew.
    pub(crate) fn node_facts(&self) -> Result<NodeFacts, Fault> {
        let inventory = self.inventory.borrow();
        let gpus = inventory.iter().flat_map(|inventory| &inventory.gpus);
        Ok(NodeFacts {
            boot_id: self.devices.boot_id()?,
            major: self.devices.channel_major(),
            fabric: inventory.as_ref().map_or_else(Default::default, |inventory| inventory.fabric.clone()),
            gpus: gpus.clone().map(|gpu| (slices::gpu_name(gpu), gpu.uuid.clone())).collect(),
            mig: gpus.filter(|gpu| gpu.mig).map(slices::gpu_name).collect(),
            toolkit: self.toolkit.known(),
        })
    }

    /// Waits until NVML was read once.
    pub(crate) async fn inventory_known(&self) {
        let mut inventory = self.inventory.subscribe();
        // The sender is in `self`.
        let _ = inventory.wait_for(Option::is_some).await;
    }

    /// Remembers a grant until the Prepare ends.
    pub(crate) fn note_grant(&self, claim_uid: &str, domain: &Option<DomainFacts>, grant: &Grant) {
        if let (Some(facts), Grant::Channel { channel, domain, .. }) = (domain, grant) {
            let (claim_uid, cd_uid) = (claim_uid.to_owned(), facts.reference.uid.clone());
            let held = Prepared { claim_uid: claim_uid.clone(), cd_uid, channel: *channel, domain: domain.clone() };
            self.granted.borrow_mut().insert(claim_uid, held);
        }
    }

    /// What is remembered of a claim. What is corrupt counts for nothing, and is told to people.
    pub(crate) fn remembered(&self, driver: Driver, claim: &ClaimKey) -> Result<Option<Checkpoint>, Fault> {
        match self.store(driver)?.read(&claim.uid)? {
            Memory::Checkpoint(checkpoint) => Ok(Some(*checkpoint)),
            Memory::None => Ok(None),
            Memory::Quarantined => {
                self.events.tell(events::Message::Quarantined { claims: vec![claim.uid.clone()] });
                Ok(None)
            }
        }
    }

    /// The checkpoints of a driver.
    pub(crate) fn store(&self, driver: Driver) -> Result<&CheckpointStore, Fault> {
        let missing = || Fault::permanent(reason::SETTINGS, format!("this agent does not serve {}", driver.name()));
        self.checkpoints.get(&driver).ok_or_else(missing)
    }
}

/// 128 unguessable bits in hex, for names that a container must not be able to ask for.
pub(crate) fn token() -> Result<String, Fault> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|error| Fault::retryable(reason::NODE_IO, format!("cannot read /dev/urandom: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The ComputeDomains of prepared claims, so that only the first claim of one asks the API server for it. The parts
/// that count are immutable, and whether it is going away is the ChannelAllocator's to know.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    known: RefCell<BTreeMap<String, (DomainFacts, BTreeSet<String>)>>,
}

impl Domains {
    /// The ComputeDomain of this UID, if a prepared claim of the same namespace has asked before.
    pub(crate) fn get(&self, uid: &str, namespace: &str) -> Option<DomainFacts> {
        let known = self.known.borrow();
        known.get(uid).map(|(facts, _)| facts.clone()).filter(|facts| facts.reference.namespace == namespace)
    }

    /// The claim is prepared.
    pub(crate) fn hold(&self, facts: &DomainFacts, claim: &ClaimKey) {
        let mut known = self.known.borrow_mut();
        let entry = known.entry(facts.reference.uid.clone()).or_insert_with(|| (facts.clone(), BTreeSet::new()));
        entry.1.insert(claim.uid.clone());
    }

    /// The claim is undone.
    pub(crate) fn release(&self, cd_uid: &str, claim: &ClaimKey) {
        let mut known = self.known.borrow_mut();
        if let Some((_, claims)) = known.get_mut(cd_uid) {
            claims.remove(&claim.uid);
            if claims.is_empty() {
                known.remove(cd_uid);
            }
        }
    }
}

/// Tells a Prepare to end at the next point where nothing is half done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cancel {
    inner: Rc<(Cell<bool>, Notify)>,
}

impl Cancel {
    pub(crate) fn cancel(&self) {
        self.inner.0.set(true);
        self.inner.1.notify_one();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.inner.0.get()
    }

    /// Waits for `work`, unless cancelled before it ends.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Result<T, Fault> {
        tokio::select! {
            biased;
            () = self.inner.1.notified(), if !self.is_cancelled() => Err(superseded()),
            done = work, if !self.is_cancelled() => Ok(done),
            else => Err(superseded()),
        }
    }
}

/// The claim is being undone: whoever waits for it to be prepared waits in vain.
pub(crate) fn superseded() -> Fault {
    Fault::retryable(reason::SUPERSEDED, "the claim was unprepared while it was being prepared")
}

#[cfg(test)]
mod tests {
    use heddle_core::api::{AllocationMode, ComputeDomainRef, IsolationMode};

    use super::*;

    #[test]
    fn a_token_is_of_32_hex_digits_and_never_the_same() {
        let (one, two) = (token().unwrap(), token().unwrap());
        assert!(one.len() == 32 && one.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(one, two);
    }

    #[test]
    fn a_known_compute_domain_is_forgotten_with_its_last_claim_and_told_to_its_namespace_only() {
        let facts = DomainFacts {
            reference: ComputeDomainRef { namespace: "team".into(), name: "green".into(), uid: "u".into() },
            isolation: IsolationMode::Channel,
            allocation: AllocationMode::Single,
        };
        let claim = |uid: &str| ClaimKey { namespace: "team".into(), name: "c".into(), uid: uid.into() };
        let domains = Domains::default();
        domains.hold(&facts, &claim("1"));
        domains.hold(&facts, &claim("2"));
        domains.hold(&facts, &claim("2"));
        assert_eq!(domains.get("u", "team"), Some(facts));
        assert_eq!(domains.get("u", "other"), None);
        domains.release("u", &claim("1"));
        assert!(domains.get("u", "team").is_some());
        domains.release("u", &claim("2"));
        assert_eq!(domains.get("u", "team"), None);
    }

    #[tokio::test]
    async fn a_cancelled_wait_ends() {
        let cancel = Cancel::default();
        assert_eq!(cancel.or(async { 1 }).await, Ok(1));
        let other = cancel.clone();
        let waiting = cancel.or(std::future::pending::<()>());
        let (ended, ()) = tokio::join!(waiting, async move { other.cancel() });
        assert_eq!(ended, Err(superseded()));
        assert_eq!(cancel.or(async { 1 }).await, Err(superseded()));
    }
}
