//! The life cycle of plugin and claims as the kubelet's own tests go through it, with the agent on the other side.

use heddle_core::names;
use heddle_integration::api::Verb;
use heddle_integration::kubelet::Kubelet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use tokio::net::UnixListener;

use crate::bed::{Bed, POD, run};
use crate::kubelet::{delete, kubelet, running, until};

/// Waits until so many claims have been asked to be unprepared.
async fn unprepares(kubelet: &Kubelet, count: u64) {
    until(|| (kubelet.counts().unprepare_calls >= count).then_some(())).await;
}

async fn nothing_left(bed: &Bed) {
    let left = || bed.cdi_files().len() + bed.checkpoints().len() + bed.stub.borrow().held.len();
    until(|| (left() == 0).then_some(())).await;
}

#[test]
fn case_3_a_registration_that_nobody_answers_is_made_good_when_the_agent_is_there() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        // A socket that takes the kubelet's call and ends without a word.
        let place = bed.paths.registry().join(format!("{}-{POD}-reg.sock", names::DRIVER));
        let silent = UnixListener::bind(&place).unwrap();
        let (called, _) = silent.accept().await.unwrap();
        drop((called, silent));
        let _agent = bed.start().await;
        bed.pod_with_claim("p").await;
        running(&kubelet, "p").await;
    });
}

#[test]
fn case_5_the_service_socket_listens_before_the_registration_is_seen() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start_without_waiting().await;
        // Whenever a registration socket is there, its service socket takes calls.
        for driver in [names::DRIVER, names::GPU_DRIVER] {
            let place = bed.paths.registry().join(format!("{driver}-{POD}-reg.sock"));
            until(|| place.exists().then_some(())).await;
            assert!(std::os::unix::net::UnixStream::connect(agent.service(driver)).is_ok());
        }
    });
}

#[test]
fn case_6_a_service_socket_that_drops_and_returns_is_called_again_over_one_connection() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let agent = bed.start().await;
        bed.pod_with_claim("p1").await;
        running(&kubelet, "p1").await;
        let before = kubelet.counts().connections;
        bed.kill(agent).await;
        let _agent = bed.start().await;
        let domain = bed.uid_of("green").await;
        bed.claim("c2", &domain).await;
        bed.pod("p2", "c2").await;
        running(&kubelet, "p2").await;
        let again = kubelet.counts().connections;
        assert!(again > before);
        bed.claim("c3", &domain).await;
        bed.pod("p3", "c3").await;
        running(&kubelet, "p3").await;
        assert_eq!(kubelet.counts().connections, again);
        assert_eq!(bed.cdi_files().len(), 3);
    });
}

#[test]
fn case_26_an_unprepare_that_fails_and_then_succeeds_lets_the_pod_end() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let _agent = bed.start().await;
        bed.pod_with_claim("p").await;
        running(&kubelet, "p").await;
        // The tombstone cannot be written.
        let folder = bed.paths.state().join("claims").join(names::DRIVER);
        let aside = bed.paths.state().join("aside");
        std::fs::rename(&folder, &aside).unwrap();
        std::fs::write(&folder, "no folder").unwrap();
        delete(&bed, "p").await;
        unprepares(&kubelet, 2).await;
        assert_eq!(bed.cdi_files().len(), 1, "what could not be buried is not taken apart");
        std::fs::remove_file(&folder).unwrap();
        std::fs::rename(&aside, &folder).unwrap();
        nothing_left(&bed).await;
        let pods = kube::Api::<Pod>::namespaced(bed.client.clone(), "team");
        while !pods.list(&ListParams::default()).await.unwrap().items.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
    });
}

#[test]
fn case_27_an_unprepare_is_repeated_by_the_next_kubelet() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let agent = bed.start().await;
        bed.pod_with_claim("p").await;
        running(&kubelet, "p").await;
        bed.kill(agent).await;
        delete(&bed, "p").await;
        kubelet.restart().await;
        let agent = bed.start().await;
        nothing_left(&bed).await;
        // And once more: the first answer may have been lost.
        let claim = bed.read_claim("c").await.metadata.uid.unwrap();
        let claim = heddle_proto::dra::v1::Claim { namespace: "team".into(), name: "c".into(), uid: claim };
        agent.unprepare(&claim).await.unwrap();
    });
}

#[test]
fn case_32_a_pod_that_is_deleted_by_force_is_unprepared_all_the_same() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let _agent = bed.start().await;
        bed.pod_with_claim("p").await;
        running(&kubelet, "p").await;
        let pods = kube::Api::<Pod>::namespaced(bed.client.clone(), "team");
        pods.delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
        nothing_left(&bed).await;
    });
}

#[test]
fn case_34_and_issues_340_and_342_claim_and_compute_domain_are_gone_and_unprepare_works_from_the_node_alone() {
    run(|| async {
        let bed = Bed::new().await;
        let (agent, domain, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        bed.delete(names::COMPUTE_DOMAIN_API_VERSION, "computedomains", "green").await;
        bed.delete("resource.k8s.io/v1", "resourceclaims", "c").await;
        bed.api_away();
        bed.requests();
        agent.unprepare(&claim).await.unwrap();
        assert!(!bed.requests().iter().any(|(verb, _)| matches!(verb, Verb::Get | Verb::List)), "nothing is asked for");
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty());
        assert!(!bed.stub.borrow().held.values().any(|held| *held == domain));
    });
}
