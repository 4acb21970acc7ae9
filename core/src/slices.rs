//! ResourceSlices of a node: what should be published, and the writes that lead there.
//!
//! One pool a driver, named after the node, in one slice: a node has at most 31 slots and far fewer than 128 GPUs.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    Device, DeviceAttribute, DeviceCapacity, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::api::DomainKind;
use crate::inventory::{Fabric, Gpu, Inventory};
use crate::names;

/// Longest string or version that an attribute may have, in bytes.
const MAX_ATTRIBUTE: usize = 64;

/// The slots of a node. Without NVLink fabric there are slots too; they give no channel.
///
/// `fabricHealthy` says that there is a fabric and that it may be used.
pub fn slots(count: u32, fabric: &Fabric, kind: Option<DomainKind>) -> Vec<Device> {
    (0..count.min(names::MAX_SLOTS))
        .map(|id| {
            let mut attributes = BTreeMap::from([
                ("type".to_owned(), text("channel")),
                ("id".to_owned(), DeviceAttribute { int: Some(id.into()), ..DeviceAttribute::default() }),
                ("fabricHealthy".to_owned(), flag(matches!(fabric, Fabric::Ready(_)))),
            ]);
            if let Fabric::Ready(clique) = fabric {
                attributes.insert("clique".to_owned(), text(&clique.to_string()));
            }
            if let Some(kind) = kind {
                attributes.insert("imexDomain".to_owned(), text(&format!("{kind:?}")));
            }
            Device { name: slot_name(id), attributes: Some(attributes), ..Device::default() }
        })
        .collect()
}

/// Says of slots that the node's IMEX daemon is the host's, so that exclusive ComputeDomains pass them by.
pub fn mark_host_managed(slots: &mut [Device]) {
    for slot in slots {
        slot.attributes.get_or_insert_default().insert(names::HOST_MANAGED.to_owned(), flag(true));
    }
}

/// The selector, in CEL, of slots that are not [marked so](mark_host_managed).
pub fn not_host_managed() -> String {
    format!("!('{}' in device.attributes['{}'])", names::HOST_MANAGED, names::DRIVER)
}

/// Device name of a slot.
pub fn slot_name(id: u32) -> String {
    format!("slot-{id}")
}

/// Whether a device of this name is a slot of some node.
pub fn is_slot(device: &str) -> bool {
    (0..names::MAX_SLOTS).any(|id| slot_name(id) == device)
}

/// Device name of a GPU.
pub fn gpu_name(gpu: &Gpu) -> String {
    format!("gpu-{}", gpu.minor)
}

/// Whether a device of this name is a GPU of some node.
pub fn is_gpu(device: &str) -> bool {
    let minor = device.strip_prefix("gpu-").and_then(|minor| minor.parse::<u32>().ok());
    minor.is_some_and(|minor| format!("gpu-{minor}") == device)
}

/// The GPUs of a node, with the attributes that selectors written for the existing driver use. One that must not be
/// given to anybody new is tainted; one that is divided by MIG is no whole GPU and is left out.
pub fn gpus(inventory: &Inventory) -> Vec<Device> {
    inventory.gpus.iter().filter(|gpu| !gpu.mig).map(|gpu| gpu_device(inventory, gpu)).collect()
}

/// Taints slots, so that no new claim is given one and their number stays: an autoscaler takes a node whose devices go for
/// one that is not ready.
pub fn taint_slots(slots: &mut [Device], reason: &str) {
    for slot in slots {
        slot.taints = Some(vec![no_schedule(names::SLOT_TAINT, Some(reason.to_owned()))]);
    }
}

/// What is published on a server without device taints, before Kubernetes 1.36: only what can be used.
pub fn withdraw_tainted(devices: &mut Vec<Device>) {
    devices.retain(|device| device.taints.is_none());
}

/// Claims that hold the device keep it: only the scheduler is told.
fn no_schedule(key: &str, value: Option<String>) -> DeviceTaint {
    DeviceTaint { key: key.to_owned(), value, effect: "NoSchedule".to_owned(), time_added: None }
}

fn gpu_device(inventory: &Inventory, gpu: &Gpu) -> Device {
    let mut attributes = BTreeMap::from([
        ("type".to_owned(), text("gpu")),
        ("uuid".to_owned(), text(&gpu.uuid)),
        ("productName".to_owned(), text(&gpu.product_name)),
        ("brand".to_owned(), text(&gpu.brand)),
        ("architecture".to_owned(), text(&gpu.architecture)),
    ]);
    for (name, found) in [
        ("cudaComputeCapability", &gpu.compute_capability),
        ("driverVersion", &inventory.driver_version),
        ("cudaDriverVersion", &inventory.cuda_driver_version),
    ] {
        if let Some(version) = semantic_version(found) {
            attributes
                .insert(name.to_owned(), DeviceAttribute { version: Some(version), ..DeviceAttribute::default() });
        }
    }
    if let Some(address) = pci_address(&gpu.pci_bus_id) {
        attributes.insert("resource.kubernetes.io/pciBusID".to_owned(), text(&address));
    }
    if let Fabric::Ready(clique) = &gpu.fabric {
        attributes.insert("clique".to_owned(), text(&clique.to_string()));
    }
    if let Some(id) = gpu.module_id {
        let id = DeviceAttribute { int: Some(id.into()), ..DeviceAttribute::default() };
        attributes.insert("moduleID".to_owned(), id);
    }
    for (access, clique) in &gpu.other_cliques {
        attributes.insert(access.attribute().to_owned(), text(&clique.to_string()));
    }
    if let Some(root) = &gpu.pcie_root {
        attributes.insert("resource.kubernetes.io/pcieRoot".to_owned(), text(root));
    }
    if let Some(node) = gpu.numa_node {
        let node = DeviceAttribute { int: Some(node.into()), ..DeviceAttribute::default() };
        attributes.insert("resource.kubernetes.io/numaNode".to_owned(), node);
    }
    attributes.retain(|_, value| value.string.as_deref() != Some(""));
    let memory = DeviceCapacity { value: binary_quantity(gpu.memory_bytes), ..DeviceCapacity::default() };
    Device {
        name: gpu_name(gpu),
        taints: (!gpu.troubles.is_empty()).then(|| {
            let taints = gpu.troubles.iter().map(|trouble| no_schedule(trouble.key(), trouble.value()));
            taints.collect()
        }),
        attributes: Some(attributes),
        capacity: Some(BTreeMap::from([("memory".to_owned(), memory)])),
        ..Device::default()
    }
}

fn text(value: &str) -> DeviceAttribute {
    let mut end = value.len().min(MAX_ATTRIBUTE);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    DeviceAttribute { string: Some(value[..end].to_owned()), ..DeviceAttribute::default() }
}

fn flag(value: bool) -> DeviceAttribute {
    DeviceAttribute { bool: Some(value), ..DeviceAttribute::default() }
}

/// NVIDIA's versions (`580.65.06`) have leading zeroes and sometimes two parts; the API server takes three plain
/// numbers.
fn semantic_version(text: &str) -> Option<String> {
    let mut parts = text.split('.').map(|part| part.parse::<u32>());
    let mut next = || parts.next().transpose().ok().map(|part| part.unwrap_or(0));
    let (major, minor, patch) = (next()?, next()?, next()?);
    (!text.is_empty()).then(|| format!("{major}.{minor}.{patch}"))
}

/// From NVML's eight digits of domain to the four that sysfs and the standard attribute use.
fn pci_address(text: &str) -> Option<String> {
    let (domain, rest) = text.split_once(':')?;
    Some(format!("{:04x}:{}", u32::from_str_radix(domain, 16).ok()?, rest.to_lowercase()))
}

/// As the API server spells it: another spelling would come back changed, and look like a change for ever.
fn binary_quantity(bytes: u64) -> Quantity {
    let units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let (mut value, mut unit) = (bytes, 0);
    while value != 0 && value % 1024 == 0 && unit + 1 < units.len() {
        value /= 1024;
        unit += 1;
    }
    Quantity(format!("{value}{}", units[unit]))
}

/// A write on the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Make this slice.
    Create(ResourceSlice),
    /// Put this in place of the slice of its name, guarded by its resourceVersion.
    Update(ResourceSlice),
    /// Remove this slice, guarded by both.
    Delete {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// The version that was looked at.
        resource_version: String,
    },
}

/// The writes that make `devices` the one pool of `driver` on `node`; none if it is that already.
///
/// What is left over goes first: consumers skip a pool while slices of it contradict each other.
pub fn plan<'a>(
    existing: impl Iterator<Item = &'a ResourceSlice> + Clone,
    driver: &str,
    node: &str,
    devices: &[Device],
) -> Vec<Change> {
    let ours = || {
        existing.clone().filter(|slice| slice.spec.driver == driver && slice.spec.node_name.as_deref() == Some(node))
    };
    let kept = ours()
        .filter(|slice| slice.spec.pool.name == node && !devices.is_empty())
        .max_by_key(|slice| (slice.spec.pool.generation, std::cmp::Reverse(slice.metadata.name.clone())));
    let surplus: Vec<_> =
        ours().filter(|slice| kept.is_none_or(|kept| kept.metadata.name != slice.metadata.name)).collect();
    let newest = ours().map(|slice| slice.spec.pool.generation).max();
    let mut changes: Vec<_> = surplus
        .iter()
        .map(|slice| Change::Delete {
            name: slice.metadata.name.clone().unwrap_or_default(),
            uid: slice.metadata.uid.clone().unwrap_or_default(),
            resource_version: slice.metadata.resource_version.clone().unwrap_or_default(),
        })
        .collect();
    if devices.is_empty() {
        return changes;
    }
    let Some(kept) = kept else {
        let generation = newest.map_or(1, |newest| newest + 1);
        changes.push(Change::Create(ResourceSlice {
            metadata: ObjectMeta { generate_name: Some(format!("0-{driver}-{node}-")), ..ObjectMeta::default() },
            spec: spec(driver, node, devices, generation),
        }));
        return changes;
    };
    // One slice that changes alone is read whole or not at all; with others about, readers need a new generation.
    let alone = surplus.is_empty() && kept.spec.pool.resource_slice_count == 1;
    let generation = kept.spec.pool.generation + i64::from(!alone);
    let mut wanted = spec(driver, node, devices, generation);
    keep_times(&mut wanted, &kept.spec);
    if wanted != kept.spec {
        changes.push(Change::Update(ResourceSlice { metadata: kept.metadata.clone(), spec: wanted }));
    }
    changes
}

/// A taint that stays keeps its time, which the server has set.
fn keep_times(wanted: &mut ResourceSliceSpec, stored: &ResourceSliceSpec) {
    for device in wanted.devices.iter_mut().flatten() {
        let same = stored.devices.iter().flatten().find(|other| other.name == device.name);
        let stored = same.and_then(|device| device.taints.as_deref()).unwrap_or_default();
        for taint in device.taints.iter_mut().flatten().filter(|taint| taint.time_added.is_none()) {
            let is_it = |other: &&DeviceTaint| {
                (&other.key, &other.value, &other.effect) == (&taint.key, &taint.value, &taint.effect)
            };
            taint.time_added = stored.iter().find(is_it).and_then(|other| other.time_added.clone());
        }
    }
}

fn spec(driver: &str, node: &str, devices: &[Device], generation: i64) -> ResourceSliceSpec {
    ResourceSliceSpec {
        driver: driver.to_owned(),
        node_name: Some(node.to_owned()),
        pool: ResourcePool { name: node.to_owned(), generation, resource_slice_count: 1 },
        devices: Some(devices.to_vec()),
        ..ResourceSliceSpec::default()
    }
}

/// Makes the Node the owner of a slice: slices go when it goes.
pub fn owner_reference(node: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Access, Trouble};

    fn clique() -> Fabric {
        Fabric::Ready("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.4294967295".parse().unwrap())
    }

    fn plan_all(existing: &[ResourceSlice], driver: &str, devices: &[Device]) -> Vec<Change> {
        plan(existing.iter(), driver, "n1", devices)
    }

    /// An API server that stores what it is told.
    fn apply(slices: &mut Vec<ResourceSlice>, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Create(mut slice) => {
                    let n = slices.len();
                    slice.metadata.name = Some(format!("{}{n}", slice.metadata.generate_name.clone().unwrap()));
                    slice.metadata.uid = Some(format!("uid-{n}"));
                    slice.metadata.resource_version = Some("1".into());
                    slices.push(slice);
                }
                Change::Update(slice) => {
                    let name = slice.metadata.name.clone();
                    *slices.iter_mut().find(|old| old.metadata.name == name).unwrap() = slice;
                }
                Change::Delete { name, .. } => slices.retain(|slice| slice.metadata.name.as_ref() != Some(&name)),
            }
        }
    }

    fn slice(name: &str, driver: &str, node: &str, pool: &str, generation: i64, devices: &[Device]) -> ResourceSlice {
        let mut slice = ResourceSlice {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            spec: spec(driver, node, devices, generation),
        };
        slice.spec.pool.name = pool.into();
        slice
    }

    #[test]
    fn slots_say_where_they_lead() {
        let devices = slots(16, &clique(), Some(DomainKind::Shared));
        assert_eq!(devices.len(), 16);
        assert_eq!(
            serde_json::to_value(&devices[3]).unwrap(),
            serde_json::json!({"name": "slot-3", "attributes": {
                "type": {"string": "channel"}, "id": {"int": 3}, "fabricHealthy": {"bool": true},
                "clique": {"string": "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.4294967295"},
                "imexDomain": {"string": "Shared"}}})
        );
        let without = slots(1, &Fabric::None, None);
        let attributes = without[0].attributes.as_ref().unwrap();
        assert_eq!(attributes["fabricHealthy"].bool, Some(false));
        assert!(!attributes.contains_key("clique"));
        assert_eq!(slots(500, &clique(), None).len(), 31);
        let mut marked = slots(1, &clique(), None);
        mark_host_managed(&mut marked);
        assert_eq!(marked[0].attributes.as_ref().unwrap()["hostManaged"].bool, Some(true));
    }

    #[test]
    fn dcgm_exporter_gpus_have_the_attributes_that_selectors_use() {
        let multicast = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.5".parse().unwrap();
        let inventory = Inventory {
            gpus: vec![Gpu {
                index: 1,
                minor: 2,
                uuid: "GPU-6d3f".into(),
                product_name: "NVIDIA GB200".into(),
                brand: "Nvidia".into(),
                architecture: "Blackwell".into(),
                compute_capability: "10.0.0".into(),
                pci_bus_id: "00000008:01:00.0".into(),
                memory_bytes: 189 << 30,
                module_id: Some(3),
                numa_node: Some(1),
                pcie_root: Some("pci0008:00".into()),
                fabric: clique(),
                other_cliques: [(Access::MulticastPointer, multicast)].into(),
                ..Gpu::default()
            }],
            fabric: clique(),
            driver_version: "580.65.06".into(),
            cuda_driver_version: "13.0".into(),
            ..Inventory::default()
        };
        assert_eq!(
            serde_json::to_value(gpus(&inventory)).unwrap(),
            serde_json::json!([{"name": "gpu-2", "capacity": {"memory": {"value": "189Gi"}}, "attributes": {
                "type": {"string": "gpu"}, "uuid": {"string": "GPU-6d3f"}, "productName": {"string": "NVIDIA GB200"},
                "brand": {"string": "Nvidia"}, "architecture": {"string": "Blackwell"},
                "cudaComputeCapability": {"version": "10.0.0"}, "driverVersion": {"version": "580.65.6"},
                "cudaDriverVersion": {"version": "13.0.0"},
                "resource.kubernetes.io/pciBusID": {"string": "0008:01:00.0"},
                "resource.kubernetes.io/pcieRoot": {"string": "pci0008:00"},
                "resource.kubernetes.io/numaNode": {"int": 1},
                "cliqueMulticastPointer": {"string": "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.5"},
                "clique": {"string": "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.4294967295"}, "moduleID": {"int": 3}}}])
        );
    }

    #[test]
    fn what_the_hardware_does_not_say_is_left_out() {
        let inventory =
            Inventory { gpus: vec![Gpu::default()], driver_version: "unknown".into(), ..Inventory::default() };
        let device = &gpus(&inventory)[0];
        assert_eq!(device.attributes.as_ref().unwrap().keys().collect::<Vec<_>>(), ["type"]);
        let long = Gpu { product_name: "\u{e9}".repeat(60), ..Gpu::default() };
        let device = &gpus(&Inventory { gpus: vec![long], ..Inventory::default() })[0];
        assert_eq!(device.attributes.as_ref().unwrap()["productName"].string.as_ref().unwrap().len(), 64);
    }

    #[test]
    fn a_gpu_in_trouble_is_tainted_and_one_with_mig_left_out() {
        let sick = Gpu {
            troubles: vec![Trouble::Xids([48, 79].into()), Trouble::Lost("GPU is lost".into())],
            ..Gpu::default()
        };
        let mig = Gpu { minor: 1, mig: true, ..Gpu::default() };
        let well = Gpu { minor: 2, ..Gpu::default() };
        let mut devices = gpus(&Inventory { gpus: vec![sick, mig, well], ..Inventory::default() });
        let names = |devices: &[Device]| devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&devices), ["gpu-0", "gpu-2"]);
        assert_eq!(
            serde_json::to_value(&devices[0].taints).unwrap(),
            serde_json::json!([{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"},
                {"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}])
        );
        withdraw_tainted(&mut devices);
        assert_eq!(names(&devices), ["gpu-2"]);
    }

    #[test]
    fn a_taint_that_stays_is_no_change_whatever_time_the_server_gave_it() {
        let mut devices = slots(4, &clique(), None);
        taint_slots(&mut devices, "DaemonNotReady");
        let mut slices = vec![];
        apply(&mut slices, plan_all(&[], names::DRIVER, &devices));
        for device in slices[0].spec.devices.iter_mut().flatten() {
            let time = serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
            device.taints.as_mut().unwrap()[0].time_added = Some(time);
        }
        assert!(plan_all(&slices, names::DRIVER, &devices).is_empty());
        taint_slots(&mut devices, "FabricUnhealthy");
        let changes = plan_all(&slices, names::DRIVER, &devices);
        assert!(matches!(changes.as_slice(), [Change::Update(slice)]
            if slice.spec.devices.as_ref().unwrap()[0].taints.as_ref().unwrap()[0].time_added.is_none()));
        assert!(matches!(plan_all(&slices, names::DRIVER, &slots(4, &clique(), None)).as_slice(), [Change::Update(_)]));
    }

    #[test]
    fn memory_is_spelt_as_the_api_server_spells_it() {
        for (bytes, text) in [(0, "0"), (1023, "1023"), (1024, "1Ki"), (1 << 40, "1Ti"), (196_608 << 20, "192Gi")] {
            assert_eq!(binary_quantity(bytes).0, text);
        }
    }

    #[test]
    fn nothing_is_written_when_nothing_changes() {
        let devices = slots(16, &clique(), Some(DomainKind::Shared));
        let mut slices = vec![];
        apply(&mut slices, plan_all(&[], names::DRIVER, &devices));
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0].spec.pool, ResourcePool { name: "n1".into(), generation: 1, resource_slice_count: 1 });
        assert!(plan_all(&slices, names::DRIVER, &devices).is_empty());
    }

    #[test]
    fn one_changed_slice_keeps_its_generation() {
        let mut slices = vec![];
        apply(&mut slices, plan_all(&[], names::DRIVER, &slots(16, &clique(), Some(DomainKind::Shared))));
        let changed = slots(16, &clique(), Some(DomainKind::Exclusive));
        let changes = plan_all(&slices, names::DRIVER, &changed);
        assert!(matches!(changes.as_slice(), [Change::Update(slice)] if slice.spec.pool.generation == 1
            && slice.metadata.resource_version.as_deref() == Some("1")));
    }

    #[test]
    fn case_37_wiped_slices_are_made_again_and_withdrawn_ones_are_not() {
        let devices = slots(16, &clique(), None);
        assert!(matches!(plan_all(&[], names::DRIVER, &devices).as_slice(), [Change::Create(_)]));
        assert!(plan_all(&[], names::DRIVER, &[]).is_empty());
        let mut slices = vec![];
        apply(&mut slices, plan_all(&[], names::DRIVER, &devices));
        assert!(matches!(
            plan_all(&slices, names::DRIVER, &[]).as_slice(),
            [Change::Delete { uid, resource_version, .. }] if uid == "uid-0" && resource_version == "1"
        ));
    }

    #[test]
    fn slices_of_others_are_left_alone() {
        let devices = slots(1, &clique(), None);
        let others = [
            slice("a", names::GPU_DRIVER, "n1", "n1", 7, &devices),
            slice("b", names::DRIVER, "n2", "n2", 7, &devices),
        ];
        let changes = plan_all(&others, names::DRIVER, &devices);
        assert!(matches!(changes.as_slice(), [Change::Create(slice)] if slice.spec.pool.generation == 1));
    }

    proptest::proptest! {
        /// From any set of slices, one pass leads to one slice of the newest generation, and a second writes nothing.
        #[test]
        fn one_pass_is_enough(found in proptest::collection::vec((0..3usize, 0i64..4, 0u32..4, 1i64..3), 0..5),
                              wanted in 0u32..4) {
            let mut slices: Vec<_> = found.iter().enumerate().map(|(i, (pool, generation, count, slice_count))| {
                let pool = ["n1", "n1", "channels"][*pool];
                let devices = slots(*count, &clique(), None);
                let mut slice = slice(&format!("s{i}"), names::DRIVER, "n1", pool, *generation, &devices);
                slice.spec.pool.resource_slice_count = *slice_count;
                slice
            }).collect();
            let before = slices.clone();
            let devices = slots(wanted, &clique(), None);
            let changes = plan_all(&slices, names::DRIVER, &devices);
            apply(&mut slices, changes);
            proptest::prop_assert_eq!(slices.len(), usize::from(wanted > 0));
            for slice in &slices {
                let newest = before.iter().filter(|s| s.spec.pool.name == "n1").map(|s| s.spec.pool.generation).max();
                proptest::prop_assert!(newest.is_none_or(|newest| slice.spec.pool.generation >= newest));
                proptest::prop_assert_eq!(slice.spec.devices.as_ref(), Some(&devices));
            }
            proptest::prop_assert!(plan_all(&slices, names::DRIVER, &devices).is_empty());
        }
    }
}
