use std::time::Duration;

use heddle_core::api::ComputeDomain;
use heddle_core::api::IsolationMode::Channel;
use heddle_core::names;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::cluster::{Cluster, test};

#[test]
fn a_hundred_at_once_are_made_and_unmade_with_few_writes() {
    test(0, async |cluster: &mut Cluster| {
        for n in 0..100 {
            cluster.create(&format!("cd-{n:02}"), Channel).await;
        }
        let all = || async {
            let ready = cluster.server.objects("resource.nvidia.com", "computedomains").into_iter();
            (ready.filter(|cd| cd["status"]["status"] == "Ready").count() == 100).then_some(())
        };
        cluster.until("all are ready", all).await;
        assert_eq!(cluster.server.objects("resource.k8s.io", "resourceclaimtemplates").len(), 100);
        let mut history = cluster.server.history();
        let mut writes = 0;
        while let Some(change) = history.try_next().unwrap() {
            writes += usize::from(["ComputeDomain", "ResourceClaimTemplate"].contains(&change.kind()));
        }
        // Created, finalizer, template, status.
        assert!(writes <= 400, "{writes} writes for 100 ComputeDomains");
        for n in 0..100 {
            cluster.delete(&format!("cd-{n:02}")).await;
        }
        let none = || async {
            let left = cluster.server.objects("resource.nvidia.com", "computedomains").len()
                + cluster.server.objects("resource.k8s.io", "resourceclaimtemplates").len();
            (left == 0).then_some(())
        };
        cluster.until("all are gone", none).await;
    });
}

/// With names as long as names can be. Nobody's turn comes later because others have many.
#[test]
fn thousands_in_one_namespace_are_served_and_leave_nothing() {
    const MANY: usize = 2000;
    test(1, async |cluster: &mut Cluster| {
        for n in 0..MANY {
            let name = format!("{n:04}-{}", "x".repeat(248));
            cluster.create_with_template(&name, Channel, &name).await;
        }
        // One of another namespace is served like any other.
        let other: Api<ComputeDomain> = Api::namespaced(cluster.client.clone(), "other");
        let spec = json!({"channel": {"resourceClaimTemplate": {"name": "t"}}});
        let cd = json!({"apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain",
            "metadata": {"name": "alone"}, "spec": spec});
        other.create(&PostParams::default(), &serde_json::from_value(cd).unwrap()).await.unwrap();
        let ready =
            |objects: Vec<serde_json::Value>| objects.iter().filter(|cd| cd["status"]["status"] == "Ready").count();
        poll(|| ready(cluster.server.objects("resource.nvidia.com", "computedomains")) == MANY + 1).await;
        assert_eq!(cluster.server.objects("resource.k8s.io", "resourceclaimtemplates").len(), MANY + 1);
        cluster.cds().delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
        poll(|| cluster.server.objects("resource.nvidia.com", "computedomains").len() == 1).await;
        poll(|| cluster.server.objects("resource.k8s.io", "resourceclaimtemplates").len() == 1).await;
    });
}

/// Looking at thousands after each change of one would be the slowest thing in the test.
async fn poll(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
