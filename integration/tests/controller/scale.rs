use heddle_core::api::IsolationMode::Channel;

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
