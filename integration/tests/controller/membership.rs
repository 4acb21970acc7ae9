use heddle_core::api::IsolationMode::Channel;
use heddle_core::controller::READY;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::cluster::{Cluster, home, test};

async fn members(cluster: &Cluster, count: usize) -> Vec<(String, u32)> {
    let seen = || async {
        let members = cluster.domains().get_opt(&home()).await.unwrap()?.spec.members;
        (members.len() == count).then(|| members.into_iter().map(|(node, member)| (node, member.index)).collect())
    };
    cluster.until(&format!("{count} members"), seen).await
}

#[test]
fn a_clique_of_eighteen_is_assigned_in_a_handful_of_writes() {
    test(18, async |cluster: &mut Cluster| {
        let mut indices: Vec<_> = members(cluster, 18).await.into_iter().map(|(_, index)| index).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..18).collect::<Vec<_>>());
        for agent in &cluster.agents {
            cluster.served(&agent.name, &home()).await;
        }
        let mut history = cluster.server.history();
        let mut writes = 0;
        while let Some(change) = history.try_next().unwrap() {
            let spec = |object: &serde_json::Value| object["spec"].clone();
            let changed = change.previous().is_none_or(|before| spec(before) != spec(change.object()));
            writes += usize::from(change.kind() == "IMEXDomain" && changed);
        }
        assert!(writes <= 18, "{writes} writes of the members for 18 nodes that came one after the other");
    });
}

#[test]
fn a_node_that_goes_gives_its_index_back_but_not_what_it_lists() {
    test(2, async |cluster: &mut Cluster| {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let green = cluster.create("green", Channel).await;
        members(cluster, 2).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        for name in ["n0", "n1"] {
            cluster.agent(name).kill();
            nodes.delete(name, &DeleteParams::default()).await.unwrap();
        }
        assert_eq!(members(cluster, 1).await[0].0, "n0");
        assert!(cluster.nodes().get_opt("n1").await.unwrap().is_none());
        cluster.add_node("n2").await;
        let now = members(cluster, 2).await;
        assert!(now.iter().any(|(node, _)| node == "n2"), "{now:?}");

        // The number is quarantined, and the deletion of its ComputeDomain not held up.
        cluster.claims().delete("green-n0", &DeleteParams::default()).await.unwrap();
        cluster.delete("green").await;
        cluster.gone("green").await;
        cluster.until_quiet().await;
        let held = cluster.domains().get(&home()).await.unwrap().status.unwrap();
        assert!(held.channels.contains_key(&green.uid));
    });
}

#[test]
fn a_node_too_many_is_told() {
    test(19, async |cluster: &mut Cluster| {
        members(cluster, 18).await;
        let seen = || async { cluster.events("DomainFull").await.pop() };
        let event = cluster.until("an Event", seen).await;
        assert_eq!(event.regarding.unwrap().kind.as_deref(), Some("Node"));
        assert!(event.note.unwrap().contains("all 18 are taken"));
    });
}

#[test]
fn issue_348_and_349_a_node_that_has_lost_contact_does_not_hold_up_a_deletion() {
    test(1, async |cluster: &mut Cluster| {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let green = cluster.create("green", Channel).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.condition("green", READY, "True", "NodesReady").await;
        cluster.agent("n0").kill();
        cluster.delete("green").await;
        cluster.condition("green", READY, "False", "Deleting").await;
        let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
        nodes.patch_status("n0", &PatchParams::default(), &Patch::Merge(unknown)).await.unwrap();
        cluster.gone("green").await;
    });
}
