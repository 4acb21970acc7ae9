//! What GPUs say of their NVLink fabric, and what that means for the node.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Access, Fabric, Gpu};
use crate::clique::CliqueId;

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

/// `nvmlGpuFabricInfo_v4_t`, or as much of it as an older driver gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricInfo {
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// `nvmlReturn_t`, meaningful in state 3.
    pub status: u32,
    /// The NVLink cluster.
    pub cluster: Uuid,
    /// The partitions within it: kind of access and id, in the driver's order. Before the fourth layout there was one,
    /// and NVIDIA's header says that it is the first of kind 0.
    pub cliques: Vec<(u8, u32)>,
    /// Bit fields; absent in the oldest layout.
    pub health_mask: Option<u32>,
    /// 0 unsupported, 1 healthy, 2 unhealthy, 3 limited capacity; absent in older layouts.
    pub health_summary: Option<u8>,
}

impl FabricInfo {
    /// The partition for a kind of access.
    fn clique(&self, access: Access) -> Option<CliqueId> {
        let found = self.cliques.iter().find(|(kind, _)| *kind == access.code());
        found.map(|(_, id)| CliqueId { cluster: self.cluster, id: *id })
    }
}

/// The partitions of a registered GPU for the kinds of access other than `access`.
pub(super) fn other_cliques(reading: &FabricReading, access: Access) -> BTreeMap<Access, CliqueId> {
    match reading {
        FabricReading::Info(info) if info.state == 3 && !info.cluster.is_nil() => {
            let others = Access::ALL.into_iter().filter(|other| *other != access);
            others.filter_map(|other| Some((other, info.clique(other)?))).collect()
        }
        _ => BTreeMap::new(),
    }
}

/// What one GPU says. The partition for `access` decides.
pub(super) fn gpu_fabric(reading: &FabricReading, access: Access) -> Fabric {
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
            match info.clique(access) {
                _ if !troubles.is_empty() => Fabric::Unhealthy(troubles.join(", ")),
                Some(clique) => Fabric::Ready(clique),
                None => Fabric::Unhealthy(format!("the driver names no clique for {access} access")),
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
        // Routes stay as they are while the manager is away, so that alone is no trouble: it is restarted now and then.
        troubles.push(match field(14, 2) {
            2 => "NVML sums its health up as unhealthy: the global fabric manager is disconnected".into(),
            _ => "NVML sums its health up as unhealthy".into(),
        });
    }
    troubles
}

/// One node has one fabric: GPUs that differ mean that something is wrong, and the message names them.
pub(super) fn node_fabric(gpus: &[Gpu]) -> Fabric {
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

#[cfg(test)]
mod tests {
    use super::super::{GpuReading, Inventory, Reading, Unreadable, inventory};
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
        FabricInfo { state: 3, status: 0, cluster: cluster(), cliques: vec![(0, 7)], health_mask, health_summary }
    }

    fn node(infos: impl IntoIterator<Item = FabricInfo>) -> Inventory {
        let gpu = |(index, info)| GpuReading { index, fabric: FabricReading::Info(info), ..GpuReading::default() };
        inventory(&Reading { gpus: (0..).zip(infos).map(gpu).collect(), ..Reading::default() }, Access::default())
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
        assert_eq!(node(vec![info(); 4]).fabric, Fabric::Ready(clique));
        let old = FabricInfo { health_mask: None, health_summary: None, ..info() };
        assert_eq!(node([old]).fabric, Fabric::Ready(clique));
        let limited = FabricInfo { health_summary: Some(3), ..info() };
        assert_eq!(node([limited]).fabric, Fabric::Ready(clique));
        let unsupported = FabricInfo { health_mask: Some(0), health_summary: Some(0), ..info() };
        assert_eq!(node([unsupported]).fabric, Fabric::Ready(clique));
    }

    #[test]
    fn no_gpu_no_fabric() {
        assert_eq!(node(Vec::new()).fabric, Fabric::None);
        assert_eq!(node(vec![FabricInfo::default(); 2]).fabric, Fabric::None);
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
    fn issue_626_630_every_trouble_has_words_and_none_is_taken_for_no_clique() {
        let field = |shift: u32, width: u32, value: u32| {
            let mask = HEALTHY & !(((1 << width) - 1) << shift) | value << shift;
            FabricInfo { health_mask: Some(mask), ..info() }
        };
        for (info, words) in [
            (FabricInfo { status: 999, ..info() }, "NVML error 999"),
            (field(0, 2, 1), "bandwidth"),
            (field(2, 2, 1), "route is being recovered"),
            (field(4, 2, 1), "route is unhealthy"),
            (field(6, 2, 1), "time-out is being recovered"),
            (field(8, 4, 2), "system GUID"),
            (field(8, 4, 3), "chassis serial"),
            (field(8, 4, 4), "in no partition"),
            (field(8, 4, 5), "too few NVLinks"),
            (field(8, 4, 6), "incompatible GPU firmware"),
            (field(8, 4, 7), "invalid location"),
            (field(8, 4, 8), "state is invalid"),
            (field(8, 4, 15), "code 15"),
            (field(12, 2, 2), "no partition is assigned"),
            (FabricInfo { health_summary: Some(2), ..info() }, "unhealthy"),
            (FabricInfo { health_summary: Some(2), ..field(14, 2, 2) }, "manager is disconnected"),
            (FabricInfo { state: 9, ..info() }, "state 9"),
            (FabricInfo { cliques: Vec::new(), ..info() }, "no clique for unicast-pointer access"),
        ] {
            let why = unhealthy(node([self::info(), info]).fabric);
            assert!(why.contains(words) && why.contains("GPU 1"), "{why}");
        }
        assert!(matches!(node([field(14, 2, 2)]).fabric, Fabric::Ready(_)), "a manager that is restarted ends no job");
    }

    #[test]
    fn the_partition_of_the_set_kind_of_access_is_the_clique() {
        let cliques = vec![(0, 7), (0, 9), (1, 8), (3, 5)];
        let gpu = GpuReading { fabric: FabricReading::Info(FabricInfo { cliques, ..info() }), ..GpuReading::default() };
        let reading = Reading { gpus: vec![gpu], ..Reading::default() };
        let clique = |id| CliqueId { cluster: cluster(), id };
        let found = inventory(&reading, Access::UnicastPointer);
        assert_eq!(found.fabric, Fabric::Ready(clique(7)), "the first one counts");
        let others = [(Access::MulticastPointer, clique(8)), (Access::MulticastLogicalEndpoint, clique(5))];
        assert_eq!(found.gpus[0].other_cliques, others.into());
        assert_eq!(inventory(&reading, Access::MulticastPointer).fabric, Fabric::Ready(clique(8)));
        let why = unhealthy(inventory(&reading, Access::UnicastLogicalEndpoint).fabric);
        assert!(why.contains("unicast-logical-endpoint"), "{why}");
    }

    #[test]
    fn torchcomms_3612_the_same_id_in_another_cluster_is_another_clique() {
        let other = FabricInfo { cluster: Uuid::from_u128(1), ..info() };
        let why = unhealthy(node([info(), other]).fabric);
        assert!(why.contains("disagree") && why.contains(&cluster().to_string()), "{why}");
    }

    #[test]
    fn gpus_that_disagree_are_named() {
        let why = unhealthy(node([info(), info(), FabricInfo { cliques: vec![(0, 8)], ..info() }]).fabric);
        assert!(why.contains("GPUs 0 and 1 say clique") && why.contains("GPU 2 says clique"), "{why}");
        let why = unhealthy(node([info(), FabricInfo::default()]).fabric);
        assert!(why.contains("GPU 1 says no clique"), "{why}");
    }

    #[test]
    fn a_gpu_that_cannot_be_read_makes_the_fabric_unusable() {
        let unreadable = vec![Unreadable { index: 3, lost: true, why: "GPU is lost".into() }];
        let reading = Reading { unreadable, ..Reading::default() };
        assert_eq!(unhealthy(inventory(&reading, Access::default()).fabric), "GPU 3 cannot be read: GPU is lost");
    }
}
