//! An agent may give one ComputeDomain a channel, and nothing else (design §11).

use heddle_core::api::{ComputeDomainRef, IMEXDomain, IsolationMode};
use heddle_core::protocol::{Allocate, allocate};
use serde_json::{Value, json};

use crate::{Bed, NODE, with};

const GREEN: &str = "11111111-1111-4111-8111-111111111111";
const BLUE: &str = "22222222-2222-4222-8222-222222222222";
const RED: &str = "33333333-3333-4333-8333-333333333333";

fn domain(members: &[&str]) -> Value {
    let members: serde_json::Map<String, Value> =
        members.iter().map(|node| ((*node).to_owned(), json!({"index": 0, "address": "10.0.0.1"}))).collect();
    json!({
        "apiVersion": "imex.heddle.dev/v1alpha1", "kind": "IMEXDomain", "metadata": {"name": "shared"},
        "spec": {"clique": "c.1", "kind": "Shared", "maxMembers": 18, "members": members},
    })
}

fn entry(channel: u32, epoch: u64) -> Value {
    json!({"channel": channel, "state": "Active", "epoch": epoch, "computeDomain": "team/x"})
}

/// The domain, in which green has channel 1 and blue 2, as the controller sees it healthy.
async fn two(bed: &Bed) -> Value {
    let made = bed.admin().create(domain(&[NODE, "n2"])).await.unwrap();
    let status = json!({
        "channels": {GREEN: entry(1, 1), BLUE: entry(2, 2)}, "epoch": 2, "lastChannel": 2,
        "health": {"expected": 2, "ready": 2, "state": "Up"},
    });
    bed.admin().replace_status(with(made, json!({"status": status}))).await.unwrap()
}

#[tokio::test]
async fn what_the_agent_decides_is_what_the_policy_allows() {
    let bed = Bed::new().await;
    let mut object = bed.admin().create(domain(&[NODE])).await.unwrap();
    // Round the end of the numbers, past one that is taken, and again for a freed one.
    for n in 0..9_u32 {
        let known: IMEXDomain = serde_json::from_value(object.clone()).unwrap();
        let uid = format!("{n:08x}-0000-4000-8000-000000000000");
        let cd = ComputeDomainRef { namespace: "team".into(), name: "x".into(), uid };
        let Ok(Allocate::Write { status, .. }) = allocate(&known, &cd, IsolationMode::Channel, 6) else {
            panic!("no channel for {n}");
        };
        let next = IMEXDomain { status: Some(status), ..known };
        let next = serde_json::to_value(&next).unwrap();
        object = bed.agent(Some(NODE)).replace_status(next).await.unwrap();
        if n >= 4 {
            // The controller frees one of them.
            let freed = format!("{:08x}-0000-4000-8000-000000000000", if n == 4 { 1 } else { n - 2 });
            let epoch = object["status"]["epoch"].as_u64().unwrap() + 1;
            let patch = json!({"status": {"channels": {freed: null}, "epoch": epoch}});
            object = bed.admin().replace_status(with(object, patch)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn nothing_but_one_new_channel_may_change() {
    let bed = Bed::new().await;
    let object = two(&bed).await;
    let alone = |status: Value| with(object.clone(), json!({"status": status}));
    let added = alone(json!({"channels": {RED: entry(3, 3)}, "epoch": 3, "lastChannel": 3}));
    let also = |status: Value| with(added.clone(), json!({"status": status}));
    let red =
        |channel: u32, last: u32| alone(json!({"channels": {RED: entry(channel, 3)}, "epoch": 3, "lastChannel": last}));
    let refused = [
        ("adds one", alone(json!({"channels": {GREEN: null}, "epoch": 3}))),
        ("adds one", alone(json!({"epoch": 3}))),
        ("adds one", also(json!({"channels": {"44444444-4444-4444-8444-444444444444": entry(4, 3)}}))),
        ("changes and removes no channel", also(json!({"channels": {GREEN: null}}))),
        ("changes and removes no channel", also(json!({"channels": {GREEN: {"channel": 7}}}))),
        ("changes and removes no channel", also(json!({"channels": {BLUE: {"state": "Draining"}}}))),
        ("UIDs of ComputeDomains", also(json!({"channels": {RED: null, "../../etc": entry(3, 3)}}))),
        ("of the next epoch", also(json!({"channels": {RED: {"state": "Draining"}}}))),
        ("of the next epoch", also(json!({"channels": {RED: {"epoch": 2}}}))),
        ("of the next epoch", also(json!({"epoch": 4}))),
        ("as namespace/name", also(json!({"channels": {RED: {"computeDomain": "a b/c d"}}}))),
        ("as namespace/name", also(json!({"channels": {RED: {"computeDomain": ""}}}))),
        ("no other ComputeDomain has", red(2, 2)),
        ("from 1 up", red(0, 0)),
        ("lastChannel is the number", also(json!({"lastChannel": 2}))),
        ("next free number", red(4, 4)),
        ("health of an IMEXDomain", also(json!({"health": {"state": "Down"}}))),
        ("health of an IMEXDomain", also(json!({"health": null}))),
    ];
    let agent = bed.agent(Some(NODE));
    for (words, object) in refused {
        let shown = object["status"].to_string();
        let why = agent.replace_status(object).await.expect_err(&shown);
        assert!(why.contains(words), "{shown}: {why}");
    }
    agent.replace_status(added).await.unwrap();
}

#[tokio::test]
async fn only_members_write_and_only_the_status() {
    let bed = Bed::new().await;
    let object = two(&bed).await;
    let added = json!({"channels": {RED: entry(3, 3)}, "epoch": 3, "lastChannel": 3});
    let wanted = with(object.clone(), json!({"status": added}));
    let why = bed.agent(Some("n3")).replace_status(wanted.clone()).await.unwrap_err();
    assert!(why.contains("node n3 is no member"), "{why}");
    let why = bed.agent(None).replace_status(wanted).await.unwrap_err();
    assert!(why.contains("bound to no node"), "{why}");
    let agent = bed.agent(Some(NODE));
    let grown = with(object.clone(), json!({"spec": {"members": {"n3": {"index": 5, "address": "10.0.0.9"}}}}));
    for outcome in [
        agent.replace(grown).await.map(drop),
        agent.create(with(domain(&[NODE]), json!({"metadata": {"name": "own"}}))).await.map(drop),
        agent.delete(&object).await,
    ] {
        let why = outcome.unwrap_err();
        assert!(why.contains("the status of an IMEXDomain and nothing else"), "{why}");
    }
}

#[tokio::test]
async fn an_exclusive_domain_is_for_its_own_compute_domain() {
    let bed = Bed::new().await;
    let owner = json!({"namespace": "team", "name": "x", "uid": GREEN});
    let spec = json!({"spec": {"kind": "Exclusive", "computeDomain": owner}});
    let object = bed.admin().create(with(domain(&[NODE]), spec)).await.unwrap();
    let agent = bed.agent(Some(NODE));
    let give = |uid: &str| {
        with(object.clone(), json!({"status": {"channels": {uid: entry(1, 1)}, "epoch": 1, "lastChannel": 1}}))
    };
    let why = agent.replace_status(give(BLUE)).await.unwrap_err();
    assert!(why.contains("its own ComputeDomain alone"), "{why}");
    agent.replace_status(give(GREEN)).await.unwrap();
}
