//! Nodes that hold one claim and such that hold as many as a node can: slots as agents publish them, the controller's
//! templates, and the scheduler. No kubelet: pods stay Pending once they are bound.

use std::collections::BTreeSet;

use heddle_core::api::IsolationMode::{Channel, Domain};
use heddle_core::api::{ComputeDomain, ComputeDomainRef, DomainKind};
use heddle_core::controller::{CHANNEL_ASSIGNED, READY};
use heddle_core::fault::reason;
use heddle_core::inventory::Fabric;
use heddle_core::{names, slices};
use heddle_integration::control;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use crate::cluster::{Cluster, clique, test};

async fn publish(cluster: &Cluster, count: u32, node: &str) {
    let devices = slices::slots(count, &Fabric::Ready(clique()), Some(DomainKind::Shared));
    let slice: ResourceSlice = serde_json::from_value(json!({
        "metadata": {"name": format!("{node}-slots")},
        "spec": {"driver": names::DRIVER, "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}},
    }))
    .unwrap();
    Api::all(cluster.client.clone()).create(&PostParams::default(), &slice).await.unwrap();
}

async fn install_class(cluster: &Cluster) {
    let selector = format!("device.driver == {:?}", names::DRIVER);
    let class: DeviceClass = serde_json::from_value(json!({
        "metadata": {"name": names::CHANNEL_DEVICE_CLASS}, "spec": {"selectors": [{"cel": {"expression": selector}}]},
    }))
    .unwrap();
    Api::all(cluster.client.clone()).create(&PostParams::default(), &class).await.unwrap();
}

async fn pod(cluster: &Cluster, name: &str, cd: &str) {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
        "containers": [{"name": "main", "image": "train", "resources": {"claims": [{"name": "channel"}]}}],
        "resourceClaims": [{"name": "channel", "resourceClaimTemplateName": format!("{cd}-channel")}],
    }}))
    .unwrap();
    pods(cluster).create(&PostParams::default(), &pod).await.unwrap();
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), "team")
}

/// Why the scheduler has no node for the pod.
async fn refused(cluster: &Cluster, name: &str) -> String {
    let seen = || async {
        let conditions = pods(cluster).get(name).await.unwrap().status?.conditions?;
        let refused = conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
        refused.message.filter(|message| message.contains("cannot allocate"))
    };
    cluster.until(&format!("{name} is refused"), seen).await
}

async fn bound(cluster: &Cluster, names: &[String]) {
    let seen = || async {
        let all = pods(cluster).list(&ListParams::default()).await.unwrap();
        let on_a_node = |name: &String| {
            all.items.iter().any(|pod| pod.name_any() == *name && pod.spec.as_ref().unwrap().node_name.is_some())
        };
        names.iter().all(on_a_node).then_some(())
    };
    cluster.until("the pods have a node", seen).await;
}

#[test]
fn a_node_takes_as_many_claims_as_it_has_slots_and_an_exclusive_one_takes_them_all() {
    for count in [1, names::MAX_SLOTS] {
        test(1, async |cluster: &mut Cluster| {
            let _control = control::start(cluster.client.clone());
            install_class(cluster).await;
            publish(cluster, count, "n0").await;
            let mut fit = Vec::new();
            for n in 0..count {
                let name = format!("cd-{n}");
                cluster.create(&name, Channel).await;
                pod(cluster, &name, &name).await;
                fit.push(name);
            }
            bound(cluster, &fit).await;

            // One more finds no slot, and an exclusive one no node on which all are free.
            for (name, mode) in [("late", Channel), ("red", Domain)] {
                cluster.create(name, mode).await;
                pod(cluster, name, name).await;
                refused(cluster, name).await;
            }
            pods(cluster).delete("late", &Default::default()).await.unwrap();

            // It gets a node of its own, whole.
            cluster.add_node("n1").await;
            publish(cluster, count, "n1").await;
            bound(cluster, &["red".into()]).await;
            let held = || async {
                let claims = cluster.claims().list(&ListParams::default()).await.unwrap();
                let of_red = claims.items.into_iter().find(|claim| claim.name_any().starts_with("red-"))?;
                Some(of_red.status?.allocation?.devices?.results?.len())
            };
            assert_eq!(cluster.until("red's claim", held).await, count as usize);
            pod(cluster, "later", "late").await;
            refused(cluster, "later").await;
        });
    }
}

#[test]
fn a_node_with_channel_0_alone_gives_none_and_says_what_to_load() {
    test(1, async |cluster: &mut Cluster| {
        cluster.agent("n0").set_channel_count(1);
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        // Before that it says what else the node lacks.
        let told = || async {
            let conditions = cluster.cds().get("green").await.unwrap().status?.conditions;
            let words = "n0 has 1 IMEX channels; load the NVIDIA kernel module";
            conditions.iter().any(|c| c.type_ == READY && c.message.contains(words)).then_some(())
        };
        cluster.until("it says what to load", told).await;
        assert_eq!(cluster.agent("n0").prepared(&green.uid), None, "channel 0 is nobody's");
        cluster.agent("n0").set_channel_count(2);
        assert_eq!(cluster.prepared(&green, "n0").await.1, 1);
        cluster.condition("green", READY, "True", "NodesReady").await;
    });
}

#[test]
fn thirty_one_channels_are_thirty_numbers_and_the_next_says_whom_it_waits_for() {
    test(1, async |cluster: &mut Cluster| {
        cluster.agent("n0").set_channel_count(names::MAX_SLOTS);
        let mut all: Vec<ComputeDomainRef> = Vec::new();
        let mut numbers = BTreeSet::new();
        for n in 1..names::MAX_SLOTS {
            let cd = cluster.create(&format!("cd-{n}"), Channel).await;
            cluster.place(&cd, Channel, "n0").await;
            numbers.insert(cluster.prepared(&cd, "n0").await.1);
            all.push(cd);
        }
        assert_eq!(numbers, (1..names::MAX_SLOTS).collect());
        let late = cluster.create("late", Channel).await;
        cluster.place(&late, Channel, "n0").await;
        let text = cluster.condition("late", CHANNEL_ASSIGNED, "False", reason::CHANNELS_EXHAUSTED).await;
        assert!(text.contains("(30 in use)"), "{text}");
        cluster.delete("cd-7").await;
        cluster.end(&all[6], "n0").await;
        assert_eq!(cluster.prepared(&late, "n0").await.1, 7);
        cluster.condition("late", READY, "True", "NodesReady").await;
    });
}

#[test]
fn one_that_wants_more_nodes_than_there_are_says_so() {
    test(2, async |cluster: &mut Cluster| {
        let template = json!({"name": "green-channel"});
        let green: ComputeDomain = serde_json::from_value(json!({
            "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain", "metadata": {"name": "green"},
            "spec": {"numNodes": 3, "channel": {"resourceClaimTemplate": template}},
        }))
        .unwrap();
        cluster.cds().create(&PostParams::default(), &green).await.unwrap();
        let text = cluster.condition("green", READY, "False", reason::TOO_FEW_NODES).await;
        assert!(text.contains("numNodes is 3"), "{text}");
        cluster.add_node("n2").await;
        cluster.condition("green", READY, "False", "WaitingForNodes").await;
    });
}
