//! What members say of their connections, and what the controller makes of it.

use std::collections::BTreeMap;

use heddle_core::api::LinksState;
use heddle_core::controller::DEGRADED;
use heddle_integration::imex::scenario::{Ctl, Scenario};
use heddle_integration::imex::state::ConnectionState;

use crate::bed::test;

fn cut(from: &[u16]) -> Scenario {
    Scenario { unreachable: from.iter().copied().collect(), ..Scenario::default() }
}

#[test]
fn dcgm_308_a_clique_comes_up_without_any_compute_domain_and_rests_without_a_write() {
    test(async |field| {
        field.with_nodes(3).await;
        let n1 = field.until_daemon("n1", "it is READY", |daemon| daemon.state == "READY").await;
        let links = n1.links.unwrap();
        assert_eq!((links.state, links.connected, links.missing), (LinksState::Known, vec![0, 2], vec![]));
        assert_eq!((n1.index, n1.peers_connected), (Some(1), 2));
        // It is asked again and again, and nobody writes, once what belongs to the start is written.
        loop {
            let (before, asked) = (field.server.resource_version(), field.node("n1").asked());
            field.until("many questions", async || (field.node("n1").asked() > asked + 10).then_some(())).await;
            if field.server.resource_version() == before {
                break;
            }
        }
        // The command port is not open to the network; everything is asked on the node's own socket (upstream 538).
        let config = std::fs::read_to_string(field.node("n1").os.join("runner/daemon/config.cfg")).unwrap();
        assert!(config.contains("\nIMEX_CMD_PORT=\n"), "{config}");
    });
}

#[test]
fn a_clique_that_boots_costs_each_node_a_few_writes_however_many_it_has() {
    test(async |field| {
        field.with_nodes(9).await;
        let mut writes = BTreeMap::<String, usize>::new();
        let mut history = field.server.history();
        while let Some(change) = history.try_next().unwrap() {
            if change.kind() == "IMEXNode" {
                *writes.entry(change.object()["metadata"]["name"].as_str().unwrap().into()).or_default() += 1;
            }
        }
        // Made, reported, assigned, its condition, its daemon's states and connections.
        let most = writes.values().max().unwrap();
        assert!(*most <= 12, "{writes:?}");
    });
}

#[test]
fn a_partition_between_two_members_is_named_and_heals_without_a_restart() {
    test(async |field| {
        field.with_nodes(3).await;
        let green = field.create("green").await;
        for node in ["n0", "n1", "n2"] {
            field.prepare(&green, node).await;
        }
        field.condition("green", DEGRADED, "AsExpected").await;
        let before = field.pids().await;
        let mut exporter = field.node("n0").process(1);
        let handle = exporter.export().await.unwrap();
        let (mut cut_off, mut other) = (field.node("n1").process(1), field.node("n2").process(1));
        cut_off.import(&handle).await.unwrap();
        other.import(&handle).await.unwrap();

        field.node("n0").scenario(&cut(&[1]));
        let health = field.until_health("a pair is missed", |health| health.disconnected_pairs == 1).await;
        assert_eq!((health.state.as_str(), health.ready), ("Degraded", 3));
        assert!(health.message.unwrap().starts_with("not connected are n0 and n1 ("));
        let message = field.condition("green", DEGRADED, "PeersDisconnected").await;
        assert!(message.contains("n0 and n1") && !message.contains("n2"), "{message}");
        // Jobs go on, inside the grace time also between the two; new claims are prepared.
        cut_off.holds(&handle).await.unwrap();
        other.import(&handle).await.unwrap();
        let blue = field.create("blue").await;
        field.prepare(&blue, "n2").await;

        field.node("n0").scenario(&Scenario::default());
        field.up(3).await;
        field.condition("green", DEGRADED, "AsExpected").await;
        cut_off.holds(&handle).await.unwrap();
        assert_eq!(field.pids().await, before);
        for node in ["n0", "n1", "n2"] {
            field.holds(node).await;
        }
    });
}

#[test]
fn a_tool_that_hangs_or_fails_makes_the_connections_unknown_and_keeps_the_last_word() {
    test(async |field| {
        field.with_nodes(2).await;
        let known = field.until_daemon("n1", "its links", |daemon| daemon.links.is_some()).await.links.unwrap();
        let hangs = Scenario { ctl: Ctl { hang: ['N'].into(), ..Ctl::default() }, ..Scenario::default() };
        field.node("n1").scenario(&hangs);
        let unknown = |state| {
            move |daemon: &heddle_core::api::DaemonStatus| {
                daemon.links.as_ref().is_some_and(|links| links.state == state)
            }
        };
        let daemon = field.until_daemon("n1", "they are unknown", unknown(LinksState::Unknown)).await;
        let links = daemon.links.unwrap();
        assert_eq!((daemon.state.as_str(), &links.connected), ("READY", &known.connected));
        assert!(links.since > known.since && links.message.unwrap().contains("has not answered"));
        let health = field.until_health("it is unknown", |health| health.state == "Unknown").await;
        assert!(health.message.unwrap().starts_with("n1 has not said since "));

        // The tool fails at a broken scenario, as the real one does where it cannot read its files.
        std::fs::write(field.node("n1").os.join("imex/scenario.json"), "{").unwrap();
        let fails = |daemon: &heddle_core::api::DaemonStatus| {
            daemon.links.as_ref().and_then(|links| links.message.as_ref()).is_some_and(|why| why.contains("ended with"))
        };
        let failing = field.until_daemon("n1", "the tool fails", fails).await.links.unwrap();
        assert_eq!((failing.connected, failing.since), (known.connected, links.since), "since when it is unknown");
        field.node("n1").scenario(&Scenario::default());
        field.until_daemon("n1", "they are known", unknown(LinksState::Known)).await;
        field.up(2).await;
    });
}

#[test]
fn words_that_nobody_knows_are_passed_on() {
    test(async |field| {
        field.with_nodes(2).await;
        let words = [ConnectionState::Recovering, ConnectionState::Disconnected, ConnectionState::NeverConnected];
        let spelling: BTreeMap<_, _> = words.into_iter().map(|word| (word, "PONDERING".to_owned())).collect();
        for (node, peer) in [("n0", 1), ("n1", 0)] {
            let ctl = Ctl { spelling: spelling.clone(), ..Ctl::default() };
            field.node(node).scenario(&Scenario { ctl, ..cut(&[peer]) });
        }
        let health = field.until_health("a pair is missed", |health| health.disconnected_pairs == 1).await;
        assert_eq!(health.message.as_deref(), Some("not connected are n0 and n1 (PONDERING)"));
        for node in ["n0", "n1"] {
            field.node(node).scenario(&Scenario::default());
        }
        field.up(2).await;
    });
}
