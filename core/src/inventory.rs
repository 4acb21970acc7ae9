//! What NVML says of a node, as plain data.

use crate::clique::CliqueId;

mod reading;

pub use reading::{FabricInfo, FabricReading, GpuReading, Reading, inventory};

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
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// NVML index.
    pub index: u32,
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
    /// What this GPU says of the fabric.
    pub fabric: Fabric,
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
