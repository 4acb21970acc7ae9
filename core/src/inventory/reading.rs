//! From what NVML answers to what it means.

use super::fabric::{FabricReading, gpu_fabric, node_fabric, other_cliques};
use super::trouble::{Trouble, action_words};
use super::{Access, Channels, Fabric, Gpu, Inventory};

/// All that was read of a node, as raw as NVML gives it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The GPUs that could be read, ordered by index.
    pub gpus: Vec<GpuReading>,
    /// The others.
    pub unreadable: Vec<Unreadable>,
    /// Version of the driver.
    pub driver_version: String,
    /// `1000 * major + 10 * minor`.
    pub cuda_driver_version: i32,
    /// What the kernel module says of channels.
    pub channels: Channels,
}

/// A GPU that NVML lists and says nothing of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// NVML index.
    pub index: u32,
    /// NVML says that it is lost: it has fallen off the bus.
    pub lost: bool,
    /// NVML's words.
    pub why: String,
}

/// One GPU, as raw as NVML gives it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuReading {
    /// NVML index.
    pub index: u32,
    /// Number of its device node, `/dev/nvidia<minor>`.
    pub minor: Option<u32>,
    /// `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// `nvmlBrandType_t`.
    pub brand: u32,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// NVML's spelling, upper case.
    pub pci_bus_id: String,
    /// Bytes.
    pub memory_bytes: u64,
    /// 0 on products without a baseboard.
    pub module_id: Option<u32>,
    /// What it says of the fabric.
    pub fabric: FabricReading,
    /// `nvmlDeviceGpuRecoveryAction_t`.
    pub recovery_action: u32,
    /// It is divided by MIG.
    pub mig: bool,
    /// NUMA node, by sysfs.
    pub numa_node: Option<u32>,
    /// `pci<domain>:<bus>` of its PCIe root, by sysfs.
    pub pcie_root: Option<String>,
}

/// The meaning of a reading by itself. The partition for `access` is the clique.
pub fn inventory(reading: &Reading, access: Access) -> Inventory {
    let gpus: Vec<Gpu> = reading.gpus.iter().map(|found| gpu(found, access)).collect();
    let unreadable = reading.unreadable.iter().map(|gpu| format!("GPU {} cannot be read: {}", gpu.index, gpu.why));
    let fabric = match unreadable.collect::<Vec<_>>().as_slice() {
        [] => node_fabric(&gpus),
        unreadable => Fabric::Unhealthy(unreadable.join("; ")),
    };
    let actions: Vec<String> = reading.gpus.iter().filter_map(recovery_action).collect();
    Inventory {
        gpus,
        fabric,
        driver_version: reading.driver_version.clone(),
        cuda_driver_version: format!(
            "{}.{}.0",
            reading.cuda_driver_version / 1000,
            reading.cuda_driver_version % 1000 / 10
        ),
        recovery_action: (!actions.is_empty()).then(|| actions.join("; ")),
        channels: reading.channels,
    }
}

fn gpu(reading: &GpuReading, access: Access) -> Gpu {
    Gpu {
        index: reading.index,
        minor: reading.minor.unwrap_or(reading.index),
        uuid: reading.uuid.clone(),
        product_name: reading.name.clone(),
        brand: brand(reading.brand).into(),
        architecture: architecture(reading.architecture).into(),
        compute_capability: format!("{}.{}.0", reading.compute_capability.0, reading.compute_capability.1),
        pci_bus_id: reading.pci_bus_id.to_lowercase(),
        memory_bytes: reading.memory_bytes,
        module_id: reading.module_id.filter(|id| *id != 0),
        mig: reading.mig,
        numa_node: reading.numa_node,
        pcie_root: reading.pcie_root.clone(),
        fabric: gpu_fabric(&reading.fabric, access),
        other_cliques: other_cliques(&reading.fabric, access),
        troubles: Trouble::of_action(reading.recovery_action).into_iter().collect(),
    }
}

fn recovery_action(gpu: &GpuReading) -> Option<String> {
    (gpu.recovery_action != 0).then(|| format!("GPU {}: {}", gpu.index, action_words(gpu.recovery_action)))
}

fn brand(brand: u32) -> &'static str {
    match brand {
        1 => "Quadro",
        2 => "Tesla",
        3 => "NVS",
        4 => "Grid",
        5 => "GeForce",
        6 => "Titan",
        7 => "NvidiaVApps",
        8 => "NvidiaVPC",
        9 => "NvidiaVCS",
        10 => "NvidiaVWS",
        11 => "NvidiaCloudGaming",
        12 => "QuadroRTX",
        13 => "NvidiaRTX",
        14 => "Nvidia",
        15 => "GeForceRTX",
        16 => "TitanRTX",
        _ => "Unknown",
    }
}

fn architecture(architecture: u32) -> &'static str {
    match architecture {
        2 => "Kepler",
        3 => "Maxwell",
        4 => "Pascal",
        5 => "Volta",
        6 => "Turing",
        7 => "Ampere",
        8 => "Ada Lovelace",
        9 => "Hopper",
        10 => "Blackwell",
        13 => "Rubin",
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_words() {
        let gpu = GpuReading {
            brand: 14,
            architecture: 10,
            compute_capability: (10, 0),
            pci_bus_id: "00000008:01:00.0".into(),
            module_id: Some(0),
            recovery_action: 5,
            ..GpuReading::default()
        };
        let reading = Reading { gpus: vec![gpu], cuda_driver_version: 13010, ..Reading::default() };
        let found = inventory(&reading, Access::default());
        assert_eq!(found.cuda_driver_version, "13.1.0");
        assert_eq!(found.gpus[0].architecture, "Blackwell");
        assert_eq!(found.gpus[0].compute_capability, "10.0.0");
        assert_eq!(found.gpus[0].module_id, None);
        assert!(found.recovery_action.unwrap().contains("IMEX domain"));
    }
}
