use super::Line;
use crate::inventory::{Fabric, Inventory};

pub(super) fn check(inventory: &Result<Inventory, String>) -> Vec<Line> {
    let inventory = match inventory {
        Ok(inventory) => inventory,
        Err(why) => return vec![Line::fail("gpus", why, "see the line of nvml")],
    };
    let count = inventory.gpus.len();
    let troubles = inventory.gpus.iter().filter_map(|gpu| Some(format!("GPU {}: {}", gpu.index, gpu.trouble()?)));
    let troubles: Vec<_> = troubles.chain(inventory.recovery_action.clone()).collect();
    let gpus = match (count, troubles.is_empty()) {
        (0, _) => Line::warn("gpus", "the node has no GPUs", "on a node with GPUs: see nvidia-smi"),
        (1, true) => Line::ok("gpus", "one GPU"),
        (_, true) => Line::ok("gpus", format!("{count} GPUs")),
        (_, false) => Line::warn("gpus", troubles.join("; "), "see nvidia-smi -q and the kernel's log"),
    };
    let fabric = match &inventory.fabric {
        Fabric::Ready(clique) => Line::ok("fabric", format!("the NVLink fabric is up, clique {clique}")),
        Fabric::None => Line::warn(
            "fabric",
            "the node has no multi-node NVLink fabric: claims are prepared without a channel",
            "on a node of an NVLink rack: see the section Fabric of nvidia-smi -q",
        ),
        Fabric::Pending(what) => Line::warn(
            "fabric",
            format!("the NVLink fabric is not up yet: {what}"),
            "wait, or look at the fabric manager",
        ),
        Fabric::Unhealthy(why) => Line::fail(
            "fabric",
            format!("the NVLink fabric must not be used: {why}"),
            "see the section Fabric of nvidia-smi -q; cordon the node",
        ),
    };
    vec![gpus, fabric]
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;
    use crate::inventory::Gpu;

    #[test]
    fn each_outcome() {
        let ready = Fabric::Ready("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap());
        let reset = Some("GPU 1: reset".to_owned());
        for (gpus, fabric, recovery_action, expected) in [
            (4, ready, None, ["Ok gpus", "Ok fabric"]),
            (1, Fabric::None, reset, ["Warn gpus", "Warn fabric"]),
            (0, Fabric::Pending("probing".into()), None, ["Warn gpus", "Warn fabric"]),
            (4, Fabric::Unhealthy("degraded".into()), None, ["Ok gpus", "Fail fabric"]),
        ] {
            let gpus = (0..gpus).map(|index| Gpu { index, ..Gpu::default() }).collect();
            let inventory = Inventory { gpus, fabric, recovery_action, ..Inventory::default() };
            assert_eq!(graded(&check(&Ok(inventory))), expected);
        }
        assert_eq!(graded(&check(&Err("no driver".into()))), ["Fail gpus"]);
    }
}
