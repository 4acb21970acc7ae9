//! Domains with three channel numbers.

use heddle_core::api::ComputeDomainRef;
use heddle_core::api::IsolationMode::Channel;
use heddle_core::controller::CHANNEL_ASSIGNED;
use heddle_core::fault::reason;
use k8s_openapi::api::events::v1::Event;

use crate::cluster::{Cluster, home, test};

/// Three ComputeDomains that have all of them; `yellow` is used by nobody any more.
async fn full(cluster: &Cluster) -> [ComputeDomainRef; 3] {
    cluster.agents.iter().for_each(|agent| agent.set_channel_count(4));
    let mut made = Vec::new();
    for name in ["green", "blue", "yellow"] {
        let cd = cluster.create(name, Channel).await;
        cluster.place(&cd, Channel, "n0").await;
        cluster.prepared(&cd, "n0").await;
        // Only who was seen to have a channel is told that it was taken back.
        cluster.condition(name, CHANNEL_ASSIGNED, "True", "Assigned").await;
        made.push(cd);
    }
    let made: [ComputeDomainRef; 3] = made.try_into().unwrap();
    cluster.end(&made[2], "n0").await;
    made
}

#[test]
fn who_finds_no_free_number_gets_that_of_one_that_nobody_uses() {
    test(2, async |cluster: &mut Cluster| {
        let [green, _, yellow] = full(cluster).await;
        let held = cluster.prepared(&green, "n0").await;
        let red = cluster.create("red", Channel).await;
        cluster.place(&red, Channel, "n1").await;
        assert_eq!(cluster.prepared(&red, "n1").await, (home(), 3), "yellow's");
        cluster.condition("yellow", CHANNEL_ASSIGNED, "False", reason::CHANNEL_RECLAIMED).await;
        cluster.until("an Event", || async { cluster.events(reason::CHANNEL_RECLAIMED).await.pop() }).await;

        // Its next claim waits, and says for what.
        cluster.place(&yellow, Channel, "n1").await;
        let text = cluster.condition("yellow", CHANNEL_ASSIGNED, "False", reason::CHANNELS_EXHAUSTED).await;
        assert!(text.starts_with(&format!("no free IMEX channel in domain {} (3 in use)", home())), "{text}");
        let of_yellow =
            |event: &Event| event.regarding.as_ref().and_then(|about| about.name.as_deref()) == Some("yellow");
        let told = || async { cluster.events(reason::CHANNELS_EXHAUSTED).await.into_iter().find(of_yellow) };
        cluster.until("an Event of yellow", told).await;
        assert_eq!(cluster.prepared(&green, "n0").await, held, "nobody is disturbed");
        // It gets a number by itself when one is to be had: that of a ComputeDomain without claims, or a freed one.
        cluster.end(&red, "n1").await;
        assert_eq!(cluster.prepared(&yellow, "n1").await, (home(), 3));
    });
}

#[test]
fn a_claim_that_comes_while_its_channel_is_taken_back_is_served_or_waits_for_the_next() {
    test(2, async |cluster: &mut Cluster| {
        let [green, _, yellow] = full(cluster).await;
        let red = cluster.create("red", Channel).await;
        // Both at once: one of them gets the number, whoever is first, and the check of all history says that never both.
        cluster.place(&red, Channel, "n1").await;
        cluster.place(&yellow, Channel, "n0").await;
        let first = || async {
            let of = |cd: &ComputeDomainRef, node| cluster.agent(node).prepared(&cd.uid);
            of(&red, "n1").or_else(|| of(&yellow, "n0"))
        };
        cluster.until("one of them is prepared", first).await;
        cluster.delete("green").await;
        cluster.end(&green, "n0").await;
        let (one, other) = (cluster.prepared(&red, "n1").await, cluster.prepared(&yellow, "n0").await);
        assert_ne!(one, other);
    });
}
