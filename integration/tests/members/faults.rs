//! Daemons that fail, agents that go, nodes that do not fit; S4 holds in each.

use heddle_core::api::Refusal;
use heddle_core::clique::CliqueId;
use heddle_core::controller::DEGRADED;
use heddle_core::fault::reason;
use heddle_core::imex::{MEMBER, shared_domain_name};
use heddle_integration::imex::scenario::Scenario;
use heddle_integration::imex::state::DaemonState;
use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{clique, home, test};

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn a_daemon_that_crashes_in_any_state_is_told_and_its_claims_wait() {
    test(async |field| {
        field.with_nodes(2).await;
        let green = field.create("green").await;
        for node in ["n0", "n1"] {
            field.prepare(&green, node).await;
        }
        let other = field.node("n0").state().await.daemon_pid;
        let states = [
            DaemonState::Initializing,
            DaemonState::StartingAuthServer,
            DaemonState::WaitingForPeers,
            DaemonState::InitGpu,
            DaemonState::Ready,
        ];
        for (number, state) in states.into_iter().enumerate() {
            field.node("n1").scenario(&Scenario { crash_in: Some(state), ..Scenario::default() });
            kill(field.node("n1").state().await.daemon_pid);
            let message = field.condition("green", DEGRADED, reason::DAEMON_NOT_READY).await;
            assert!(message.starts_with("n1 has its IMEX daemon in state"), "{state}: {message}");
            let next = field.create(&format!("next-{number}")).await;
            let waits = async {
                let fault = field.missing(&next, "n1", reason::DAEMON_NOT_READY).await;
                assert!(fault.message.contains("nvidia-imex"), "{state}: {fault}");
                field.node("n1").scenario(&Scenario::default());
            };
            futures::join!(field.prepare(&next, "n1"), waits);
            field.condition("green", DEGRADED, "AsExpected").await;
            field.holds("n1").await;
        }
        assert_eq!(field.node("n0").state().await.daemon_pid, other);
        field.up(2).await;
    });
}

#[test]
fn one_that_crashes_while_it_waits_for_its_last_lifes_importers_is_told_too() {
    test(async |field| {
        field.with_nodes(2).await;
        let green = field.create("green").await;
        for node in ["n0", "n1"] {
            field.prepare(&green, node).await;
        }
        let mut exporter = field.node("n1").process(1);
        let handle = exporter.export().await.unwrap();
        let mut importer = field.node("n0").process(1);
        importer.import(&handle).await.unwrap();
        let before = field.node("n0").state().await.daemon_pid;
        let state = DaemonState::WaitingForRecovery;
        field.node("n1").scenario(&Scenario { crash_in: Some(state), ..Scenario::default() });
        kill(field.node("n1").state().await.daemon_pid);
        field.condition("green", DEGRADED, reason::DAEMON_NOT_READY).await;
        let reached = async || field.node("n1").log().contains("IMEX state is now WAITING_FOR_RECOVERY").then_some(());
        field.until("it gets as far as that", reached).await;
        field.node("n1").scenario(&Scenario::default());
        field.condition("green", DEGRADED, "AsExpected").await;
        field.up(2).await;
        field.holds("n1").await;
        assert_eq!(field.node("n0").state().await.daemon_pid, before);
    });
}

#[test]
fn a_foreign_daemon_is_named_and_waited_out() {
    test(async |field| {
        let address = field.address(1);
        field.add("n0", &[&address]).await;
        field.up(1).await;
        field.node("n0").scenario(&Scenario { session_in_use: true, ..Scenario::default() });
        kill(field.node("n0").state().await.daemon_pid);
        let foreign = |daemon: &heddle_core::api::DaemonStatus| {
            daemon.message.as_ref().is_some_and(|message| message.contains("NV_ERR_IN_USE"))
        };
        let daemon = field.until_daemon("n0", "the foreign daemon is named", foreign).await;
        assert!(!daemon.since.is_empty() && daemon.state == "DOWN", "{daemon:?}");
        let named = |message: &String| message.contains("host's nvidia-imex service");
        let down = |health: &heddle_core::api::DomainHealth| health.state == "Down" && health.message.iter().any(named);
        field.until_health("it is down", down).await;
        field.node("n0").scenario(&Scenario::default());
        field.up(1).await;
    });
}

#[test]
fn an_agent_is_restarted_while_jobs_run_and_the_daemon_does_not_notice() {
    test(async |field| {
        field.with_nodes(2).await;
        let green = field.create("green").await;
        for node in ["n0", "n1"] {
            field.prepare(&green, node).await;
        }
        let before = field.pids().await;
        for _ in 0..3 {
            field.restart_agent("n1").await;
            field.holds("n1").await;
        }
        let blue = field.create("blue").await;
        field.prepare(&blue, "n1").await;
        field.up(2).await;
        assert_eq!(field.pids().await, before);
        assert_eq!(field.node("n1").state().await.starts, 1);
    });
}

#[test]
fn what_the_driver_asks_for_is_shown_and_not_done_behind_a_running_job() {
    test(async |field| {
        field.with_nodes(2).await;
        let green = field.create("green").await;
        for node in ["n0", "n1"] {
            field.prepare(&green, node).await;
        }
        let before = field.pids().await;
        let action = "GPU 1: recover the IMEX domain";
        field.node("n1").report_driver(clique(), "580.95.05", Some(action));
        let said = |daemon: &heddle_core::api::DaemonStatus| daemon.recovery_action.as_deref() == Some(action);
        field.until_daemon("n1", "the action is shown", said).await;
        let message = field.condition("green", DEGRADED, reason::RECOVERY_NEEDED).await;
        assert!(message.contains(&format!("n1: {action}")), "{message}");
        assert_eq!(field.pids().await, before);
        field.node("n1").report(clique());
        field.condition("green", DEGRADED, "AsExpected").await;
    });
}

/// Waits until the node is told that it is refused, by its condition too.
async fn refused(field: &crate::bed::Field, node: &str, reason: &str) -> Refusal {
    let told = |node: &heddle_core::api::IMEXNode| {
        let conditions = node.status.as_ref().map(|status| &status.conditions);
        let mut members = conditions.into_iter().flatten().filter(|condition| condition.type_ == MEMBER);
        members.any(|condition| condition.status == "False" && condition.reason == reason)
    };
    field.until_node(node, &format!("it is refused: {reason}"), told).await.spec.refused.unwrap()
}

#[test]
fn an_odd_node_is_refused_and_disturbs_nobody_and_one_that_turns_odd_keeps_its_jobs() {
    test(async |field| {
        field.with_nodes(2).await;
        let green = field.create("green").await;
        for node in ["n0", "n1"] {
            field.prepare(&green, node).await;
        }
        let before = field.pids().await;
        let address = field.address(3);
        field.add("n2", &[&address]).await;
        field.up(3).await;
        field.node("n2").channels(1024);
        field.node("n2").report(clique());
        let refusal = refused(field, "n2", reason::MEMBER_MISMATCH).await;
        assert!(refusal.message.contains("n2 has 1024 IMEX channels"), "{refusal:?}");
        let mut usable = field.node("n2").wired.usable.clone();
        let withheld = usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| !usable.usable)).await.unwrap();
        assert_eq!(withheld.as_ref().unwrap().withheld, Some(reason::MEMBER_MISMATCH));
        let pink = field.create("pink").await;
        let fault = field.ask(&pink, "n2").await.unwrap_err();
        assert_eq!((fault.reason, &fault.message), (reason::MEMBER_MISMATCH, &refusal.message));
        field.until_health("nobody expects it", |health| health.expected == 2 && health.state == "Up").await;

        // As after a reboot into another driver: told, given nothing new, and left alone.
        field.node("n1").report_driver(clique(), "590.1", None);
        let refusal = refused(field, "n1", reason::MEMBER_MISMATCH).await;
        assert!(refusal.message.contains("n1 has NVIDIA driver 590.1"), "{refusal:?}");
        field.holds("n1").await;
        let blue = field.create("blue").await;
        assert_eq!(field.ask(&blue, "n1").await.unwrap_err().reason, reason::MEMBER_MISMATCH);
        assert!(field.condition("green", DEGRADED, reason::MEMBER_MISMATCH).await.contains("n1 has NVIDIA driver"));
        let now = field.pids().await;
        assert_eq!((now["n0"], now["n1"]), (before["n0"], before["n1"]));
        field.node("n1").report(clique());
        let again = |node: &heddle_core::api::IMEXNode| {
            let conditions = node.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.type_ == MEMBER && condition.status == "True")
        };
        field.until_node("n1", "it is a member again", again).await;
        field.prepare(&blue, "n1").await;
        field.condition("green", DEGRADED, "AsExpected").await;
    });
}

#[test]
fn a_node_that_moves_to_another_clique_leaves_one_domain_and_joins_the_other() {
    test(async |field| {
        field.with_nodes(3).await;
        let green = field.create("green").await;
        for node in ["n0", "n1"] {
            field.prepare(&green, node).await;
        }
        let before = field.pids().await;
        let other = CliqueId { id: 8, ..clique() };
        field.node("n2").report(other);
        let there = |domain: &heddle_core::api::DaemonStatus| {
            domain.domain.as_deref() == Some(&shared_domain_name(&other)) && domain.state == "READY"
        };
        field.until_daemon("n2", "it serves the other domain", there).await;
        let health = field.until_health("it is gone here", |health| health.expected == 2).await;
        assert_eq!(health.ready, 2);
        field.up(2).await;
        let now = field.pids().await;
        assert_eq!((now["n0"], now["n1"]), (before["n0"], before["n1"]));
        // In its new clique the same ComputeDomain has a channel of that domain (upstream 377, 797).
        field.prepare(&green, "n2").await;
        let domains = field.server.objects("imex.heddle.dev", "imexdomains");
        let with = domains.iter().filter(|domain| domain["status"]["channels"][&green.uid]["channel"].is_u64()).count();
        assert_eq!((domains.len(), with), (2, 2));
        assert_ne!(home(), shared_domain_name(&other));
    });
}
