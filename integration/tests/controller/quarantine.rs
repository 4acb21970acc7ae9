//! Nodes that are lost with channels, and what a person can do about them.

use heddle_actors::channel_admin::{self, Wanted};
use heddle_core::api::ComputeDomainRef;
use heddle_core::api::IsolationMode::Channel;
use heddle_core::channels::State;
use heddle_core::controller::{DEGRADED, READY};
use heddle_core::fault::{Class, reason};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::cluster::{Cluster, home, test};

fn nodes(cluster: &Cluster) -> Api<Node> {
    Api::all(cluster.client.clone())
}

fn wanted(node: &str) -> Wanted {
    Wanted { node: node.into(), compute_domain: None, vouched: false, dry_run: false }
}

async fn state(cluster: &Cluster, cd: &ComputeDomainRef) -> Option<State> {
    let all = channel_admin::list(&cluster.client, None).await.unwrap();
    all.into_iter().find(|channel| channel.uid == cd.uid).map(|channel| channel.state)
}

/// `n0` is dead, its Node says so or is gone; `green`, which it has entered, is deleted.
async fn lost(cluster: &Cluster, green: &ComputeDomainRef) {
    cluster.place(green, Channel, "n0").await;
    cluster.prepared(green, "n0").await;
    cluster.agent("n0").kill();
    cluster.claims().delete("green-n0", &DeleteParams::default()).await.unwrap();
    cluster.delete("green").await;
    let text = cluster.condition("green", READY, "False", "Deleting").await;
    assert!(text.contains("node n0 to leave its channel"), "{text}");
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    nodes(cluster).patch_status("n0", &PatchParams::default(), &Patch::Merge(unknown)).await.unwrap();
    cluster.gone("green").await;
}

#[test]
fn issue_348_and_349_a_lost_node_keeps_its_number_until_a_person_releases_it() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        lost(cluster, &green).await;
        let note =
            cluster.until("an Event", || async { cluster.events(reason::CHANNEL_QUARANTINED).await.pop() }).await;
        assert!(note.note.as_ref().unwrap().ends_with("heddle channel release --node n0"), "{note:?}");
        cluster.until_quiet().await;
        assert_eq!(state(cluster, &green).await, Some(State::Quarantined));
        nodes(cluster).delete("n0", &DeleteParams::default()).await.unwrap();
        cluster.until_quiet().await;
        assert_eq!(state(cluster, &green).await, Some(State::Quarantined), "its IMEXNode outlives its Node");

        let before = cluster.server.resource_version();
        let dry = Wanted { dry_run: true, compute_domain: Some("team/green".into()), ..wanted("n0") };
        let release = channel_admin::release(&cluster.client, &dry).await.unwrap();
        let told = release.told(&dry);
        assert!(told.starts_with("would release channel 1 of IMEX domain shared-"), "{told}");
        assert!(told.contains("for ComputeDomain team/green, UID "), "{told}");
        for nothing in [
            Wanted { node: "n9".into(), ..dry.clone() },
            Wanted { compute_domain: Some("team/blue".into()), ..dry.clone() },
            Wanted { node: "n1".into(), compute_domain: None, vouched: true, ..dry },
        ] {
            let fault = channel_admin::release(&cluster.client, &nothing).await.unwrap_err();
            assert_eq!((fault.class, fault.reason), (Class::Permanent, reason::NOTHING_TO_RELEASE), "{fault}");
        }
        assert_eq!(cluster.server.resource_version(), before, "nothing was written");

        channel_admin::release(&cluster.client, &wanted("n0")).await.unwrap();
        cluster.freed(&home(), &green.uid).await;
        let pruned = || async { cluster.nodes().get_opt("n0").await.unwrap().is_none().then_some(()) };
        cluster.until("the IMEXNode goes after its Node", pruned).await;
        assert_eq!(cluster.events(reason::CHANNEL_RELEASED).await.len(), 1);
    });
}

#[test]
fn a_node_that_comes_back_after_a_reboot_ends_the_quarantine_itself() {
    test(2, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        lost(cluster, &green).await;
        assert_eq!(state(cluster, &green).await, Some(State::Quarantined));
        cluster.agent("n0").reboot();
        cluster.freed(&home(), &green.uid).await;
    });
}

#[test]
fn a_node_that_may_live_is_released_only_by_who_vouches_for_it() {
    test(1, async |cluster: &mut Cluster| {
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        cluster.agent("n0").kill();
        let refused = async |words: &str| {
            let fault = channel_admin::release(&cluster.client, &wanted("n0")).await.unwrap_err();
            assert!(fault.reason == reason::NODE_ALIVE && fault.message.contains(words), "{fault}");
        };
        refused("n0 is Ready").await;
        nodes(cluster).delete("n0", &DeleteParams::default()).await.unwrap();
        // The Node is gone, its kubelet is not: somebody has deleted the object by hand.
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {"name": "n0"},
            "spec": {"leaseDurationSeconds": 3600, "renewTime": format!("{:.6}", jiff::Timestamp::now())},
        }))
        .unwrap();
        let api = Api::<Lease>::namespaced(cluster.client.clone(), "kube-node-lease");
        api.create(&PostParams::default(), &lease).await.unwrap();
        refused("has renewed its lease").await;
        let vouched = Wanted { vouched: true, ..wanted("n0") };
        channel_admin::release(&cluster.client, &vouched).await.unwrap();
        let map = cluster.domains().get(&home()).await.unwrap().status.unwrap();
        assert!(map.channels.contains_key(&green.uid), "its ComputeDomain lives and keeps its number");
        cluster.condition("green", DEGRADED, "False", "AsExpected").await;
    });
}
