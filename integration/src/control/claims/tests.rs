use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use serde_json::{Value, json};

use super::{Effect, View, plan};

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pod(status: Value) -> Arc<Pod> {
    Arc::new(of(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"},
        "spec": {"containers": [], "resourceClaims": [{"name": "slot", "resourceClaimTemplateName": "t"}]},
        "status": status,
    })))
}

fn template() -> Arc<ResourceClaimTemplate> {
    Arc::new(of(json!({
        "metadata": {"name": "t", "namespace": "ns"},
        "spec": {
            "metadata": {"labels": {"cd": "green"}, "annotations": {"note": "x"}},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "slot"}}]}},
        },
    })))
}

fn claim(consumers: &[&str]) -> ResourceClaim {
    let reserved: Vec<Value> =
        consumers.iter().map(|uid| json!({"resource": "pods", "name": "p", "uid": uid})).collect();
    let status = if consumers.is_empty() {
        json!({})
    } else {
        json!({
            "allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "n", "device": "slot-0"}]}},
            "devices": [{"driver": "d", "pool": "n", "device": "slot-0"}],
            "reservedFor": reserved,
        })
    };
    of(json!({
        "metadata": {
            "name": "p-slot-x", "namespace": "ns", "uid": "uid-c", "finalizers": ["resource.kubernetes.io/delete-protection"],
            "annotations": {"resource.kubernetes.io/pod-claim-name": "slot"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true}],
        },
        "spec": {},
        "status": status,
    }))
}

fn planned(
    pods: &[Arc<Pod>],
    claims: &[ResourceClaim],
    templates: &[Arc<ResourceClaimTemplate>],
    gone: &[&str],
) -> Vec<Effect> {
    let claims: Vec<Arc<ResourceClaim>> = claims.iter().cloned().map(Arc::new).collect();
    let gone: BTreeSet<String> = gone.iter().map(|&uid| uid.to_owned()).collect();
    plan(View { pods, claims: &claims, templates, gone: &gone })
}

fn recorded() -> Value {
    json!({"phase": "Running", "resourceClaimStatuses": [{"name": "slot", "resourceClaimName": "p-slot-x"}]})
}

#[test]
fn a_claim_is_made_from_the_template() {
    let effects = planned(&[pod(json!({}))], &[], &[template()], &[]);
    let [Effect::Create { claim, .. }] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(
        serde_json::to_value(&claim.metadata).unwrap(),
        json!({
            "generateName": "p-slot-", "namespace": "ns", "labels": {"cd": "green"},
            "annotations": {"note": "x", "resource.kubernetes.io/pod-claim-name": "slot"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": true,
                "blockOwnerDeletion": true}],
        })
    );
    assert_eq!(claim.spec, template().spec.spec);
}

#[test]
fn a_missing_template_is_complained_about() {
    let effects = planned(&[pod(json!({}))], &[], &[], &[]);
    assert!(matches!(&effects[..], [Effect::Complain { message, .. }] if message.contains("\"t\" not found")));
}

#[test]
fn a_claim_that_was_made_is_recorded_and_not_made_again() {
    let effects = planned(&[pod(json!({}))], &[claim(&[])], &[template()], &[]);
    let [Effect::Record { statuses, .. }] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(statuses[0].resource_claim_name.as_deref(), Some("p-slot-x"));
    assert_eq!(planned(&[pod(recorded())], &[claim(&[])], &[template()], &[]), []);
}

#[test]
fn a_recorded_claim_that_vanished_is_made_again_unless_the_pod_is_bound() {
    let effects = planned(&[pod(recorded())], &[], &[template()], &[]);
    assert!(matches!(&effects[..], [Effect::Create { .. }]), "{effects:?}");
    let mut bound = pod(recorded());
    Arc::make_mut(&mut bound).spec.as_mut().unwrap().node_name = Some("n".into());
    assert_eq!(planned(&[bound], &[], &[template()], &[]), []);
}

#[test]
fn a_running_pod_keeps_its_claim() {
    assert_eq!(planned(&[pod(recorded())], &[claim(&["uid-p"])], &[template()], &[]), []);
    let mut terminating = pod(recorded());
    let it = Arc::make_mut(&mut terminating);
    it.metadata.deletion_timestamp = Some(of(json!("2026-01-01T00:00:00Z")));
    it.spec.as_mut().unwrap().node_name = Some("n".into());
    assert_eq!(planned(&[terminating], &[claim(&["uid-p"])], &[template()], &[]), [], "its containers may still run");
}

#[test]
fn a_finished_pod_gives_its_devices_back_and_then_its_claim_goes() {
    let mut status = recorded();
    status["phase"] = json!("Succeeded");
    let effects = planned(&[pod(status.clone())], &[claim(&["uid-p"])], &[template()], &[]);
    let [Effect::Status(released)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(serde_json::to_value(released.status.as_ref().unwrap()).unwrap(), json!({}));
    let effects = planned(&[pod(status)], &[claim(&[])], &[template()], &[]);
    assert!(matches!(&effects[..], [Effect::Delete(_)]), "{effects:?}");
}

#[test]
fn a_consumer_out_of_view_is_looked_for_before_it_is_taken_off() {
    let effects = planned(&[], &[claim(&["uid-new"])], &[], &[]);
    assert!(matches!(&effects[..], [Effect::LookFor { uid, .. }] if uid == "uid-new"), "{effects:?}");
    let effects = planned(&[], &[claim(&["uid-new"])], &[], &["uid-new"]);
    assert!(matches!(&effects[..], [Effect::Status(_)]), "{effects:?}");
}

#[test]
fn devices_are_kept_while_one_consumer_stays() {
    let effects = planned(&[pod(recorded())], &[claim(&["uid-p", "uid-old"])], &[template()], &["uid-old"]);
    let [Effect::Status(released)] = effects.as_slice() else { panic!("{effects:?}") };
    let status = released.status.as_ref().unwrap();
    assert!(status.allocation.is_some() && status.devices.is_some());
    assert_eq!(status.reserved_for.as_ref().unwrap().len(), 1);
}

#[test]
fn a_claim_on_its_way_out_is_let_go_when_nobody_holds_it() {
    let deleting = |consumers: &[&str]| {
        let mut claim = claim(consumers);
        claim.metadata.deletion_timestamp = Some(of(json!("2026-01-01T00:00:00Z")));
        claim
    };
    let effects = planned(&[], &[deleting(&[])], &[], &[]);
    let [Effect::Unprotect(claim)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(claim.metadata.finalizers, Some(vec![]));
    let mut unreserved = deleting(&["x"]);
    unreserved.status.as_mut().unwrap().reserved_for = None;
    let effects = planned(&[], &[unreserved], &[], &[]);
    assert!(matches!(&effects[..], [Effect::Status(claim)] if claim.status.as_ref().unwrap().allocation.is_none()));
    assert_eq!(planned(&[pod(recorded())], &[deleting(&["uid-p"])], &[], &[]), [], "it waits for the running pod");
}
