//! An agent's token is good for its own node's objects.

use std::collections::BTreeSet;

use heddle_core::names;
use heddle_integration::api::User;
use serde_json::{Value, json};

use crate::{Bed, NODE, Writer, rendered, with};

fn node(name: &str) -> Value {
    json!({"apiVersion": "imex.heddle.dev/v1alpha1", "kind": "IMEXNode", "metadata": {"name": name}, "spec": {}})
}

fn slice(node: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("{node}-x")},
        "spec": {
            "driver": "compute-domain.nvidia.com", "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "slot-0"}],
        },
    })
}

fn request(name: &str, signer: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": "eA==", "signerName": signer, "usages": ["client auth"]},
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}},
    })
}

fn result(driver: &str, pool: &str) -> Value {
    json!({"request": "r", "driver": driver, "pool": pool, "device": "slot-0"})
}

fn told(driver: &str, pool: &str) -> Value {
    json!({"driver": driver, "pool": pool, "device": "slot-0", "data": {"channel": 3}})
}

#[track_caller]
fn refused(outcome: Result<impl std::fmt::Debug, String>, words: &str) {
    let why = outcome.expect_err(words);
    assert!(why.contains(words), "{why}");
}

#[tokio::test]
async fn an_agent_writes_the_status_of_its_own_imexnode() {
    let bed = Bed::new().await;
    let agent = bed.agent(Some(NODE));
    refused(agent.create(node("n2")).await, "of that name alone");
    refused(bed.agent(None).create(node(NODE)).await, "bound to no node");
    for spec in [json!({"domain": "d"}), json!({"next": "d"}), json!({"fence": {"domain": "d", "epoch": 1}})] {
        refused(agent.create(with(node(NODE), json!({"spec": spec}))).await, "without a spec");
    }
    let own = agent.create(node(NODE)).await.unwrap();
    let reports = json!({"status": {"clique": "c.1", "bootID": "b", "channels": {"u": {"channel": 1, "domain": "d"}}}});
    let own = agent.replace_status(with(own, reports.clone())).await.unwrap();
    refused(agent.replace(with(own.clone(), json!({"spec": {"domain": "d"}}))).await, "the status of its IMEXNode");
    refused(agent.delete(&own).await, "agents remove no IMEXNode");
    let other = bed.admin().create(node("n2")).await.unwrap();
    refused(agent.replace_status(with(other, reports)).await, "of that name alone");
    // Whom the policies are not about.
    bed.admin().replace(with(own, json!({"spec": {"domain": "d"}}))).await.unwrap();
}

#[tokio::test]
async fn an_agent_publishes_its_own_nodes_devices() {
    let bed = Bed::new().await;
    let agent = bed.agent(Some(NODE));
    let own = |patch: Value| with(slice(NODE), json!({"spec": patch}));
    for (spec, words) in [
        (json!({"nodeName": "n2"}), "that node alone"),
        (json!({"nodeName": null, "allNodes": true}), "that node alone"),
        (json!({"pool": {"name": "n2"}}), "the pool of node n1"),
        (json!({"driver": "gpu.example.com"}), "Heddle's drivers"),
    ] {
        refused(agent.create(own(spec)).await, words);
    }
    refused(bed.agent(None).create(slice(NODE)).await, "bound to no node");
    let made = agent.create(own(json!({}))).await.unwrap();
    let made = agent.replace(with(made, json!({"spec": {"pool": {"generation": 2}}}))).await.unwrap();
    let gpus = json!({"metadata": {"name": "n1-gpus"}, "spec": {"driver": "gpu.nvidia.com"}});
    agent.create(with(slice(NODE), gpus)).await.unwrap();
    agent.delete(&made).await.unwrap();
    let other = bed.admin().create(slice("n2")).await.unwrap();
    refused(agent.replace(with(other.clone(), json!({"spec": {"pool": {"generation": 9}}}))).await, "that node alone");
    refused(agent.delete(&other).await, "that node alone");
}

#[tokio::test]
async fn an_agent_asks_for_its_own_certificates() {
    let bed = Bed::new().await;
    let agent = bed.agent(Some(NODE));
    let peer = "imex.heddle.dev/peer";
    refused(
        agent.create(request("heddle-peer-n1-1", "kubernetes.io/kube-apiserver-client")).await,
        "imex.heddle.dev/peer alone",
    );
    refused(agent.create(request("heddle-peer-n2-1", peer)).await, "a request of node n1");
    refused(bed.agent(None).create(request("heddle-peer-n1-1", peer)).await, "bound to no node");
    let made = agent.create(request("heddle-peer-n1-1", peer)).await.unwrap();
    refused(
        agent.replace_status(with(made.clone(), json!({"status": {"certificate": "eA=="}}))).await,
        "changes no request",
    );
    refused(agent.delete(&made).await, "changes no request");
}

#[tokio::test]
async fn an_agent_tells_of_its_own_devices_in_claims() {
    let bed = Bed::new().await;
    let (ours, theirs) = ("compute-domain.nvidia.com", "nic.example.com");
    let made = bed.admin().create(claim()).await.unwrap();
    let results = [result(ours, NODE), result(theirs, NODE), result(ours, "n2")];
    let status = json!({
        "allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [told(theirs, NODE)],
    });
    let given = bed.admin().replace_status(with(made, json!({"status": status}))).await.unwrap();
    let agent = bed.agent(Some(NODE));
    let patched = |status: Value| with(given.clone(), json!({"status": status}));
    for (status, words) in [
        (json!({"devices": [told(theirs, NODE), told(ours, "n2")]}), "its own devices on that node alone"),
        (json!({"devices": []}), "its own devices on that node alone"),
        (
            json!({"devices": [with(told(theirs, NODE), json!({"data": {"channel": 9}}))]}),
            "its own devices on that node",
        ),
        (json!({"reservedFor": [{"resource": "pods", "name": "q", "uid": "v"}]}), "allocates and reserves nothing"),
        (json!({"reservedFor": null}), "allocates and reserves nothing"),
        (json!({"allocation": null, "reservedFor": null}), "allocates and reserves nothing"),
    ] {
        refused(agent.replace_status(patched(status)).await, words);
    }
    refused(
        agent.replace(with(given.clone(), json!({"metadata": {"labels": {"a": "b"}}}))).await,
        "nothing else of it",
    );
    let told = patched(json!({"devices": [told(theirs, NODE), told(ours, NODE)]}));
    let told = agent.replace_status(told).await.unwrap();
    // And takes it back.
    agent.replace_status(with(told, json!({"status": {"devices": given["status"]["devices"]}}))).await.unwrap();
}

/// A field that a type gains must be thought of in the policy that guards it.
#[test]
fn the_policies_know_every_field_of_what_they_guard() {
    let crds: Vec<Value> = heddle_core::api::crds().into_iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    let fields = |kind: &str, part: &str| -> BTreeSet<String> {
        let crd = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]["properties"];
        schema.as_object().unwrap().keys().cloned().collect()
    };
    let objects = rendered();
    for (kind, part, name, prefix) in [
        ("IMEXNode", "spec", "heddle-agent-imexnodes", "object.spec"),
        ("IMEXDomain", "status", "heddle-agent-imexdomains", "object.status"),
    ] {
        let policy = &objects[&("ValidatingAdmissionPolicy".to_owned(), name.to_owned())];
        let text = policy["spec"].to_string();
        for field in fields(kind, part) {
            assert!(text.contains(&format!("{prefix}.{field}")), "{name} says nothing of {part}.{field}");
        }
    }
}

fn event(name: &str, controller: &str, instance: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Prepare", "reason": "Prepared", "type": "Normal",
        "reportingController": controller, "reportingInstance": instance,
        "regarding": {"kind": "ResourceClaim", "name": "c", "namespace": "default"},
    })
}

#[tokio::test]
async fn an_agent_reports_events_in_its_own_name() {
    let bed = Bed::new().await;
    let agent = bed.agent(Some(NODE));
    refused(agent.create(event("a", "heddle-controller", NODE)).await, "Events as heddle-agent of that node alone");
    refused(agent.create(event("a", "heddle-agent", "n2")).await, "Events as heddle-agent of that node alone");
    refused(bed.agent(None).create(event("a", "heddle-agent", NODE)).await, "bound to no node");
    let own = agent.create(event("a", "heddle-agent", NODE)).await.unwrap();
    let own = agent
        .replace(with(own, json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}})))
        .await
        .unwrap();
    refused(agent.replace(with(own, json!({"reportingInstance": "n2"}))).await, "of that node alone");
    let other = bed.admin().create(event("b", "kubelet", "n2")).await.unwrap();
    refused(
        agent.replace(with(other, json!({"reportingController": "heddle-agent", "reportingInstance": NODE}))).await,
        "of that node alone",
    );
    // The API server takes no longer instance than this.
    let long = "n".repeat(200);
    bed.agent(Some(&long)).create(event("c", "heddle-agent", &long[..128])).await.unwrap();
    refused(bed.agent(Some(&long)).create(event("d", "heddle-agent", &long[..127])).await, "of that node alone");
}

/// A DaemonSet's pod is deleted when its node loses the label that chose it, whatever the update strategy.
#[tokio::test]
async fn a_lost_label_ends_no_daemon() {
    let bed = Bed::new().await;
    bed.admin().create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "heddle"}})).await.unwrap();
    let labels =
        rendered()[&("DaemonSet".to_owned(), "heddle-imex".to_owned())]["spec"]["selector"]["matchLabels"].clone();
    let pod = |name: &str, labels: &Value, phase: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "heddle", "labels": labels},
            "spec": {"nodeName": NODE, "containers": [{"name": "x", "image": "x"}]}, "status": {"phase": phase},
        })
    };
    let daemonsets = Writer(bed.server.client_of(User::service_account("kube-system", "daemon-set-controller", None)));
    for (name, phase, stays) in [("runs", "Running", true), ("failed", "Failed", false), ("waits", "Pending", false)] {
        let made = bed.admin().create(pod(name, &labels, phase)).await.unwrap();
        let made = bed.admin().replace_status(with(made, json!({"status": {"phase": phase}}))).await.unwrap();
        let deleted = daemonsets.delete(&made).await;
        assert_eq!(deleted.is_err(), stays, "{name}");
        if stays {
            refused(deleted, "then delete its imex pod yourself");
            bed.admin().delete(&made).await.unwrap();
        }
    }
    let agent = with(labels, json!({"app.kubernetes.io/component": "agent"}));
    let agent = bed.admin().create(pod("agent", &agent, "Running")).await.unwrap();
    daemonsets.delete(&agent).await.unwrap();
}

#[test]
fn every_policy_fails_closed_and_is_bound() {
    let objects = rendered();
    let policies: Vec<_> = objects.iter().filter(|((kind, _), _)| kind == "ValidatingAdmissionPolicy").collect();
    let known: Vec<_> = names::POLICIES.into_iter().chain(["heddle-imex-pods"]).collect();
    assert_eq!(policies.iter().map(|((_, name), _)| name.as_str()).collect::<Vec<_>>(), known);
    for ((_, name), policy) in policies {
        assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
        let binding = &objects[&("ValidatingAdmissionPolicyBinding".to_owned(), name.clone())];
        assert_eq!(binding["spec"]["policyName"], json!(name));
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    }
}
