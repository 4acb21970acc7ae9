use heddle_core::api::IsolationMode::Channel;
use heddle_core::controller::READY;
use heddle_integration::api::Verb;
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

/// Writes of IMEXDomains so far: those that changed the spec, and all.
fn writes(cluster: &Cluster) -> (usize, usize) {
    let (mut specs, mut all) = (0, 0);
    let mut history = cluster.server.history();
    while let Some(change) = history.try_next().unwrap() {
        if change.kind() == "IMEXDomain" {
            let spec = |object: &serde_json::Value| object["spec"].clone();
            all += 1;
            specs += usize::from(change.previous().is_none_or(|before| spec(before) != spec(change.object())));
        }
    }
    (specs, all)
}

#[test]
fn a_clique_of_eighteen_that_boots_at_once_is_assigned_in_a_handful_of_writes() {
    test(0, async |cluster: &mut Cluster| {
        for n in 0..18 {
            cluster.add_node(&format!("n{n}")).await;
        }
        // Each agent makes its object and reports, all at the same time.
        for _ in 0..2 {
            futures::future::join_all(cluster.agents.iter().map(|agent| agent.work())).await;
        }
        let mut indices: Vec<_> = members(cluster, 18).await.into_iter().map(|(_, index)| index).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..18).collect::<Vec<_>>());
        for agent in &cluster.agents {
            cluster.served(&agent.name, &home()).await;
        }
        cluster.until_quiet().await;
        let (specs, all) = writes(cluster);
        assert!(specs <= 4 && all <= 12, "{specs} writes of the members and {all} of the IMEXDomain for 18 nodes");
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
fn a_nineteenth_node_is_told_on_its_own_object_and_others_are_not_written_to() {
    test(18, async |cluster: &mut Cluster| {
        members(cluster, 18).await;
        for agent in &cluster.agents {
            cluster.served(&agent.name, &home()).await;
        }
        cluster.until_quiet().await;
        let version = |kind, name: &str| {
            let objects = cluster.server.objects("imex.heddle.dev", kind);
            let object = objects.iter().find(|object| object["metadata"]["name"] == *name).unwrap();
            object["metadata"]["resourceVersion"].clone()
        };
        let names: Vec<_> = (0..18).map(|n| format!("n{n}")).collect();
        let versions = || {
            let nodes: Vec<_> = names.iter().map(|name| version("imexnodes", name)).collect();
            (nodes, version("imexdomains", &home()))
        };
        let before = versions();
        let node: Node = serde_json::from_value(json!({"metadata": {"name": "n18"}})).unwrap();
        Api::all(cluster.client.clone()).create(&Default::default(), &node).await.unwrap();
        let agent = crate::agent::Agent::new("n18", cluster.client.clone());
        let seen = || async {
            agent.work().await;
            cluster.nodes().get_opt("n18").await.unwrap()?.spec.refused
        };
        let refused = cluster.until("it is told", seen).await;
        assert_eq!(refused.reason, "DomainFull");
        assert!(refused.message.contains("no place for node n18: all 18 are taken"), "{refused:?}");
        let seen = || async { cluster.events("DomainFull").await.pop() };
        let event = cluster.until("an Event", seen).await;
        assert_eq!(event.regarding.unwrap().kind.as_deref(), Some("Node"));
        assert!(event.note.unwrap().contains("all 18 are taken"));
        cluster.until_quiet().await;
        assert_eq!(versions(), before);

        // Another goes: its place is free, and the one too many is told no more.
        cluster.agent("n3").kill();
        Api::<Node>::all(cluster.client.clone()).delete("n3", &DeleteParams::default()).await.unwrap();
        let seen = || async {
            agent.work().await;
            let node = cluster.nodes().get_opt("n18").await.unwrap()?;
            (node.spec.refused.is_none() && node.spec.domain.as_deref() == Some(&home())).then_some(())
        };
        cluster.until("it has a place", seen).await;
    });
}

#[test]
fn issue_1050_a_node_that_the_controller_has_not_seen_yet_is_not_pruned() {
    test(1, async |cluster: &mut Cluster| {
        members(cluster, 1).await;
        // From now on the controller hears of no Node that comes.
        cluster.server.fail_requests(|request| {
            let blind = request.plural == "nodes" && matches!(request.verb, Verb::List | Verb::Watch);
            blind.then(|| kube::core::Status::failure("away", "Away").with_code(503))
        });
        cluster.server.disconnect();
        cluster.add_node("n9").await;
        let seen = || async {
            let node = cluster.nodes().get_opt("n9").await.unwrap()?;
            node.status.is_some().then_some(())
        };
        cluster.until("it has reported", seen).await;
        cluster.until_quiet().await;
        let mut history = cluster.server.history();
        while let Some(change) = history.try_next().unwrap() {
            let gone = change.event == heddle_integration::api::EventType::Deleted;
            assert!(!(gone && change.kind() == "IMEXNode"), "{}", change.object());
        }
        cluster.server.heal();
        members(cluster, 2).await;
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
