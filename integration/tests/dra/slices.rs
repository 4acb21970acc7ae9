//! The node's ResourceSlices.

use std::time::Duration;

use heddle_actors::dra::{Driver, HealthBoard};
use heddle_actors::runtime::{Addr, Spec};
use heddle_actors::slice_publisher::{Message, Settings, SlicePublisher, Usable};
use heddle_core::api::DomainKind;
use heddle_core::inventory::Fabric;
use heddle_core::names;
use heddle_integration::api::Verb;
use serde_json::Value;

use crate::bed::{Bed, NODE, run};

fn publisher(bed: &Bed, grace: Duration) -> Addr<Message> {
    let settings = Settings {
        node_name: NODE.into(),
        slots: 16,
        drivers: vec![Driver::ComputeDomain, Driver::Gpu],
        grace,
        client: bed.client.clone(),
        health: HealthBoard::default(),
    };
    let scope = bed.runtime.root().child("slices");
    scope.supervise(Spec::default(), move || Ok(SlicePublisher::new(settings.clone())))
}

fn usable(usable: bool) -> Message {
    Message::Usable(Usable {
        usable,
        domain: Some("shared-0".into()),
        kind: Some(DomainKind::Shared),
        reason: "the daemon is down".into(),
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

#[test]
fn slots_are_withdrawn_after_the_grace_and_offered_again_at_once() {
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
        assert_eq!((slices(&bed).len(), writes(&bed)), (2, 0), "a restart of the daemon is not worth a write");
        until(|| slices(&bed).len() == 1).await;
        assert_eq!(slices(&bed)[0]["spec"]["driver"], names::GPU_DRIVER);
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
    });
}

#[test]
fn issue_626_a_fabric_that_cannot_be_used_withdraws_slots_at_once() {
    run(|| async {
        let bed = Bed::new().await;
        let address = publisher(&bed, Duration::from_secs(600));
        address.tell(Message::Inventory(bed.inventory.clone()));
        address.tell(usable(true));
        until(|| slices(&bed).len() == 2).await;
        let mut inventory = bed.inventory.clone();
        inventory.fabric = Fabric::Unhealthy("GPU 2 has lost a link".into());
        address.tell(Message::Inventory(inventory));
        address.tell(usable(false));
        until(|| slices(&bed).len() == 1).await;
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
