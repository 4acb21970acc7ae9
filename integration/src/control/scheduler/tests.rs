use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::super::device_selector::Selectors;
use super::{Decision, Objects, Snapshot, place};

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn objects(nodes: &[&str]) -> Objects {
    let slot = |i| json!({"name": format!("slot-{i}")});
    let slice = |node: &&str| {
        json!({
            "metadata": {"name": node},
            "spec": {
                "driver": "slots", "nodeName": node, "devices": [slot(0), slot(1)],
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            },
        })
    };
    let node = |name: &&str| {
        json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "name": name}},
            "status": {"allocatable": {"cpu": "4", "pods": "10"}},
        })
    };
    let class = json!({"metadata": {"name": "slot"}, "spec": {"selectors": [
        {"cel": {"expression": "device.driver == 'slots'"}}
    ]}});
    Objects {
        nodes: nodes.iter().map(node).map(of).map(Arc::new).collect(),
        slices: nodes.iter().map(slice).map(of).map(Arc::new).collect(),
        classes: vec![Arc::new(of(class))],
        ..Default::default()
    }
}

fn pod(name: &str, spec: Value) -> Pod {
    of(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": name}},
        "spec": merge(json!({"containers": []}), spec),
    }))
}

fn merge(mut base: Value, over: Value) -> Value {
    base.as_object_mut().unwrap().extend(over.as_object().unwrap().clone());
    base
}

fn on(mut pod: Pod, node: &str) -> Arc<Pod> {
    pod.spec.as_mut().unwrap().node_name = Some(node.into());
    Arc::new(pod)
}

fn claim(name: &str, mode: &str) -> ResourceClaim {
    of(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": [
            {"name": "r", "exactly": {"deviceClassName": "slot", "allocationMode": mode}}
        ]}},
    }))
}

fn with_claim(name: &str, claim: &str) -> Pod {
    pod(name, json!({"resourceClaims": [{"name": "slot", "resourceClaimName": claim}]}))
}

fn decide(objects: &Objects, pod: &Pod) -> Decision {
    let snapshot = Snapshot::new(objects.clone(), &BTreeMap::new());
    place(&snapshot, pod, &mut Selectors::default(), Timestamp::UNIX_EPOCH)
}

fn node_of(decision: Decision) -> String {
    match decision {
        Decision::Bind { node, .. } => node,
        other => panic!("expected a node: {other:?}"),
    }
}

fn message(decision: Decision) -> String {
    match decision {
        Decision::Refuse { reason: "Unschedulable", message } => message,
        other => panic!("expected a refusal: {other:?}"),
    }
}

/// Places a pod and takes the result into the objects.
fn run(objects: &mut Objects, pod: Pod) -> String {
    let Decision::Bind { node, claims } = decide(objects, &pod) else { panic!("no node for {pod:?}") };
    for claim in claims {
        objects.claims.retain(|other| other.metadata.name != claim.metadata.name);
        objects.claims.push(Arc::new(claim));
    }
    objects.pods.push(on(pod, &node));
    node
}

#[test]
fn pods_of_one_owner_spread_and_the_answer_is_always_the_same() {
    let mut objects = objects(&["n1", "n2", "n3"]);
    let owned = |i: usize| {
        let mut pod = pod(&format!("p{i}"), json!({}));
        pod.metadata.owner_references = Some(of(json!([
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "rs", "controller": true}
        ])));
        pod
    };
    let nodes: Vec<String> = (0..4).map(|i| run(&mut objects, owned(i))).collect();
    assert_eq!(nodes, ["n1", "n2", "n3", "n1"]);
}

#[test]
fn selectors_affinities_taints_and_cordons_keep_pods_away() {
    let mut objects = objects(&["n1", "n2"]);
    assert_eq!(node_of(decide(&objects, &pod("p", json!({"nodeSelector": {"name": "n2"}})))), "n2");
    let required = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "name", "operator": "NotIn", "values": ["n1"]}]}]}}}});
    assert_eq!(node_of(decide(&objects, &pod("p", required))), "n2");
    let nowhere = message(decide(&objects, &pod("p", json!({"nodeSelector": {"name": "n9"}}))));
    assert_eq!(nowhere, "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.");

    let spec = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
    Arc::make_mut(&mut objects.nodes[0]).spec = Some(of(spec));
    Arc::make_mut(&mut objects.nodes[1]).spec = Some(of(json!({"unschedulable": true})));
    assert_eq!(
        message(decide(&objects, &pod("p", json!({})))),
        "0/2 nodes are available: 1 node(s) had untolerated taint {gpu: yes}, 1 node(s) were unschedulable."
    );
    let tolerant = json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]});
    assert_eq!(node_of(decide(&objects, &pod("p", tolerant))), "n1");
    assert_eq!(message(decide(&Objects::default(), &pod("p", json!({})))), "no nodes available to schedule pods");
}

#[test]
fn a_node_that_is_not_ready_gets_no_pod() {
    let mut objects = objects(&["n1"]);
    let node = Arc::make_mut(&mut objects.nodes[0]);
    node.status.as_mut().unwrap().conditions = Some(of(json!([{"type": "Ready", "status": "False"}])));
    assert!(message(decide(&objects, &pod("p", json!({})))).contains("node.kubernetes.io/not-ready"));
}

#[test]
fn anti_affinity_works_both_ways_and_affinity_starts_somewhere() {
    let mut objects = objects(&["n1", "n2"]);
    let term =
        |app: &str| json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}]);
    let anti = |app: &str| json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app)}}});
    let near =
        |app: &str| json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(app)}}});
    objects.pods.push(on(pod("green", json!({})), "n1"));
    assert_eq!(node_of(decide(&objects, &pod("p", anti("green")))), "n2");
    assert_eq!(node_of(decide(&objects, &pod("p", near("green")))), "n1");
    assert!(message(decide(&objects, &pod("p", near("absent")))).contains("didn't match pod affinity rules"));
    assert_eq!(node_of(decide(&objects, &pod("p", near("p")))), "n2", "the first of its kind goes to the emptiest");
    objects.pods.push(on(pod("loner", anti("late")), "n2"));
    assert_eq!(node_of(decide(&objects, &pod("late", json!({})))), "n1");
    objects.pods.push(on(pod("loner2", anti("late")), "n1"));
    assert!(message(decide(&objects, &pod("late", json!({})))).contains("existing pods anti-affinity"));
}

#[test]
fn what_a_node_does_not_have_is_insufficient() {
    let objects = objects(&["n1"]);
    let wants = |name: &str, amount: &str| {
        pod("p", json!({"containers": [{"name": "c", "resources": {"limits": {name: amount}}}]}))
    };
    assert!(message(decide(&objects, &wants("cpu", "5"))).contains("1 Insufficient cpu"));
    assert!(message(decide(&objects, &wants("nvidia.com/gpu", "1"))).contains("1 Insufficient nvidia.com/gpu"));
    assert_eq!(node_of(decide(&objects, &wants("cpu", "4000m"))), "n1");
    assert_eq!(node_of(decide(&objects, &wants("memory", "1Gi"))), "n1", "the node does not say what memory it has");
}

#[test]
fn an_exclusive_claim_waits_and_says_what_is_missing() {
    let mut objects = objects(&["n1", "n2"]);
    for (name, mode) in [("green", "ExactCount"), ("red", "All"), ("black", "All")] {
        objects.claims.push(Arc::new(claim(name, mode)));
    }
    assert_eq!(run(&mut objects, with_claim("green-0", "green")), "n1");
    assert_eq!(run(&mut objects, with_claim("red-0", "red")), "n2");
    assert_eq!(
        message(decide(&objects, &with_claim("black-0", "black"))),
        "0/2 nodes are available: 2 cannot allocate all claims. \
         ResourceClaim \"black\", request \"r\": needs all 2 devices of class slot, 1 are taken (on 1 node(s)). \
         ResourceClaim \"black\", request \"r\": needs all 2 devices of class slot, 2 are taken (on 1 node(s))."
    );
}

#[test]
fn the_claim_is_written_with_allocation_and_consumer() {
    let mut objects = objects(&["n1"]);
    objects.claims.push(Arc::new(claim("c", "ExactCount")));
    let Decision::Bind { claims, .. } = decide(&objects, &with_claim("p", "c")) else { panic!("must be bound") };
    let status = serde_json::to_value(claims[0].status.as_ref().unwrap()).unwrap();
    assert_eq!(status["reservedFor"], json!([{"resource": "pods", "name": "p", "uid": "p"}]));
    assert_eq!(status["allocation"]["devices"]["results"][0]["device"], "slot-0");
    assert_eq!(status["allocation"]["allocationTimestamp"], "1970-01-01T00:00:00Z");
}

#[test]
fn pods_that_share_a_claim_go_where_it_is() {
    let mut objects = objects(&["n1", "n2"]);
    objects.claims.push(Arc::new(claim("c", "All")));
    assert_eq!(run(&mut objects, with_claim("a", "c")), "n1");
    assert_eq!(run(&mut objects, with_claim("b", "c")), "n1", "though n2 is emptier");
    assert_eq!(objects.claims[0].status.as_ref().unwrap().reserved_for.as_ref().unwrap().len(), 2);
    let away = merge(
        json!({"resourceClaims": [{"name": "slot", "resourceClaimName": "c"}]}),
        json!({"nodeSelector": {"name": "n2"}}),
    );
    assert_eq!(
        message(decide(&objects, &pod("away", away))),
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 resourceclaim not available on the node."
    );
}

#[test]
fn an_allocation_that_helps_nobody_is_undone() {
    let mut objects = objects(&["n1", "n2"]);
    objects.claims.push(Arc::new(claim("c", "ExactCount")));
    run(&mut objects, with_claim("p", "c"));
    objects.pods.clear();
    Arc::make_mut(&mut objects.nodes[0]).spec = Some(of(json!({"unschedulable": true})));
    let Decision::Deallocate(claim) = decide(&objects, &with_claim("p", "c")) else { panic!("must be undone") };
    assert_eq!(claim.status.unwrap().allocation, None);
}

#[test]
fn claims_that_are_not_there_are_named_or_waited_for() {
    let mut objects = objects(&["n1"]);
    assert_eq!(
        message(decide(&objects, &with_claim("p", "absent"))),
        "0/1 nodes are available: resourceclaim \"absent\" not found."
    );
    let templated = pod("p", json!({"resourceClaims": [{"name": "slot", "resourceClaimTemplateName": "t"}]}));
    assert_eq!(
        message(decide(&objects, &templated)),
        "0/1 nodes are available: resourceclaimtemplate \"t\" not found."
    );
    objects
        .templates
        .push(Arc::new(of(json!({"metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": {}}}))));
    assert_eq!(decide(&objects, &templated), Decision::Wait);

    let mut pod = templated;
    pod.status = Some(of(json!({"resourceClaimStatuses": [{"name": "slot", "resourceClaimName": "p-slot-x"}]})));
    let mut generated = claim("p-slot-x", "ExactCount");
    objects.claims.push(Arc::new(generated.clone()));
    assert!(message(decide(&objects, &pod)).contains("was not created for pod default/p"));
    generated.metadata.owner_references =
        Some(of(json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true}])));
    objects.claims = vec![Arc::new(generated.clone())];
    assert_eq!(node_of(decide(&objects, &pod)), "n1");
    generated.metadata.deletion_timestamp = Some(of(json!("2026-01-01T00:00:00Z")));
    objects.claims = vec![Arc::new(generated)];
    assert!(message(decide(&objects, &pod)).contains("is being deleted"));
}

#[test]
fn a_broken_claim_is_an_error_and_not_a_lack() {
    let mut objects = objects(&["n1"]);
    let mut broken = claim("c", "ExactCount");
    let request = &mut broken.spec.devices.as_mut().unwrap().requests.as_mut().unwrap()[0];
    request.exactly.as_mut().unwrap().device_class_name = "absent".into();
    objects.claims.push(Arc::new(broken));
    let Decision::Refuse { reason, message } = decide(&objects, &with_claim("p", "c")) else {
        panic!("must be refused")
    };
    assert_eq!(reason, "SchedulerError");
    assert!(message.contains("could not retrieve device class absent"), "{message}");
}
