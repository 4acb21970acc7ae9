//! What NVML says of a node, as plain data.

use std::collections::BTreeMap;

use crate::clique::CliqueId;

mod access;
mod fabric;
mod notice;
mod reading;
mod survey;
mod trouble;
mod xid;

pub use access::Access;
pub use fabric::{FabricInfo, FabricReading};
pub use notice::Notice;
pub use reading::{GpuReading, Reading, Unreadable, inventory};
pub use survey::{GpuEvent, Happening, Survey};
pub use trouble::Trouble;
pub use xid::XidRecord;

/// The GPUs of a node and the state of its NVLink fabric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inventory {
    /// The GPUs, ordered by index.
    pub gpus: Vec<Gpu>,
    /// What all of them together say of the fabric.
    pub fabric: Fabric,
    /// Version of the NVIDIA driver.
    pub driver_version: String,
    /// CUDA version that the driver supports, `major.minor.0`.
    pub cuda_driver_version: String,
    /// What NVML says must be done, if anything: which GPU, and what.
    pub recovery_action: Option<String>,
    /// What the kernel module says of channels.
    pub channels: Channels,
}

impl Inventory {
    /// Whether this node has a channel to give, where its fabric asks for one.
    ///
    /// # Errors
    /// Why it has none. A count that is not known says nothing: claims wait for it.
    pub fn channels_usable(&self) -> Result<(), String> {
        match (&self.fabric, self.channels.count) {
            (Fabric::Ready(_), Some(count @ (0 | 1))) => Err(format!(
                "the NVIDIA kernel module has ImexChannelCount {count}, and channel 0 is never given away; load it with \
                 NVreg_ImexChannelCount of 2 or more, the same on all nodes of the clique (default 2048)"
            )),
            _ => Ok(()),
        }
    }
}

/// What the kernel module says below `/proc`; what it does not say now is none. A change means that it was loaded anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Character-device major.
    pub major: Option<u32>,
    /// Channels that it serves, channel 0 included.
    pub count: Option<u32>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// NVML index. It may change with the next start of the driver, when a GPU before it is gone.
    pub index: u32,
    /// Number of its device node, by which the device is named: it stays with the place on the board.
    pub minor: u32,
    /// `GPU-…`.
    pub uuid: String,
    /// For instance `NVIDIA GB200`.
    pub product_name: String,
    /// For instance `Nvidia`.
    pub brand: String,
    /// For instance `Blackwell`.
    pub architecture: String,
    /// `major.minor.0`.
    pub compute_capability: String,
    /// `dddddddd:bb:dd.f`, lower case.
    pub pci_bus_id: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Per-baseboard module id, if the product has a baseboard.
    pub module_id: Option<u32>,
    /// It is divided by MIG: as a whole it can be given to nobody.
    pub mig: bool,
    /// NUMA node, if there are several.
    pub numa_node: Option<u32>,
    /// `pci<domain>:<bus>` of its PCIe root.
    pub pcie_root: Option<String>,
    /// What this GPU says of the fabric.
    pub fabric: Fabric,
    /// Its partitions for the kinds of access that don't decide the clique.
    pub other_cliques: BTreeMap<Access, CliqueId>,
    /// Why it must not be given to anybody new.
    pub troubles: Vec<Trouble>,
}

impl Gpu {
    /// Why it must not be given to anybody new, in words; none if it may.
    pub fn trouble(&self) -> Option<String> {
        let mut said: Vec<String> = self.troubles.iter().map(ToString::to_string).collect();
        if self.mig {
            said.push("MIG is on, and only whole GPUs are served: switch MIG off (nvidia-smi -mig 0)".into());
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// State of the NVLink fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fabric {
    /// There is none: no GPUs, or GPUs without multi-node NVLink. Claims succeed without a channel.
    #[default]
    None,
    /// It is coming up; the text says what is awaited.
    Pending(String),
    /// It is up and healthy.
    Ready(CliqueId),
    /// It must not be used; the text says why.
    Unhealthy(String),
}
