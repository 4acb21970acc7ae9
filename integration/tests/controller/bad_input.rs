//! What people, and other programs, do to the objects.

use heddle_core::api::IsolationMode::Channel;
use heddle_core::controller::READY;
use heddle_core::fault::reason;
use heddle_core::names;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::{Api, Error};
use serde_json::{Value, json};

use crate::cluster::{Cluster, test};

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
