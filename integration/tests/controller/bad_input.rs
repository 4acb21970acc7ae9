//! What people, and other programs, do to the objects.

use std::time::Duration;

use heddle_core::api::IsolationMode::Channel;
use heddle_core::api::{IMEXDomain, IMEXNode};
use heddle_core::controller::READY;
use heddle_core::fault::reason;
use heddle_core::names;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Error};
use serde_json::{Value, json};

use crate::cluster::{Cluster, home, test, test_alone};

/// Writes to the status of node `n0`, as somebody who may.
async fn patch_node(cluster: &Cluster, status: Value) -> kube::Result<()> {
    let api = Api::<kube::core::DeserializeGuard<IMEXNode>>::all(cluster.client.clone());
    let patch = Patch::Merge(json!({"status": status}));
    api.patch_status("n0", &PatchParams::default(), &patch).await.map(drop)
}

async fn domain(cluster: &Cluster) -> IMEXDomain {
    Api::all(cluster.client.clone()).get(&home()).await.unwrap()
}

async fn create(cluster: &Cluster, spec: Value) -> Result<(), Box<Status>> {
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "team", &resource());
    let object: DynamicObject = serde_json::from_value(json!({
        "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain",
        "metadata": {"name": "odd"}, "spec": spec,
    }))
    .unwrap();
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(Error::Api(status)) => Err(status),
        Err(error) => panic!("{error}"),
    }
}

fn resource() -> kube::api::ApiResource {
    kube::api::ApiResource::erase::<heddle_core::api::ComputeDomain>(&())
}

#[test]
fn what_makes_no_sense_is_refused_by_the_api_server() {
    test(0, async |cluster: &mut Cluster| {
        let template = json!({"name": "t"});
        for spec in [
            Value::Null,
            json!({}),
            json!({"numNodes": -1, "channel": {"resourceClaimTemplate": template}}),
            json!({"isolationMode": "Rack", "channel": {"resourceClaimTemplate": template}}),
            json!({"channel": {"resourceClaimTemplate": template, "allocationMode": "All"}}),
            json!({"channel": {"resourceClaimTemplate": {"name": ""}}}),
            json!({"channel": {"resourceClaimTemplate": {"name": "a".repeat(254)}}}),
        ] {
            let status = create(cluster, spec.clone()).await.expect_err(&spec.to_string());
            assert_eq!(status.code, 422, "{spec}: {}", status.message);
        }
        let both =
            json!({"isolationMode": "Domain", "channel": {"resourceClaimTemplate": template, "allocationMode": "All"}});
        create(cluster, both).await.unwrap();
    });
}

#[test]
fn the_longest_names_are_served_and_impossible_ones_told() {
    test(0, async |cluster: &mut Cluster| {
        let long = "x".repeat(253);
        cluster.create_with_template(&long, Channel, &long).await;
        cluster.condition(&long, READY, "True", "NoPods").await;
        cluster.delete(&long).await;
        cluster.gone(&long).await;
        assert!(cluster.server.objects("resource.k8s.io", "resourceclaimtemplates").is_empty());
        cluster.create_with_template(&long, Channel, "Not_A Name/../x").await;
        let text = cluster.condition(&long, READY, "False", reason::INVALID_SPEC).await;
        assert!(text.contains("Not_A Name/../x"), "{text}");
        let told = || async { cluster.events(reason::INVALID_SPEC).await.pop() };
        let event = cluster.until("an Event about it", told).await;
        assert_eq!(event.regarding.unwrap().name.as_ref(), Some(&long));
        cluster.delete(&long).await;
        cluster.gone(&long).await;
    });
}

#[test]
fn a_claim_whose_label_was_stripped_still_holds_up_the_deletion() {
    test(1, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        let stripped = json!({"metadata": {"labels": {names::COMPUTE_DOMAIN_LABEL: null}}});
        cluster.claims().patch("green-n0", &PatchParams::default(), &Patch::Merge(stripped)).await.unwrap();
        cluster.delete("green").await;
        let text = cluster.condition("green", READY, "False", "Deleting").await;
        assert!(text.contains("node n0 to leave its channel, which pods there use"), "{text}");
        assert!(cluster.agent("n0").prepared(&green.uid).is_some(), "what runs goes on");
        cluster.end(&green, "n0").await;
        cluster.gone("green").await;
    });
}

#[test]
fn a_number_that_nobody_could_read_is_refused_by_the_api_server() {
    test(1, async |cluster: &mut Cluster| {
        cluster.served("n0", &home()).await;
        for status in [
            json!({"channelCount": 1_u64 << 32}),
            json!({"channelCount": -1}),
            json!({"observed": {"domain": "d", "epoch": u64::MAX}}),
        ] {
            let refused = patch_node(cluster, status.clone()).await;
            assert!(matches!(&refused, Err(Error::Api(told)) if told.code == 422), "{status}: {refused:?}");
        }
    });
}

#[test]
fn an_object_that_cannot_be_read_hides_no_other_and_frees_nothing() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        cluster.agent("n0").kill();
        // The API takes the time, and a reader of times before the year 10,000 does not.
        let condition = json!({"type": "Member", "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "9999-12-31T23:59:59-12:00"});
        patch_node(cluster, json!({"conditions": [condition]})).await.unwrap();
        let blue = cluster.create("blue", Channel).await;
        cluster.place(&blue, Channel, "n1").await;
        cluster.prepared(&blue, "n1").await;

        // One that has never read it.
        cluster.kill_controller();
        cluster.start_controller();
        let red = cluster.create("red", Channel).await;
        cluster.place(&red, Channel, "n1").await;
        let (_, number) = cluster.prepared(&red, "n1").await;
        assert!(domain(cluster).await.spec.members.contains_key("n0"), "it keeps its place");
        cluster.claims().delete("green-n0", &Default::default()).await.unwrap();
        cluster.delete("green").await;
        cluster.gone("green").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let map = domain(cluster).await.status.unwrap().channels;
        assert!(map.contains_key(&green.uid) && map[&red.uid].channel == number, "{map:?}");

        patch_node(cluster, json!({"conditions": [], "channels": null})).await.unwrap();
        cluster.freed(&home(), &green.uid).await;
    });
}

#[test]
fn a_text_in_the_map_that_is_no_name_holds_up_nobody() {
    test(1, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        let odd = json!({"channel": 77, "state": "Active", "epoch": 1, "computeDomain": "a b/c d"});
        let patch = Patch::Merge(json!({"status": {"channels": {"00000000-0000-4000-8000-000000000000": odd}}}));
        let domains = Api::<IMEXDomain>::all(cluster.client.clone());
        domains.patch_status(&home(), &PatchParams::default(), &patch).await.unwrap();
        cluster.end(&green, "n0").await;
        cluster.delete("green").await;
        cluster.gone("green").await;
        cluster.freed(&home(), &green.uid).await;
        cluster.freed(&home(), "00000000-0000-4000-8000-000000000000").await;
    });
}

#[test]
fn an_exclusive_domain_is_its_compute_domains_for_ever() {
    test_alone(0, async |cluster: &mut Cluster| {
        let owner = |uid: &str| json!({"namespace": "team", "name": "red", "uid": uid});
        let made = json!({"apiVersion": "imex.heddle.dev/v1alpha1", "kind": "IMEXDomain", "metadata": {"name": "own"},
            "spec": {"clique": "c.1", "kind": "Exclusive", "maxMembers": 18, "computeDomain": owner("uid-1")}});
        let domains = Api::<IMEXDomain>::all(cluster.client.clone());
        domains.create(&PostParams::default(), &serde_json::from_value(made).unwrap()).await.unwrap();
        for spec in [json!({"computeDomain": owner("uid-2")}), json!({"kind": "Shared", "computeDomain": null})] {
            let patch = Patch::Merge(json!({"spec": spec}));
            let refused = domains.patch("own", &PatchParams::default(), &patch).await;
            assert!(matches!(&refused, Err(Error::Api(told)) if told.code == 422), "{refused:?}");
        }
    });
}
