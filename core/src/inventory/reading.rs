//! From what NVML answers to what it means.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::clique::CliqueId;

use super::{Fabric, Gpu, Inventory};

/// All that was read of a node, as raw as NVML gives it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The GPUs that could be read, ordered by index.
    pub gpus: Vec<GpuReading>,
    /// The others: which one, and why.
    pub unreadable: Vec<String>,
    /// Version of the driver.
    pub driver_version: String,
    /// `1000 * major + 10 * minor`.
    pub cuda_driver_version: i32,
}

/// One GPU, as raw as NVML gives it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuReading {
    /// NVML index.
    pub index: u32,
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
}

/// A GPU's fabric info.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FabricReading {
    /// The GPU or the driver has no such call.
    #[default]
    Unsupported,
    /// The call failed otherwise.
    Failed(String),
    /// The answer.
    Info(FabricInfo),
}

/// `nvmlGpuFabricInfo_v3_t`, or as much of it as an older driver gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricInfo {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// `nvmlReturn_t`, meaningful in state 3.
    pub status: u32,
    /// The NVLink cluster.
    pub cluster: Uuid,
    /// The partition within it.
    pub clique: u32,
    /// Bit fields; absent in the oldest layout.
    pub health_mask: Option<u32>,
    /// 0 unsupported, 1 healthy, 2 unhealthy, 3 limited capacity; absent in older layouts.
    pub health_summary: Option<u8>,
}

/// The meaning of a reading.
pub fn inventory(reading: &Reading) -> Inventory {
    let gpus: Vec<Gpu> = reading.gpus.iter().map(gpu).collect();
    let fabric = match reading.unreadable.as_slice() {
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
    }
}

fn gpu(reading: &GpuReading) -> Gpu {
    Gpu {
        index: reading.index,
        uuid: reading.uuid.clone(),
        product_name: reading.name.clone(),
        brand: brand(reading.brand).into(),
        architecture: architecture(reading.architecture).into(),
        compute_capability: format!("{}.{}.0", reading.compute_capability.0, reading.compute_capability.1),
        pci_bus_id: reading.pci_bus_id.to_lowercase(),
        memory_bytes: reading.memory_bytes,
        module_id: reading.module_id.filter(|id| *id != 0),
        fabric: gpu_fabric(&reading.fabric),
    }
}

fn gpu_fabric(reading: &FabricReading) -> Fabric {
    let info = match reading {
        FabricReading::Unsupported => return Fabric::None,
        FabricReading::Failed(why) => return Fabric::Unhealthy(format!("NVML cannot say: {why}")),
        FabricReading::Info(info) => info,
    };
    match info.state {
        0 => Fabric::None,
        1 => Fabric::Pending("the fabric manager has not begun to register the GPU".into()),
        2 => Fabric::Pending("the fabric manager is registering the GPU".into()),
        3 if info.status != 0 => {
            Fabric::Unhealthy(format!("registration with the fabric manager ended with NVML error {}", info.status))
        }
        // NVLink within one host: the registration is complete and names no cluster.
        3 if info.cluster.is_nil() => Fabric::None,
        3 => {
            let troubles = troubles(info);
            if troubles.is_empty() {
                Fabric::Ready(CliqueId { cluster: info.cluster, id: info.clique })
            } else {
                Fabric::Unhealthy(troubles.join(", "))
            }
        }
        state => Fabric::Unhealthy(format!("NVML reports fabric state {state}, which this version does not know")),
    }
}

/// What is wrong by the health mask and summary. A field of 0 is not supported; a summary of "limited capacity" alone
/// is usable.
fn troubles(info: &FabricInfo) -> Vec<String> {
    let mut troubles = Vec::new();
    let mask = info.health_mask.unwrap_or(0);
    let field = |shift: u32, width: u32| mask >> shift & ((1 << width) - 1);
    for (shift, text) in [
        (0, "NVLink bandwidth is degraded"),
        (2, "an NVLink route is being recovered"),
        (4, "an NVLink route is unhealthy"),
        (6, "an NVLink access time-out is being recovered"),
    ] {
        if field(shift, 2) == 1 {
            troubles.push(text.to_owned());
        }
    }
    match field(8, 4) {
        0 | 1 => {}
        2 => troubles.push("incorrect system GUID".into()),
        3 => troubles.push("incorrect chassis serial number".into()),
        4 => troubles.push("the GPU is in no partition".into()),
        5 => troubles.push("too few NVLinks".into()),
        6 => troubles.push("incompatible GPU firmware".into()),
        7 => troubles.push("invalid location".into()),
        8 => troubles.push("the GPU's state is invalid".into()),
        other => troubles.push(format!("incorrect configuration, code {other}")),
    }
    if field(12, 2) == 2 {
        troubles.push("no partition is assigned".into());
    }
    if troubles.is_empty() && info.health_summary == Some(2) {
        troubles.push("NVML sums its health up as unhealthy".into());
    }
    troubles
}

/// One node has one fabric: GPUs that differ mean that something is wrong, and the message names them.
fn node_fabric(gpus: &[Gpu]) -> Fabric {
    let mut unhealthy = Vec::new();
    let mut pending = Vec::new();
    let mut cliques: BTreeMap<Option<CliqueId>, Vec<u32>> = BTreeMap::new();
    for gpu in gpus {
        match &gpu.fabric {
            Fabric::None => cliques.entry(None).or_default().push(gpu.index),
            Fabric::Ready(clique) => cliques.entry(Some(*clique)).or_default().push(gpu.index),
            Fabric::Pending(what) => pending.push(format!("GPU {}: {what}", gpu.index)),
            Fabric::Unhealthy(why) => unhealthy.push(format!("GPU {}: {why}", gpu.index)),
        }
    }
    if !unhealthy.is_empty() {
        return Fabric::Unhealthy(unhealthy.join("; "));
    }
    if cliques.len() > 1 {
        let said = cliques.iter().map(|(clique, gpus)| {
            let clique = clique.map_or_else(|| "no clique".to_owned(), |clique| format!("clique {clique}"));
            format!("{} {clique}", name(gpus))
        });
        let said: Vec<String> = said.collect();
        return Fabric::Unhealthy(format!("the GPUs disagree about the clique: {}", said.join(", ")));
    }
    if !pending.is_empty() {
        return Fabric::Pending(pending.join("; "));
    }
    match cliques.into_keys().next().flatten() {
        Some(clique) => Fabric::Ready(clique),
        None => Fabric::None,
    }
}

fn name(gpus: &[u32]) -> String {
    let numbers: Vec<String> = gpus.iter().map(u32::to_string).collect();
    match gpus {
        [_] => format!("GPU {} says", numbers.join(" ")),
        _ => format!("GPUs {} say", numbers.join(" and ")),
    }
}

fn recovery_action(gpu: &GpuReading) -> Option<String> {
    let action = match gpu.recovery_action {
        0 => return None,
        1 => "reset the GPU".into(),
        2 => "reboot the node".into(),
        3 => "drain peer-to-peer traffic".into(),
        4 => "drain and reset the GPU".into(),
        5 => "recover the IMEX domain: end the jobs that hold imported memory".into(),
        6 => "reset the bus".into(),
        7 => "reboot the system".into(),
        other => format!("action {other}, which this version does not know"),
    };
    Some(format!("GPU {}: {action}", gpu.index))
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
        _ => "Unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing wrong, partition assigned.
    // One group a field of the mask.
    #[allow(clippy::unusual_byte_groupings)]
    const HEALTHY: u32 = 0b01_0001_10_10_10_10;

    fn cluster() -> Uuid {
        Uuid::parse_str("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11").unwrap()
    }

    fn info() -> FabricInfo {
        let (health_mask, health_summary) = (Some(HEALTHY), Some(1));
        FabricInfo { state: 3, status: 0, cluster: cluster(), clique: 7, health_mask, health_summary }
    }

    fn node(infos: impl IntoIterator<Item = FabricInfo>) -> Inventory {
        let gpu = |(index, info)| GpuReading { index, fabric: FabricReading::Info(info), ..GpuReading::default() };
        inventory(&Reading { gpus: (0..).zip(infos).map(gpu).collect(), ..Reading::default() })
    }

    fn unhealthy(fabric: Fabric) -> String {
        match fabric {
            Fabric::Unhealthy(why) => why,
            other => panic!("expected an unhealthy fabric, got {other:?}"),
        }
    }

    #[test]
    fn a_registered_and_healthy_node_is_in_its_clique() {
        let clique = CliqueId { cluster: cluster(), id: 7 };
        assert_eq!(node([info(); 4]).fabric, Fabric::Ready(clique));
        let old = FabricInfo { health_mask: None, health_summary: None, ..info() };
        assert_eq!(node([old]).fabric, Fabric::Ready(clique));
        let limited = FabricInfo { health_summary: Some(3), ..info() };
        assert_eq!(node([limited]).fabric, Fabric::Ready(clique));
        let unsupported = FabricInfo { health_mask: Some(0), health_summary: Some(0), ..info() };
        assert_eq!(node([unsupported]).fabric, Fabric::Ready(clique));
    }

    #[test]
    fn no_gpu_no_fabric() {
        assert_eq!(node([]).fabric, Fabric::None);
        assert_eq!(node([FabricInfo::default(); 2]).fabric, Fabric::None);
        let within_one_host = FabricInfo { cluster: Uuid::nil(), ..info() };
        assert_eq!(node([within_one_host]).fabric, Fabric::None);
    }

    #[test]
    fn a_registration_under_way_is_awaited() {
        for state in [1, 2] {
            assert!(matches!(node([info(), FabricInfo { state, ..info() }]).fabric, Fabric::Pending(_)));
        }
    }

    #[test]
    fn every_trouble_has_words() {
        for (info, words) in [
            (FabricInfo { status: 999, ..info() }, "NVML error 999"),
            (FabricInfo { health_mask: Some(HEALTHY & !0b11 | 1), ..info() }, "bandwidth"),
            (FabricInfo { health_mask: Some(HEALTHY & !(0b11 << 4) | 1 << 4), ..info() }, "route is unhealthy"),
            (FabricInfo { health_mask: Some(HEALTHY & !(0b1111 << 8) | 3 << 8), ..info() }, "chassis serial"),
            (FabricInfo { health_mask: Some(HEALTHY & !(0b11 << 12) | 2 << 12), ..info() }, "no partition is assigned"),
            (FabricInfo { health_summary: Some(2), ..info() }, "unhealthy"),
            (FabricInfo { state: 9, ..info() }, "state 9"),
        ] {
            let why = unhealthy(node([self::info(), info]).fabric);
            assert!(why.contains(words) && why.contains("GPU 1"), "{why}");
        }
    }

    #[test]
    fn gpus_that_disagree_are_named() {
        let why = unhealthy(node([info(), info(), FabricInfo { clique: 8, ..info() }]).fabric);
        assert!(why.contains("GPUs 0 and 1 say clique") && why.contains("GPU 2 says clique"), "{why}");
        let why = unhealthy(node([info(), FabricInfo::default()]).fabric);
        assert!(why.contains("GPU 1 says no clique"), "{why}");
    }

    #[test]
    fn a_gpu_that_cannot_be_read_makes_the_fabric_unusable() {
        let reading = Reading { unreadable: vec!["GPU 3: GPU is lost".into()], ..Reading::default() };
        assert_eq!(inventory(&reading).fabric, Fabric::Unhealthy("GPU 3: GPU is lost".into()));
    }

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
        let found = inventory(&Reading { gpus: vec![gpu], cuda_driver_version: 13010, ..Reading::default() });
        assert_eq!(found.cuda_driver_version, "13.1.0");
        assert_eq!(found.gpus[0].architecture, "Blackwell");
        assert_eq!(found.gpus[0].compute_capability, "10.0.0");
        assert_eq!(found.gpus[0].module_id, None);
        assert!(found.recovery_action.unwrap().contains("IMEX domain"));
    }
}
