//! What a person should read of a node's GPUs, as Events on the Node.

use super::xid;
use super::{Fabric, Gpu, Inventory};

/// Something that has become different.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// CamelCase reason of the Event.
    pub reason: &'static str,
    /// What happened, to what, what to do.
    pub note: String,
    /// Somebody has to do something.
    pub warning: bool,
}

impl Notice {
    fn warning(reason: &'static str, note: String) -> Self {
        Self { reason, note, warning: true }
    }

    fn normal(reason: &'static str, note: String) -> Self {
        Self { reason, note, warning: false }
    }
}

/// How people find a GPU.
pub(super) fn name(gpu: &Gpu) -> String {
    format!("GPU {} ({}, PCI {})", gpu.index, gpu.uuid, gpu.pci_bus_id)
}

/// An XID that is no fault of the GPU's.
pub(super) fn harmless_xid(gpu: &str, xid: u64) -> Notice {
    let xid = xid::name(xid);
    Notice::normal(
        "GpuXid",
        format!("{gpu}: {xid}: an application's fault, or one that is set to be ignored; the GPU stays in use"),
    )
}

/// What has changed. The first inventory of an agent is news only where something is wrong.
pub(super) fn between(before: Option<&Inventory>, now: &Inventory) -> Vec<Notice> {
    let mut notices = Vec::new();
    for gpu in &now.gpus {
        let earlier = before.and_then(|before| before.gpus.iter().find(|other| other.uuid == gpu.uuid));
        let was = earlier.and_then(Gpu::trouble);
        match gpu.trouble() {
            Some(trouble) if was.as_ref() != Some(&trouble) => {
                notices.push(Notice::warning(
                    "GpuUnhealthy",
                    format!("{}: {trouble}; it is given to no new claim", name(gpu)),
                ));
            }
            None if was.is_some() => {
                notices.push(Notice::normal("GpuHealthy", format!("{} can be used again", name(gpu))));
            }
            _ => {}
        }
    }
    notices.extend(fabric(before.map(|before| &before.fabric), &now.fabric));
    let usable = |inventory: &Inventory| inventory.channels_usable();
    if let Err(why) = usable(now)
        && before.is_none_or(|before| usable(before).is_ok())
    {
        notices.push(Notice::warning("NoImexChannels", why));
    }
    notices
}

fn fabric(before: Option<&Fabric>, now: &Fabric) -> Option<Notice> {
    match (before, now) {
        (Some(before), now) if before == now => None,
        (_, Fabric::Unhealthy(why)) => {
            Some(Notice::warning("FabricUnhealthy", format!("the NVLink fabric must not be used: {why}")))
        }
        (Some(Fabric::Unhealthy(_)), Fabric::Ready(clique)) => {
            Some(Notice::normal("FabricHealthy", format!("the NVLink fabric can be used again, in clique {clique}")))
        }
        (Some(Fabric::Ready(before)), Fabric::Ready(clique)) => {
            let note = format!(
                "the node has moved from clique {before} to clique {clique}: its claims hold channels of the old one"
            );
            Some(Notice::warning("CliqueChanged", note))
        }
        _ => None,
    }
}
