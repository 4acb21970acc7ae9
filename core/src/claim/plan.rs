//! What Prepare and Unprepare do next.
//!
//! The shell learns a fact, asks for the next step, runs it, and adds what it learnt. Nothing is decided anywhere
//! else, so a crash between any two steps comes down to asking again with what is on disk.

use std::collections::{BTreeMap, BTreeSet};

use super::checkpoint::{ChannelRecord, Checkpoint, PreparedDevice, State};
use super::request::{Allocated, main_request};
use super::toolkit::Toolkit;
use super::{ClaimKey, Grant, Prepared, cdi};
use crate::api::{AllocationMode, ChannelConfig, ComputeDomainRef, IsolationMode};
use crate::fault::{Fault, reason};
use crate::inventory::Fabric;
use crate::names;

/// The node, as a Prepare finds it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// Character-device major of channels, or why it is not known.
    pub major: Result<u32, Fault>,
    /// State of the NVLink fabric.
    pub fabric: Fabric,
    /// UUIDs of the GPUs by device name.
    pub gpus: BTreeMap<String, String>,
    /// Device names of those that MIG divides.
    pub mig: BTreeSet<String>,
    /// The GPUs that a container can be given.
    pub toolkit: Toolkit,
}

/// What counts of a ComputeDomain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainFacts {
    /// Which one it is.
    pub reference: ComputeDomainRef,
    /// How it is kept apart.
    pub isolation: IsolationMode,
    /// How many channels a container sees.
    pub allocation: AllocationMode,
}

/// What a claim asks for, as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The devices that it holds here.
    pub devices: Vec<Allocated>,
    /// Its config, if the driver has one.
    pub config: Option<ChannelConfig>,
}

/// Everything that a Prepare has learnt so far.
#[derive(Clone, Debug)]
pub struct Known {
    /// The claim.
    pub claim: ClaimKey,
    /// The driver that is asked.
    pub driver: &'static str,
    /// The node.
    pub node: NodeFacts,
    /// A fresh unguessable part for the names of a CDI file and device.
    pub token: String,
    /// What is on disk.
    pub on_disk: Option<Checkpoint>,
    /// The ChannelAllocator has found the entry that `on_disk` tells of.
    pub entry_verified: bool,
    /// The CDI file of `on_disk` is there, byte for byte.
    pub cdi_intact: bool,
    /// What the claim asks for.
    pub demand: Option<Demand>,
    /// Its ComputeDomain.
    pub domain: Option<DomainFacts>,
    /// A pod of the claim may use another ComputeDomain too: several claims were asked for at once, or another
    /// ComputeDomain of the namespace has claims on this node.
    pub accompanied: bool,
    /// No container of its pods does.
    pub containers_checked: bool,
    /// What entering came to.
    pub grant: Option<Grant>,
}

impl Known {
    /// What is known at first: the claim, the node and its disk, and nothing of the cluster.
    pub fn new(
        claim: ClaimKey,
        driver: &'static str,
        node: NodeFacts,
        token: String,
        on_disk: Option<Checkpoint>,
    ) -> Self {
        Self {
            claim,
            driver,
            node,
            token,
            on_disk,
            entry_verified: false,
            cdi_intact: false,
            demand: None,
            domain: None,
            accompanied: false,
            containers_checked: false,
            grant: None,
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Finish an undo that a crash has cut off; `on_disk` is none after it.
    Undo,
    /// Ask the ChannelAllocator whether this entry still stands.
    Verify(Prepared),
    /// Read the claim from the API server.
    GetClaim,
    /// Find the ComputeDomain that the config names, in the claim's namespace.
    GetComputeDomain(ChannelConfig),
    /// Look at the pods of the claim: no container may use two ComputeDomains.
    CheckContainers(ComputeDomainRef),
    /// Enter the ComputeDomain's channel, however long it takes.
    Enter(DomainFacts),
    /// Wait until the container toolkit has described another GPU: this is what is missing.
    AwaitToolkit(Fault),
    /// Put this on disk.
    Write(Checkpoint),
    /// Write the CDI file of `on_disk`.
    WriteCdi(cdi::CdiFile),
    /// Answer the kubelet.
    Answer(Vec<PreparedDevice>),
}

/// The next step of a Prepare.
///
/// # Errors
/// What keeps the claim from being prepared.
pub fn next(known: &Known) -> Result<Step, Fault> {
    match &known.on_disk {
        Some(tombstone) if tombstone.state == State::Tombstone => Ok(Step::Undo),
        Some(prepared) if prepared.state == State::Prepared => again(known, prepared),
        _ if known.driver == names::GPU_DRIVER => gpus(known),
        _ => channel(known),
    }
}

/// A claim that is prepared already: the kubelet may have restarted, the node rebooted, files may be lost.
fn again(known: &Known, prepared: &Checkpoint) -> Result<Step, Fault> {
    // Entered in this very call, or found by the allocator.
    let entered = known.entry_verified || known.grant.is_some();
    if let Some(held) = prepared.held().filter(|_| !entered) {
        return Ok(Step::Verify(held));
    }
    let mut current = Checkpoint { boot_id: known.node.boot_id.clone(), ..prepared.clone() };
    if let Some(channel) = &mut current.channel {
        channel.major = known.node.major.clone()?;
    }
    if current != *prepared {
        return Ok(Step::Write(current));
    }
    // The kubelet passes ids on unseen, and a toolkit's file may have gone since.
    if let Err(missing) = known.node.toolkit.check(pool_of(prepared), &prepared.devices) {
        return Ok(Step::AwaitToolkit(missing));
    }
    Ok(cdi_step(known, prepared)?.unwrap_or_else(|| Step::Answer(prepared.devices.clone())))
}

/// What a Prepare is answered by an agent that must not change anything, because another one acts for the node: that
/// one looks after the channel entry. None if a file would have to be written, or anything else be waited for.
pub fn standing(known: &Known) -> Option<Vec<PreparedDevice>> {
    let prepared = known.on_disk.as_ref().filter(|checkpoint| checkpoint.state == State::Prepared)?;
    match again(&Known { entry_verified: true, ..known.clone() }, prepared) {
        Ok(Step::Answer(devices)) => Some(devices),
        _ => None,
    }
}

fn cdi_step(known: &Known, checkpoint: &Checkpoint) -> Result<Option<Step>, Fault> {
    Ok(cdi::file(checkpoint)?.filter(|_| !known.cdi_intact).map(Step::WriteCdi))
}

fn channel(known: &Known) -> Result<Step, Fault> {
    let Some(demand) = &known.demand else { return Ok(Step::GetClaim) };
    if let Fabric::Unhealthy(why) = &known.node.fabric {
        let message = format!("the NVLink fabric of node {} cannot be used: {why}", pool(demand));
        return Err(Fault::retryable(reason::FABRIC_UNHEALTHY, message));
    }
    let Some(domain) = &known.domain else {
        let config = demand.config.clone().ok_or_else(|| no_config(&known.claim))?;
        return Ok(Step::GetComputeDomain(config));
    };
    if let Some(config) = &demand.config {
        agrees(&known.claim, config, domain)?;
    }
    if domain.allocation == AllocationMode::All && domain.isolation != IsolationMode::Domain {
        let ComputeDomainRef { namespace, name, .. } = &domain.reference;
        let message = format!(
            "ComputeDomain {namespace}/{name} asks for allocationMode All without isolationMode Domain; \
             every channel of a shared IMEX domain would include those of others"
        );
        return Err(Fault::permanent(reason::INVALID_CONFIG, message));
    }
    if known.accompanied && !known.containers_checked && known.grant.is_none() {
        return Ok(Step::CheckContainers(domain.reference.clone()));
    }
    let Some(grant) = &known.grant else { return Ok(Step::Enter(domain.clone())) };
    let preparing = record(known, demand, domain, grant)?;
    if known.on_disk.as_ref() != Some(&preparing) {
        return Ok(Step::Write(preparing));
    }
    Ok(cdi_step(known, &preparing)?.unwrap_or_else(|| Step::Write(preparing.with_state(State::Prepared))))
}

/// The claim's config must not contradict the ComputeDomain that its UID is of, whether or not that one was read for it.
fn agrees(claim: &ClaimKey, config: &ChannelConfig, domain: &DomainFacts) -> Result<(), Fault> {
    let ComputeDomainRef { namespace, name, uid } = &domain.reference;
    if let Some(other) = config.compute_domain.as_ref().filter(|other| *other != name) {
        let other: String = other.chars().take(80).collect();
        let message = format!(
            "ResourceClaim {claim} names ComputeDomain {other:?} with UID {uid}, which is of {namespace}/{name}; make the \
             claim from the template of the ComputeDomain that is meant"
        );
        return Err(Fault::permanent(reason::COMPUTE_DOMAIN_GONE, message));
    }
    if config.allocation_mode == AllocationMode::All && domain.allocation != AllocationMode::All {
        let message = format!(
            "ResourceClaim {claim} asks for allocationMode All, ComputeDomain {namespace}/{name} gives one channel; all are \
             given by a ComputeDomain with isolationMode Domain and spec.channel.allocationMode All"
        );
        return Err(Fault::permanent(reason::INVALID_CONFIG, message));
    }
    Ok(())
}

/// The checkpoint of a granted claim, with its CDI ids.
fn record(known: &Known, demand: &Demand, domain: &DomainFacts, grant: &Grant) -> Result<Checkpoint, Fault> {
    let channel = match grant {
        Grant::NoFabric => None,
        Grant::Channel { channel, domain: imex_domain, channel_count } => {
            if *channel == 0 || channel >= channel_count {
                let message = format!(
                    "IMEX domain {imex_domain} gives channel {channel}, this node has channels 1 to {}; set the same \
                     ImexChannelCount on all nodes of the clique",
                    channel_count.saturating_sub(1)
                );
                return Err(Fault::retryable(reason::CHANNEL_CLASH, message));
            }
            Some(ChannelRecord {
                channel: *channel,
                domain: imex_domain.clone(),
                major: known.node.major.clone()?,
                all_of: (domain.allocation == AllocationMode::All).then_some(*channel_count),
            })
        }
    };
    // A name that was on disk before is kept: the file of that name is overwritten, not left over.
    let token = known.on_disk.as_ref().and_then(|c| c.cdi_token.clone()).unwrap_or_else(|| known.token.clone());
    let mut checkpoint = Checkpoint {
        claim: known.claim.clone(),
        driver: known.driver.to_owned(),
        state: State::Preparing,
        boot_id: known.node.boot_id.clone(),
        compute_domain: Some(domain.reference.clone()),
        channel,
        cdi_token: Some(token),
        devices: Vec::new(),
    };
    let id = cdi::file(&checkpoint)?.map(|file| file.id);
    // A request may hold all slots of the node: its containers get the one CDI device once.
    let mut seen = BTreeSet::new();
    checkpoint.devices = demand
        .devices
        .iter()
        .map(|device| {
            let first = seen.insert(main_request(&device.request));
            prepared_device(device, id.iter().filter(|_| first).cloned().collect())
        })
        .collect();
    Ok(checkpoint)
}

fn gpus(known: &Known) -> Result<Step, Fault> {
    let Some(demand) = &known.demand else { return Ok(Step::GetClaim) };
    let devices = demand.devices.iter().map(|device| {
        if known.node.mig.contains(&device.device) {
            let message = format!(
                "{} of node {} has MIG on, and only whole GPUs are served: switch MIG off (nvidia-smi -mig 0), or delete the \
                 pod so that its claim is given another GPU",
                device.device, device.pool
            );
            return Err(Fault::retryable(reason::NVML, message));
        }
        let uuid = known.node.gpus.get(&device.device).ok_or_else(|| {
            let message = format!(
                "{} of node {} is not there; NVML lists {} GPUs",
                device.device,
                device.pool,
                known.node.gpus.len()
            );
            Fault::retryable(reason::NVML, message)
        })?;
        Ok(prepared_device(device, vec![cdi::gpu_id(uuid)?]))
    });
    let devices = devices.collect::<Result<Vec<_>, Fault>>()?;
    if let Err(missing) = known.node.toolkit.check(pool(demand), &devices) {
        return Ok(Step::AwaitToolkit(missing));
    }
    Ok(Step::Write(Checkpoint {
        claim: known.claim.clone(),
        driver: known.driver.to_owned(),
        state: State::Prepared,
        boot_id: known.node.boot_id.clone(),
        compute_domain: None,
        channel: None,
        cdi_token: None,
        devices,
    }))
}

fn prepared_device(device: &Allocated, cdi_ids: Vec<String>) -> PreparedDevice {
    PreparedDevice {
        request_names: device.request_names(),
        pool: device.pool.clone(),
        device: device.device.clone(),
        share_id: device.share_id.clone(),
        cdi_ids,
    }
}

fn pool_of(checkpoint: &Checkpoint) -> &str {
    checkpoint.devices.first().map_or("", |device| &device.pool)
}

fn pool(demand: &Demand) -> &str {
    demand.devices.first().map_or("", |device| &device.pool)
}

fn no_config(claim: &ClaimKey) -> Fault {
    Fault::permanent(reason::INVALID_CONFIG, format!("ResourceClaim {claim} names no ComputeDomain"))
}

/// One effect of undoing a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// Put what is on disk there as a tombstone: from here on the claim counts as undone.
    Bury,
    /// Remove this CDI file.
    RemoveCdi(String),
    /// Remove the checkpoint.
    Forget,
    /// Tell the ChannelAllocator that the claim does not use the ComputeDomain's channel any more.
    Leave {
        /// UID of the ComputeDomain.
        cd_uid: String,
    },
}

/// What Unprepare does, in this order, from local state alone.
///
/// The channel is left last: while anything of the claim is left on the node, its number must not be given away.
pub fn undo(on_disk: Option<&Checkpoint>) -> Vec<Undo> {
    let Some(checkpoint) = on_disk else { return Vec::new() };
    let mut effects = Vec::new();
    if checkpoint.state != State::Tombstone {
        effects.push(Undo::Bury);
    }
    if let Ok(Some(file)) = cdi::file(checkpoint) {
        effects.push(Undo::RemoveCdi(file.name));
    }
    effects.push(Undo::Forget);
    if let Some((cd, _)) = checkpoint.compute_domain.as_ref().zip(checkpoint.channel.as_ref()) {
        effects.push(Undo::Leave { cd_uid: cd.uid.clone() });
    }
    effects
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
