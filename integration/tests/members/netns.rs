//! What takes addresses or interfaces of its own: in network namespaces that the test makes for itself.

use std::process::Command;

use heddle_core::api::{DaemonStatus, LinksState};
use heddle_core::controller::DEGRADED;
use heddle_integration::imex::scenario::Scenario;

use crate::addresses::at_work;
use crate::bed::{Field, clique, live, test};

/// Set in the namespace.
const INSIDE: &str = "HEDDLE_TEST_IN_NAMESPACE";

/// Runs the scene in a network namespace with these addresses, in a process of its own. `name` is the name of the test.
fn inside(name: &str, addresses: &[&str], scene: impl AsyncFnOnce(&mut Field)) {
    if std::env::var_os(INSIDE).is_some() {
        return test(scene);
    }
    let may = Command::new("unshare").args(["--net", "--pid", "--fork", "--mount-proc", "true"]).output().unwrap();
    if !may.status.success() {
        return eprintln!("not tested: no namespaces can be made: {}", String::from_utf8_lossy(&may.stderr));
    }
    let mut script = "set -e; ip link set lo up\n".to_owned();
    addresses.iter().for_each(|address| script += &format!("ip addr add {address} dev lo nodad\n"));
    script += "exec \"$@\"";
    let output = Command::new("unshare")
        // With the process that they begin with, all others end too.
        .args(["--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", &script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "needs iproute2: {out}\n{err}");
}

/// The runner of a host: not a test, but for this file's tests.
#[test]
fn the_runner_s_own_process() {
    live();
}

#[test]
fn issues_1443_and_1245_an_address_changes_without_a_restart_anywhere() {
    inside("netns::issues_1443_and_1245_an_address_changes_without_a_restart_anywhere", &[], async |field| {
        // Without it a daemon listens at the one address that it was started with: docs/adr has the reasons.
        field.operator.insert("BIND_INTERFACE_IP".into(), "0.0.0.0".into());
        for index in 0..3 {
            field.add_host(&format!("n{index}"), &format!("10.9.0.{}", index + 1)).await;
        }
        field.up(3).await;
        at_work(field).await;
        let before = field.pids().await;
        let mut exporter = field.node("n1").process(1);
        let handle = exporter.export().await.unwrap();
        let mut importer = field.node("n0").process(1);
        importer.import(&handle).await.unwrap();

        let new = "10.9.0.77";
        field.move_host("n1", "10.9.0.2", new);
        field.node("n1").report(clique());
        for node in ["n0", "n1", "n2"] {
            let told = async || field.node(node).hosts().contains(&format!("{new} heddle-")).then_some(());
            field.until("the hosts file has the new address", told).await;
            let anew = async || field.node(node).log().contains("Restarting all outgoing connections").then_some(());
            field.until("the names are read anew", anew).await;
        }
        field.up(3).await;
        importer.holds(&handle).await.unwrap();
        importer.import(&handle).await.unwrap();
        for node in ["n0", "n1", "n2"] {
            field.holds(node).await;
            assert_eq!(field.node(node).state().await.starts, 1, "{node}");
        }
        assert_eq!(field.pids().await, before);
    });
}

#[test]
fn a_partition_that_drops_packets_is_named_and_heals_without_a_restart() {
    inside("netns::a_partition_that_drops_packets_is_named_and_heals_without_a_restart", &[], async |field| {
        field.operator.insert("BIND_INTERFACE_IP".into(), "0.0.0.0".into());
        for index in 0..3 {
            let name = format!("n{index}");
            field.begin_with(&name, &Scenario { keepalive_ms: 200, ..Scenario::default() });
            field.add_host(&name, &format!("10.9.0.{}", index + 1)).await;
        }
        field.up(3).await;
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

        field.drop_packets("10.9.0.1", "10.9.0.2", true);
        let health = field.until_health("a pair is missed", |health| health.disconnected_pairs == 1).await;
        assert_eq!((health.state.as_str(), health.ready), ("Degraded", 3));
        assert!(health.message.unwrap().starts_with("not connected are n0 and n1 ("));
        let message = field.condition("green", DEGRADED, "PeersDisconnected").await;
        assert!(message.contains("n0 and n1") && !message.contains("n2"), "{message}");
        // Each is asked again and again, at its own socket: what cannot get through holds up no question.
        for (node, peers) in [("n0", vec![2]), ("n1", vec![2]), ("n2", vec![0, 1])] {
            let asked = field.node(node).asked();
            field.until("more questions", async || (field.node(node).asked() > asked + 10).then_some(())).await;
            let known = |daemon: &DaemonStatus| {
                let links = daemon.links.as_ref();
                links.is_some_and(|links| links.state == LinksState::Known && links.connected == peers)
            };
            let daemon = field.until_daemon(node, "it knows who is missed", known).await;
            assert_eq!(daemon.state, "READY");
        }
        // Jobs go on, inside the grace time also between the two; new claims are prepared.
        cut_off.holds(&handle).await.unwrap();
        other.import(&handle).await.unwrap();
        let blue = field.create("blue").await;
        field.prepare(&blue, "n1").await;

        field.drop_packets("10.9.0.1", "10.9.0.2", false);
        field.up(3).await;
        field.condition("green", DEGRADED, "AsExpected").await;
        cut_off.holds(&handle).await.unwrap();
        field.node("n1").process(1).import(&handle).await.unwrap();
        assert_eq!(field.pids().await, before);
        for node in ["n0", "n1", "n2"] {
            field.holds(node).await;
            assert_eq!(field.node(node).state().await.starts, 1, "{node}");
        }
    });
}

#[test]
fn issue_328_a_domain_of_ipv6_alone() {
    let addresses = ["fd00::1/128", "fd00::2/128", "fd00::3/128"];
    inside("netns::issue_328_a_domain_of_ipv6_alone", &addresses, async |field| {
        for (node, address) in [("n0", "fd00::1"), ("n1", "fd00::2"), ("n2", "fd00::3")] {
            field.add(node, &[address]).await;
        }
        field.up(3).await;
        assert!(field.node("n0").hosts().contains("\nfd00::3 heddle-"), "{}", field.node("n0").hosts());
        let green = field.create("green").await;
        for node in ["n0", "n1"] {
            field.prepare(&green, node).await;
        }
        let mut exporter = field.node("n0").process(1);
        let handle = exporter.export().await.unwrap();
        field.node("n1").process(1).import(&handle).await.unwrap();
    });
}

#[test]
fn nodes_with_both_families_meet_in_the_one_that_all_have() {
    let addresses = ["10.9.0.1/32", "10.9.0.2/32", "10.9.0.3/32", "fd00::1/128", "fd00::2/128", "fd00::4/128"];
    inside("netns::nodes_with_both_families_meet_in_the_one_that_all_have", &addresses, async |field| {
        field.add("n0", &["10.9.0.1", "fd00::1"]).await;
        field.add("n1", &["10.9.0.2", "fd00::2"]).await;
        field.up(2).await;
        assert!(field.node("n0").hosts().contains("\n10.9.0.2 heddle-"), "the preferred one");
        // One with IPv6 alone, while nobody works: all go over.
        field.add("n2", &["fd00::4"]).await;
        field.up(3).await;
        assert!(
            !field.node("n0").hosts().contains("10.9.0.") && field.node("n0").hosts().contains("\nfd00::4 heddle-")
        );

        // One with IPv4 alone is told, and while jobs run nobody moves for it.
        let green = field.create("green").await;
        field.prepare(&green, "n2").await;
        let before = field.pids().await;
        field.add("n3", &["10.9.0.3"]).await;
        let told = |node: &heddle_core::api::IMEXNode| node.spec.refused.is_some();
        let refused = field.until_node("n3", "it is told", told).await.spec.refused.unwrap();
        assert_eq!(refused.reason, "NoCommonAddressFamily");
        assert!(refused.message.contains("n3 has no IPv6 address"), "{refused:?}");
        field.node("n0").report(clique());
        field.up(3).await;
        let now = field.pids().await;
        assert!(before.iter().all(|(node, pid)| now[node] == *pid));
    });
}
