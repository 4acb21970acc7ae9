//! Several claims in a pod, several pods on a claim, several requests in a claim.

use heddle_core::names;
use heddle_integration::api::Verb;
use serde_json::{Value, json};

use crate::bed::{Agent, Bed, NODE, run, uses};

/// Two ComputeDomains and a claim of each.
async fn green_and_blue(bed: &Bed) -> [heddle_proto::dra::v1::Claim; 2] {
    let green = bed.compute_domain("team", "green", json!({})).await;
    let blue = bed.compute_domain("team", "blue", json!({})).await;
    [bed.claim("c-green", &green).await, bed.claim("c-blue", &blue).await]
}

fn reads(bed: &Bed, plural: &str) -> usize {
    bed.requests().iter().filter(|(verb, of)| *verb == Verb::Get && of == plural).count()
}

async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

#[test]
fn two_channels_in_one_container_are_refused_and_claim_and_pod_say_so() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let [green, blue] = green_and_blue(&bed).await;
        bed.pod_of("p", json!({"containers": [uses("train", &["c-green", "c-blue"])]})).await;
        let answers = agent.prepare(&[&green, &blue]).await;
        for claim in [&green, &blue] {
            let error = &answers[&claim.uid].error;
            assert!(error.starts_with("container train of pod team/p uses two ComputeDomains"), "{error}");
        }
        assert!(bed.cdi_files().is_empty() && bed.checkpoints().is_empty() && bed.stub.borrow().held.is_empty());
        let said = |kind: &str| {
            let events = bed.server.objects("", "events");
            events.iter().any(|event| {
                let event = serde_json::to_value(event).unwrap();
                event["reason"] == "TwoChannelsInContainer"
                    && [&event["regarding"], &event["involvedObject"]].iter().any(|about| about["kind"] == kind)
            })
        };
        until(|| said("ResourceClaim") && said("Pod")).await;
    });
}

#[test]
fn several_compute_domains_in_one_pod_get_a_channel_each() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let [green, blue] = green_and_blue(&bed).await;
        let spec = json!({"initContainers": [uses("init", &["c-green"])],
            "containers": [uses("one", &["c-green"]), uses("two", &["c-blue"])]});
        bed.pod_of("p", spec).await;
        let answers = agent.prepare(&[&green, &blue]).await;
        let ids = |uid: &str| answers[uid].devices[0].cdi_device_ids.clone();
        assert!(answers.values().all(|answer| answer.error.is_empty()), "{answers:?}");
        assert_ne!(ids(&green.uid), ids(&blue.uid));
        assert_eq!(bed.inject(&ids(&green.uid)).len(), 1);
    });
}

#[test]
fn a_second_compute_domain_of_the_namespace_is_what_makes_pods_be_read() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let [green, blue] = green_and_blue(&bed).await;
        bed.pod_of("p1", json!({"containers": [uses("one", &["c-green"])]})).await;
        agent.prepare_one(&green).await.unwrap();
        assert_eq!(reads(&bed, "pods"), 0, "alone in its namespace");

        // A later pod brings a claim that is prepared already together with a fresh one, for which alone the kubelet calls.
        bed.pod_of("p2", json!({"containers": [uses("both", &["c-green", "c-blue"])]})).await;
        let refused = agent.prepare_one(&blue).await.unwrap_err();
        assert!(refused.contains("container both of pod team/p2"), "{refused}");
        assert_eq!(reads(&bed, "pods"), 1);

        // The same after a restart of the agent, which knows of the other claim from its checkpoint.
        bed.kill(agent).await;
        let agent = bed.start().await;
        assert!(agent.prepare_one(&blue).await.unwrap_err().contains("container both"));
        agent.unprepare(&green).await.unwrap();
        bed.requests();
        agent.prepare_one(&blue).await.unwrap();
        assert_eq!(reads(&bed, "pods"), 0);
    });
}

#[test]
fn a_pod_that_cannot_be_read_is_not_trusted() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let [green, blue] = green_and_blue(&bed).await;
        bed.pod_of("p", json!({"containers": [uses("one", &["c-green"]), uses("two", &["c-blue"])]})).await;
        bed.server.fail_requests(|request| {
            let away = || kube::core::Status::failure("away", "ServiceUnavailable").with_code(503);
            (request.plural == "pods").then(away)
        });
        let answers = agent.prepare(&[&green, &blue]).await;
        assert!(
            answers.values().all(|answer| answer.error.contains("could not be asked for Pod team/p")),
            "{answers:?}"
        );
        assert!(bed.cdi_files().is_empty() && bed.stub.borrow().held.is_empty());
        bed.heal();
        let answers = agent.prepare(&[&green, &blue]).await;
        assert!(answers.values().all(|answer| answer.error.is_empty()), "{answers:?}");
    });
}

/// The devices of a claim's answer: request names and how many CDI ids.
async fn answered(agent: &Agent, claim: &heddle_proto::dra::v1::Claim) -> Vec<(Vec<String>, usize)> {
    let answer = agent.prepare(&[claim]).await.remove(&claim.uid).unwrap();
    assert_eq!(answer.error, "");
    answer.devices.into_iter().map(|device| (device.request_names, device.cdi_device_ids.len())).collect()
}

fn config(domain: &str) -> Value {
    json!([{"source": "FromClaim", "opaque": {"driver": names::DRIVER, "parameters": {
        "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": names::CHANNEL_CONFIG_KIND, "domainID": domain}}}])
}

fn slot(request: &str, device: &str) -> Value {
    json!({"request": request, "driver": names::DRIVER, "pool": NODE, "device": device})
}

fn exactly(name: &str) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": names::CHANNEL_DEVICE_CLASS}})
}

#[test]
fn several_requests_of_one_claim_are_answered_by_the_one_channel_each() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let results = json!([slot("a", "slot-1"), slot("b", "slot-2")]);
        let allocation = json!({"results": results, "config": config(&domain)});
        let claim = bed.claim_of("c", json!([exactly("a"), exactly("b")]), allocation).await;
        assert_eq!(answered(&agent, &claim).await, [(vec!["a".to_owned()], 1), (vec!["b".to_owned()], 1)]);
        assert_eq!((bed.stub.borrow().enters, bed.cdi_files().len()), (1, 1));
    });
}

#[test]
fn first_available_is_answered_by_the_names_of_main_and_alternative() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let class = names::CHANNEL_DEVICE_CLASS;
        let requests = json!([{"name": "main", "firstAvailable": [
            {"name": "big", "deviceClassName": class, "count": 4}, {"name": "small", "deviceClassName": class}]}]);
        let allocation = json!({"results": [slot("main/small", "slot-1")], "config": config(&domain)});
        let claim = bed.claim_of("c", requests, allocation).await;
        assert_eq!(answered(&agent, &claim).await, [(vec!["main".to_owned(), "main/small".to_owned()], 1)]);
    });
}

#[test]
fn admin_access_shares_a_slot_and_gives_the_claim_s_own_compute_domain() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let holder = bed.claim("holder", &domain).await;
        let mut admin = slot("channel", "slot-3");
        admin["adminAccess"] = json!(true);
        let allocation = json!({"results": [admin], "config": config(&domain)});
        let claim = bed.claim_of("c", json!([exactly("channel")]), allocation).await;
        let other = bed.compute_domain("other", "blue", json!({})).await;
        let mut foreign = slot("channel", "slot-3");
        foreign["adminAccess"] = json!(true);
        let allocation = json!({"results": [foreign], "config": config(&other)});
        let foreign = bed.claim_of("foreign", json!([exactly("channel")]), allocation).await;

        agent.prepare_one(&holder).await.unwrap();
        assert_eq!(bed.inject(&agent.prepare_one(&claim).await.unwrap()).len(), 1);
        let refused = agent.prepare_one(&foreign).await.unwrap_err();
        assert!(refused.contains("of its own namespace"), "{refused}");
        agent.unprepare(&claim).await.unwrap();
        assert_eq!(bed.cdi_files().len(), 1, "the slot's holder keeps what it has");
    });
}

#[test]
fn issue_309_pods_that_share_a_claim_or_a_compute_domain_have_its_one_channel() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let (shared, own) = (bed.claim("shared", &domain).await, bed.claim("own", &domain).await);
        bed.pod("p1", "shared").await;
        bed.pod("p2", "shared").await;
        bed.pod("p3", "own").await;
        let one = bed.inject(&agent.prepare_one(&shared).await.unwrap());
        assert_eq!(bed.inject(&agent.prepare_one(&own).await.unwrap()), one);
        assert_eq!(reads(&bed, "pods"), 0);
        agent.unprepare(&shared).await.unwrap();
        assert_eq!((bed.cdi_files().len(), bed.stub.borrow().held.len()), (1, 1));
    });
}

#[test]
fn a_call_with_many_claims_has_as_many_answers() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let mut claims = Vec::new();
        for index in 0..32 {
            claims.push(bed.claim(&format!("c{index}"), &domain).await);
        }
        let answers = agent.prepare(&claims.iter().collect::<Vec<_>>()).await;
        assert!(answers.values().all(|answer| answer.error.is_empty() && answer.devices.len() == 1));
        assert_eq!(bed.cdi_files().len(), 32);
    });
}
