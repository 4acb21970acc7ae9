//! Two controllers, of which one leads.

use std::time::Duration;

use heddle_actors::identity;
use heddle_core::api::ChannelState;
use heddle_core::api::IsolationMode::{Channel, Domain};
use heddle_core::controller::READY;
use heddle_core::identity::{SIGNER, USAGES, request_name};
use heddle_integration::api::User;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::{Cluster, exclusive, home, test_alone};
use crate::replica::{Replica, Replicas};

/// Leases of the tests that wait until one runs out.
const SHORT: u32 = 6;

/// Two controllers, the one that leads first.
async fn pair(cluster: &Cluster, replicas: &Replicas) -> (Replica, Replica) {
    let (a, b) = (replicas.start("a").await, replicas.start("b").await);
    let leader = cluster.until("somebody leads", || replicas.holder()).await;
    for replica in [&a, &b] {
        // Both know the cluster, so that the one that stands by can go on at once.
        let ready = || async { replica.get("/readyz").await.filter(|answer| answer.contains(" 200 ")).map(drop) };
        polled(&format!("{} is ready", replica.name), ready).await;
    }
    if leader == "a" { (a, b) } else { (b, a) }
}

/// For what no write to the API tells of.
async fn polled<T, F: Future<Output = Option<T>>>(what: &str, seen: impl Fn() -> F) -> T {
    for _ in 0..400 {
        if let Some(found) = seen().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: it has not come to that");
}

async fn leads(cluster: &Cluster, replicas: &Replicas, name: &str) {
    let seen = || async { (replicas.holder().await.as_deref() == Some(name)).then_some(()) };
    cluster.until(&format!("{name} leads"), seen).await;
}

/// A node's agent asks for the identity of the shared domain and gets it, from whoever leads.
async fn is_signed(cluster: &Cluster, node: &str) {
    let client = cluster.server.client_of(User::service_account("heddle", "heddle-agent", Some(node)));
    let pem = identity::request(&home(), &identity::new_key().unwrap()).unwrap();
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(request_name(node, fastrand::u64(..))), ..Default::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: SIGNER.into(),
            usages: Some(USAGES.map(String::from).into()),
            expiration_seconds: Some(3600),
            ..Default::default()
        },
        status: None,
    };
    let api = Api::<CertificateSigningRequest>::all(client);
    let made = api.create(&PostParams::default(), &csr).await.unwrap();
    let seen = || async { api.get(&made.name_any()).await.unwrap().status?.certificate.map(drop) };
    cluster.until("the certificate", seen).await;
}

#[test]
fn one_that_is_killed_half_way_through_is_followed_by_the_other() {
    test_alone(2, async |cluster: &mut Cluster| {
        let replicas = Replicas::new(cluster, SHORT).await;
        let (first, second) = pair(cluster, &replicas).await;
        for (replica, value) in [(&first, "heddle_leader 1"), (&second, "heddle_leader 0")] {
            for said in [value, r#"heddle_crd_fits{crd="computedomains.resource.nvidia.com"} 1"#] {
                let told = || async { replica.get("/metrics").await.filter(|answer| answer.contains(said)).map(drop) };
                polled(&format!("{} says {said}", replica.name), told).await;
            }
        }
        let green = cluster.create("green", Channel).await;
        let red = cluster.create("red", Domain).await;
        cluster.place(&green, Channel, "n0").await;
        cluster.prepared(&green, "n0").await;
        cluster.served("n1", &home()).await;

        is_signed(cluster, "n0").await;

        // Half-way: green's channel drains and is in use, n1 is announced as away from home and has not moved.
        replicas.deny(&first, "imexnodes");
        cluster.delete("green").await;
        cluster.place(&red, Domain, "n1").await;
        let half_way = || async {
            let domain = cluster.domains().get(&home()).await.unwrap();
            let draining = domain.status?.channels.get(&green.uid)?.state == ChannelState::Draining;
            (draining && domain.spec.members["n1"].away).then_some(())
        };
        cluster.until("drain and move are half-way through", half_way).await;
        first.kill().await;

        assert_eq!(cluster.prepared(&red, "n1").await.0, exclusive(&red.uid));
        leads(cluster, &replicas, &second.name).await;
        is_signed(cluster, "n0").await;
        cluster.end(&green, "n0").await;
        cluster.gone("green").await;
        cluster.freed(&home(), &green.uid).await;
        cluster.condition("red", READY, "True", "NodesReady").await;
        replicas.check();
        assert_eq!(replicas.writers().len(), 2, "both have led");
        second.stop().await;
    });
}

#[test]
fn an_orderly_end_hands_over_without_waiting_for_the_lease() {
    test_alone(1, async |cluster: &mut Cluster| {
        // Nobody waits for as long as this.
        let replicas = Replicas::new(cluster, 600).await;
        let (first, second) = pair(cluster, &replicas).await;
        cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        first.stop().await;
        leads(cluster, &replicas, &second.name).await;
        cluster.create("blue", Channel).await;
        cluster.condition("blue", READY, "True", "NoPods").await;
        let lease: Lease = Api::namespaced(cluster.client.clone(), "heddle").get("heddle-controller").await.unwrap();
        assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));
        replicas.check();
        second.stop().await;
    });
}

#[test]
fn one_that_is_cut_off_has_stopped_before_the_other_begins() {
    test_alone(1, async |cluster: &mut Cluster| {
        let replicas = Replicas::new(cluster, SHORT).await;
        let (first, second) = pair(cluster, &replicas).await;
        cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        replicas.deny(&first, "");
        // It has seen this one before it was cut off, or has not; it goes on trying as long as it may.
        cluster.create("blue", Channel).await;
        leads(cluster, &replicas, &second.name).await;
        cluster.condition("blue", READY, "True", "NoPods").await;
        replicas.allow_all();
        cluster.create("pale", Channel).await;
        cluster.condition("pale", READY, "True", "NoPods").await;
        cluster.until_quiet_but_for_leases().await;
        replicas.check();
        // And back: it knows by then what it has missed.
        second.kill().await;
        leads(cluster, &replicas, &first.name).await;
        cluster.delete("green").await;
        cluster.gone("green").await;
        replicas.check();
        first.stop().await;
    });
}

#[test]
fn one_that_was_stopped_and_wakes_up_writes_nothing() {
    test_alone(1, async |cluster: &mut Cluster| {
        let replicas = Replicas::new(cluster, SHORT).await;
        let (first, second) = pair(cluster, &replicas).await;
        for n in 0..8 {
            cluster.create(&format!("a{n}"), Channel).await;
        }
        // In the midst of its work.
        cluster.condition("a0", READY, "True", "NoPods").await;
        first.pause();
        for n in 0..8 {
            cluster.create(&format!("b{n}"), Channel).await;
        }
        leads(cluster, &replicas, &second.name).await;
        first.resume();
        for n in 0..8 {
            cluster.create(&format!("c{n}"), Channel).await;
        }
        for name in ["a", "b", "c"] {
            for n in 0..8 {
                cluster.condition(&format!("{name}{n}"), READY, "True", "NoPods").await;
            }
        }
        cluster.until_quiet_but_for_leases().await;
        replicas.check();
        first.stop().await;
        second.stop().await;
    });
}

#[test]
fn a_lease_is_waited_for_by_the_own_clock_whatever_time_it_names() {
    test_alone(0, async |cluster: &mut Cluster| {
        let lease: Lease = serde_json::from_value(json!({
            "metadata": {"name": "heddle-controller", "namespace": "heddle"},
            "spec": {
                "holderIdentity": "gone_1", "leaseDurationSeconds": 1, "leaseTransitions": 6,
                "acquireTime": "2096-01-01T00:00:00.000000Z", "renewTime": "2096-01-01T00:00:00.000000Z",
            },
        }))
        .unwrap();
        Api::namespaced(cluster.client.clone(), "heddle").create(&PostParams::default(), &lease).await.unwrap();
        let replicas = Replicas::new(cluster, SHORT).await;
        let replica = replicas.start("a").await;
        leads(cluster, &replicas, "a").await;
        cluster.create("green", Channel).await;
        cluster.condition("green", READY, "True", "NoPods").await;
        replicas.check();
        replica.stop().await;
    });
}
