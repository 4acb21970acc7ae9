//! What the fake library reports, as a JSON file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Environment variable with the path of the scenario.
pub const SCENARIO_ENV: &str = "HEDDLE_FAKE_NVML";

/// A node's driver and GPUs.
///
/// Every field has a default, so that a scenario in a test names only what it is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Version of the driver.
    pub driver_version: String,
    /// `1000 * major + 10 * minor`, as NVML gives it.
    pub cuda_driver_version: i32,
    /// The GPUs by index.
    pub gpus: Vec<Gpu>,
    /// The newest layout of the fabric info that the driver knows: 4, 3, 2, or 1 for a driver without
    /// `nvmlDeviceGetGpuFabricInfoV`.
    pub fabric_info: u32,
    /// Return codes forced upon calls, by symbol: `{"nvmlInit_v2": 9}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fail: BTreeMap<String, u32>,
    /// Events; an event set is given those whose `sequence` is above the highest one at its creation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gpu {
    /// `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// `nvmlBrandType_t`.
    pub brand: u32,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// CUDA compute capability.
    pub compute_capability: (i32, i32),
    /// PCI domain.
    pub pci_domain: u32,
    /// PCI bus.
    pub pci_bus: u32,
    /// PCI device.
    pub pci_device: u32,
    /// PCI device id in the upper, vendor id in the lower 16 bits.
    pub pci_device_id: u32,
    /// Bytes.
    pub memory_bytes: u64,
    /// Number of the device node; the index where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// Per-baseboard module id.
    pub module_id: u32,
    /// Whether MIG is on; absent where the GPU knows no MIG.
    pub mig: Option<bool>,
    /// What it says of the NVLink fabric.
    pub fabric: FabricInfo,
    /// `nvmlDeviceGpuRecoveryAction_t`: 0 none … 5 recover IMEX domain.
    pub recovery_action: u32,
    /// Return codes forced upon calls about this GPU, by symbol.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fail: BTreeMap<String, u32>,
}

/// What a GPU says of the NVLink fabric, as raw as NVML gives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FabricInfo {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// `nvmlReturn_t`, meaningful in state 3.
    pub status: u32,
    /// With hyphens.
    pub cluster_uuid: String,
    /// The partition for access by unicast pointer, and the only one before the fourth layout.
    pub clique_id: u32,
    /// Further ones: kind of access and id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_cliques: Vec<(u8, u32)>,
    /// Bit fields.
    pub health_mask: u32,
    /// 0 unsupported, 1 healthy, 2 unhealthy, 3 limited capacity.
    pub health_summary: u8,
}

/// Something that an event set hears of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Event {
    /// Orders events; each is given once.
    pub sequence: u64,
    /// Index of the GPU.
    pub gpu: u32,
    /// `nvmlEventType…`: 0x8 XID, 0x8000 recovery action changed.
    pub kind: u64,
    /// With an XID its number.
    pub data: u64,
}

/// A mask in which nothing is wrong: every "bad" field says false, the configuration none, the partition assigned.
pub const HEALTHY_MASK: u32 = 2 | 2 << 2 | 2 << 4 | 2 << 6 | 1 << 8 | 1 << 12;

impl Default for Scenario {
    fn default() -> Self {
        Self {
            driver_version: "595.71.05".into(),
            cuda_driver_version: 13000,
            gpus: Vec::new(),
            fabric_info: 4,
            fail: BTreeMap::new(),
            events: Vec::new(),
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            name: "NVIDIA GB200".into(),
            brand: 14,
            architecture: 10,
            compute_capability: (10, 0),
            pci_domain: 0,
            pci_bus: 1,
            pci_device: 0,
            pci_device_id: 0x2941_10de,
            memory_bytes: 189_471 << 20,
            minor: None,
            module_id: 0,
            mig: Some(false),
            fabric: FabricInfo::default(),
            recovery_action: 0,
            fail: BTreeMap::new(),
        }
    }
}

impl Default for FabricInfo {
    fn default() -> Self {
        Self {
            state: 0,
            status: 0,
            cluster_uuid: "00000000-0000-0000-0000-000000000000".into(),
            clique_id: 0,
            more_cliques: Vec::new(),
            health_mask: HEALTHY_MASK,
            health_summary: 1,
        }
    }
}

impl Scenario {
    /// A GB200 compute tray: `gpus` GPUs whose fabric is up in the clique `<cluster uuid>.<id>`, with UUIDs that
    /// follow from `seed` (for instance the node's name) alone. Without a clique there is no multi-node NVLink.
    pub fn gb200(seed: &str, gpus: u32, clique: Option<(&str, u32)>) -> Self {
        let fabric = match clique {
            Some((cluster, id)) => {
                FabricInfo { state: 3, cluster_uuid: cluster.to_owned(), clique_id: id, ..FabricInfo::default() }
            }
            None => FabricInfo { health_mask: 0, health_summary: 0, ..FabricInfo::default() },
        };
        // A tray has two Grace CPUs with two GPUs each, and a PCI domain per GPU.
        let gpu = |index: u32| Gpu {
            uuid: gpu_uuid(seed, index),
            pci_domain: 0x8 + (index & 1) + (index >> 1) * 0x10,
            module_id: index + 1,
            fabric: fabric.clone(),
            ..Gpu::default()
        };
        Self { gpus: (0..gpus).map(gpu).collect(), ..Self::default() }
    }

    /// Reads a scenario.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// Puts the scenario in place; a library that has `path` open sees either the old one or all of the new one.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let temporary = path.with_extension("json.new");
        std::fs::write(&temporary, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(&temporary, path)
    }
}

/// `GPU-` and a UUID that follows from the seed (FNV-1a, twice).
fn gpu_uuid(seed: &str, index: u32) -> String {
    let hash = |salt: u8| {
        let text = seed.bytes().chain([0, salt]).chain(index.to_le_bytes());
        text.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let (high, low) = (hash(1), hash(2));
    format!(
        "GPU-{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0xfff,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trays_have_stable_and_distinct_gpus() {
        let tray = Scenario::gb200("node-1", 4, Some(("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11", 7)));
        assert_eq!(tray, Scenario::gb200("node-1", 4, Some(("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11", 7))));
        let other = Scenario::gb200("node-2", 4, None);
        let uuids: std::collections::BTreeSet<_> = tray.gpus.iter().chain(&other.gpus).map(|gpu| &gpu.uuid).collect();
        assert_eq!(uuids.len(), 8);
        assert_eq!(tray.gpus[0].uuid.len(), "GPU-".len() + 36);
    }

    #[test]
    fn a_test_names_only_what_it_is_about() {
        let scenario: Scenario =
            serde_json::from_str(r#"{"gpus": [{"uuid": "GPU-1"}], "fail": {"nvmlInit_v2": 9}}"#).unwrap();
        assert_eq!(scenario.gpus[0].name, "NVIDIA GB200");
        assert!(serde_json::from_str::<Scenario>(r#"{"gpu": []}"#).is_err());
    }
}
