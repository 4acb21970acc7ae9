//! The node's ResourceSlices.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_actors::dra::{Driver, HealthBoard};
use heddle_actors::runtime::{Addr, Spec};
use heddle_actors::slice_publisher::{Message, Settings, SlicePublisher, Usable};
use heddle_core::api::DomainKind;
use heddle_core::fault::reason;
use heddle_core::inventory::{Channels, Fabric, Trouble};
use heddle_core::names;
use heddle_integration::api::{Options, Verb};
use heddle_integration::control::allocator::{Inputs, Pools, Refusal, allocate};
use heddle_integration::control::device_selector::Selectors;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use crate::bed::{Bed, NODE, run};

fn publisher(bed: &Bed, grace: Duration) -> Addr<Message> {
    publisher_with(bed, grace, HealthBoard::default())
}

fn publisher_with(bed: &Bed, grace: Duration, health: HealthBoard) -> Addr<Message> {
    let settings = Settings {
        node_name: NODE.into(),
        slots: 16,
        drivers: vec![Driver::ComputeDomain, Driver::Gpu],
        grace,
        client: bed.client.clone(),
        health,
    };
    let scope = bed.runtime.root().child("slices");
    scope.supervise(Spec::default(), move || Ok(SlicePublisher::new(settings.clone())))
}

fn usable(usable: bool) -> Message {
    said(usable, None)
}

fn said(usable: bool, withheld: Option<&'static str>) -> Message {
    Message::Usable(Usable {
        usable,
        domain: Some("shared-0".into()),
        kind: Some(DomainKind::Shared),
        reason: "the daemon is down".into(),
        withheld,
        host_managed: false,
    })
}

fn slices(bed: &Bed) -> Vec<Value> {
    let mut slices = bed.server.objects("resource.k8s.io", "resourceslices");
    slices.sort_by_key(|slice| slice["spec"]["driver"].to_string());
    slices
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn writes(bed: &Bed) -> usize {
    bed.requests().iter().filter(|(verb, _)| !matches!(verb, Verb::Get | Verb::List | Verb::Watch)).count()
}

#[test]
fn slots_and_gpus_are_published_once_and_case_37_again_when_wiped() {
    run(|| async {
        let bed = Bed::new().await;
        let address = publisher(&bed, Duration::from_secs(60));
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        let found = slices(&bed);
        assert_eq!(found[0]["spec"]["devices"].as_array().unwrap().len(), 16);
        assert_eq!(found[1]["spec"]["devices"][2]["name"], "gpu-2");
        assert_eq!(found[0]["metadata"]["ownerReferences"][0]["kind"], "Node");
        assert_eq!(found[0]["spec"]["pool"]["name"], NODE);

        writes(&bed);
        for _ in 0..5 {
            address.tell(Message::Inventory(bed.inventory.clone()));
            address.tell(usable(true));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(writes(&bed), 0);

        let api = kube::Api::<k8s_openapi::api::resource::v1::ResourceSlice>::all(bed.client.clone());
        for slice in &found {
            api.delete(slice["metadata"]["name"].as_str().unwrap(), &kube::api::DeleteParams::default()).await.unwrap();
        }
        until(|| slices(&bed).len() == 2).await;
        assert_eq!(slices(&bed)[0]["spec"]["devices"], found[0]["spec"]["devices"]);
    });
}

/// Kubernetes 1.35, the last release that keeps no taints unless told to.
async fn older() -> Bed {
    Bed::on(Options { minor: 35, ..Options::default() }).await
}

/// The taints of a driver's devices, `key=value`, by device.
fn taints(bed: &Bed, driver: &str) -> BTreeMap<String, Vec<String>> {
    let slices = slices(bed);
    let devices = slices.iter().filter(|slice| slice["spec"]["driver"] == driver);
    let devices = devices.flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default());
    devices
        .map(|device| {
            let taints = device["taints"].as_array().cloned().unwrap_or_default();
            let shown = taints.iter().map(|taint| {
                assert_eq!(taint["effect"], "NoSchedule");
                format!("{}={}", taint["key"].as_str().unwrap(), taint["value"].as_str().unwrap_or_default())
            });
            (device["name"].as_str().unwrap().to_owned(), shown.collect())
        })
        .collect()
}

fn tainted_slots(bed: &Bed, reason: &str) -> bool {
    let taints = taints(bed, names::DRIVER);
    taints.len() == 16 && taints.values().all(|taints| *taints == [format!("{}={reason}", names::SLOT_TAINT)])
}

#[test]
fn slots_are_tainted_after_the_grace_and_offered_again_at_once() {
    run(|| async {
        let bed = Bed::new().await;
        let address = publisher(&bed, Duration::from_millis(100));
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        writes(&bed);
        address.tell(usable(false));
        address.tell(usable(true));
        address.tell(usable(false));
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!tainted_slots(&bed, "DaemonNotReady"));
        assert_eq!(writes(&bed), 0, "a restart of the daemon is not worth a write");
        until(|| tainted_slots(&bed, "DaemonNotReady")).await;
        // The number of devices stays: an autoscaler takes a node that lost some for one that is not ready.
        let generation = slices(&bed)[0]["spec"]["pool"]["generation"].clone();
        writes(&bed);
        address.tell(usable(false));
        address.tell(Message::Inventory(bed.inventory.clone()));
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert_eq!(writes(&bed), 0, "the time that the server gave a taint is no change");
        address.tell(usable(true));
        until(|| taints(&bed, names::DRIVER).values().all(Vec::is_empty)).await;
        assert_eq!((slices(&bed).len(), &slices(&bed)[0]["spec"]["pool"]["generation"]), (2, &generation));
    });
}

#[test]
fn a_server_that_drops_taints_never_sees_a_slot_that_cannot_be_used() {
    run(|| async {
        let bed = older().await;
        let address = publisher(&bed, Duration::from_millis(1));
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        let before = bed.server.resource_version();
        address.tell(usable(false));
        until(|| slices(&bed).len() == 1).await;
        assert_eq!(slices(&bed)[0]["spec"]["driver"], names::GPU_DRIVER);
        assert_eq!(bed.server.resource_version(), before + 1, "the slice went, and was never anything in between");
        // And a sick GPU is withdrawn alone.
        let mut inventory = bed.inventory.clone();
        inventory.gpus[1].troubles = vec![Trouble::Xids([79].into())];
        address.tell(Message::Inventory(inventory));
        until(|| taints(&bed, names::GPU_DRIVER).len() == 3).await;
        assert!(!taints(&bed, names::GPU_DRIVER).contains_key("gpu-1"));
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| taints(&bed, names::GPU_DRIVER).len() == 4 && taints(&bed, names::DRIVER).len() == 16).await;
    });
}

#[test]
fn issue_626_630_a_fabric_that_cannot_be_used_taints_slots_at_once() {
    run(|| async {
        for (bed, withdrawn) in [(Bed::new().await, false), (older().await, true)] {
            let address = publisher(&bed, Duration::from_secs(600));
            address.tell(Message::Inventory(bed.inventory.clone()));
            address.tell(usable(true));
            until(|| slices(&bed).len() == 2).await;
            let mut inventory = bed.inventory.clone();
            inventory.fabric = Fabric::Unhealthy("GPU 2 has lost a link".into());
            address.tell(Message::Inventory(inventory));
            address.tell(usable(false));
            match withdrawn {
                true => until(|| slices(&bed).len() == 1).await,
                false => until(|| tainted_slots(&bed, "FabricUnhealthy")).await,
            }
        }
    });
}

#[test]
fn a_kernel_module_without_channels_offers_no_slots_whatever_the_daemon_says() {
    run(|| async {
        let bed = Bed::new().await;
        let health = HealthBoard::default();
        let address = publisher_with(&bed, Duration::from_secs(600), health.clone());
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        let mut inventory = bed.inventory.clone();
        inventory.channels = Channels { major: None, count: Some(0) };
        address.tell(Message::Inventory(inventory));
        until(|| tainted_slots(&bed, "NoImexChannels")).await;
        let shown = health.shown(Driver::ComputeDomain);
        assert_eq!(shown.len(), 16);
        assert!(shown.iter().all(|slot| !slot.healthy && slot.message.contains("NVreg_ImexChannelCount")), "{shown:?}");
    });
}

#[test]
fn a_sick_gpu_is_tainted_with_its_xid_and_shown_unhealthy_until_it_is_well() {
    run(|| async {
        let bed = Bed::new().await;
        let health = HealthBoard::default();
        let address = publisher_with(&bed, Duration::from_secs(600), health.clone());
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        let mut inventory = bed.inventory.clone();
        inventory.gpus[2].troubles = vec![Trouble::Xids([79].into()), Trouble::RecoveryAction(1)];
        address.tell(Message::Inventory(inventory));
        let of_gpu_2 = || taints(&bed, names::GPU_DRIVER)["gpu-2"].clone();
        until(|| of_gpu_2() == ["gpu.nvidia.com/xid=79", "gpu.nvidia.com/recovery-action=1"]).await;
        assert_eq!(taints(&bed, names::GPU_DRIVER).values().filter(|taints| !taints.is_empty()).count(), 1);
        let shown = health.shown(Driver::Gpu);
        assert!(!shown[2].healthy && shown[2].message.contains("XID 79 (GPU has fallen off the bus)"), "{shown:?}");
        assert!(shown[1].healthy);
        // Who wants a GPU gets another one; who tolerates the taint gets this one too.
        assert_eq!(allocated(&bed, 3, &[]), Ok(3));
        assert!(allocated(&bed, 4, &[]).is_err());
        assert_eq!(allocated(&bed, 4, &["gpu.nvidia.com/xid", "gpu.nvidia.com/recovery-action"]), Ok(4));
        address.tell(Message::Inventory(bed.inventory.clone()));
        until(|| of_gpu_2().is_empty()).await;
        assert!(health.shown(Driver::Gpu)[2].healthy);
    });
}

/// What the scheduler finds for a claim on so many GPUs.
fn allocated(bed: &Bed, count: usize, tolerated: &[&str]) -> Result<usize, Refusal> {
    let of = |value: Value| serde_json::from_value(value).unwrap();
    let pools = Pools::new(slices(bed).into_iter().map(|slice| Arc::new(serde_json::from_value(slice).unwrap())));
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"selectors": [
        {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]}});
    let classes = BTreeMap::from([("gpu".to_owned(), Arc::new(serde_json::from_value(class).unwrap()))]);
    let tolerations: Vec<_> = tolerated.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect();
    let claim: ResourceClaim =
        of(json!({"metadata": {"name": "c", "namespace": "team"}, "spec": {"devices": {"requests": [
        {"name": "r", "exactly": {"deviceClassName": "gpu", "count": count, "tolerations": tolerations}}]}}}));
    let taken = BTreeSet::new();
    let inputs = Inputs { classes: &classes, pools: &pools, taken: &taken };
    let node = serde_json::from_value(json!({"metadata": {"name": NODE}})).unwrap();
    let found = allocate(inputs, &mut Selectors::default(), &node, &[&claim])?;
    Ok(found[0].devices.as_ref().unwrap().results.iter().flatten().count())
}

#[test]
fn a_new_agent_takes_tainted_slots_over_without_a_write() {
    run(|| async {
        let bed = Bed::new().await;
        let old = publisher(&bed, Duration::from_millis(1));
        old.tell(Message::Inventory(bed.inventory.clone()));
        old.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        old.tell(usable(false));
        until(|| tainted_slots(&bed, "DaemonNotReady")).await;
        let before = slices(&bed);
        writes(&bed);
        let new = publisher(&bed, Duration::from_millis(1));
        new.tell(Message::Inventory(bed.inventory.clone()));
        new.tell(usable(false));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!((slices(&bed), writes(&bed)), (before, 0));
    });
}

#[test]
fn what_is_withheld_has_no_grace() {
    run(|| async {
        let bed = Bed::new().await;
        let address = publisher(&bed, Duration::from_secs(600));
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        address.tell(said(false, Some(reason::RUNTIME_GUARD_OPEN)));
        until(|| tainted_slots(&bed, "RuntimeGuardOpen")).await;
        address.tell(usable(true));
        until(|| taints(&bed, names::DRIVER).values().all(Vec::is_empty)).await;
    });
}

#[test]
fn a_new_agent_leaves_slices_as_they_are_until_it_knows_better() {
    run(|| async {
        let bed = Bed::new().await;
        let old = publisher(&bed, Duration::from_secs(60));
        old.tell(Message::Inventory(bed.inventory.clone()));
        old.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        let before = slices(&bed);
        writes(&bed);
        let new = publisher(&bed, Duration::from_secs(60));
        new.tell(Message::Inventory(bed.inventory.clone()));
        new.tell(usable(false));
        tokio::time::sleep(Duration::from_millis(30)).await;
        new.tell(usable(true));
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert_eq!((slices(&bed), writes(&bed)), (before, 0));
    });
}

#[test]
fn while_the_api_is_away_writes_wait_and_then_come() {
    run(|| async {
        let bed = Bed::new().await;
        let address = publisher(&bed, Duration::from_secs(60));
        until(|| bed.requests().iter().any(|(verb, _)| *verb == Verb::Watch)).await;
        bed.api_away();
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| !bed.requests().is_empty()).await;
        bed.heal();
        until(|| slices(&bed).len() == 2).await;
    });
}
