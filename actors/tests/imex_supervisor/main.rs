//! The IMEX supervisor with a real runner whose daemon is a script; the test plays node link and allocator.

mod host;
mod identities;
mod rig;
mod silence;
#[path = "../stand_in/mod.rs"]
mod stand_in;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use heddle_actors::imex_supervisor::Message;
use heddle_actors::node_link::DomainView;
use heddle_actors::runner;
use heddle_actors::slice_publisher::Usable;
use heddle_core::api::{DomainKind, IMEXNode, IMEXNodeSpec};
use heddle_core::identity::Authentication;
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::{Guard, Mode, Verdict};
use rig::{Rig, Running, clique, run, view};
use stand_in::{alive, settings};
use tokio::sync::oneshot;

#[test]
fn a_node_comes_up_whatever_starts_first() {
    run(async {
        let mut rig = Rig::new();
        rig.see(view("d", 1, 2));
        let why = rig.until_not_ready("cannot be reached").await;
        assert!(why.contains("runner.sock"), "{why}");
        let runner = rig.start_runner();
        rig.until_ready_in("d").await;
        let status = rig.status.wait_for(|status| status.state == "READY").await.unwrap().clone();
        assert_eq!((status.domain.as_deref(), status.index, status.message), (Some("d"), Some(1), None));
        assert!(status.since.parse::<jiff::Timestamp>().is_ok());
        let usable = rig.usable.wait_for(|u| u.as_ref().is_some_and(|u| u.usable)).await.unwrap().clone().unwrap();
        assert_eq!((usable.domain.as_deref(), usable.kind), (Some("d"), Some(DomainKind::Shared)));
        assert_eq!(rig.asked.get(), 0, "nobody is asked for what disturbs nobody");

        let said = Some("GPU 1: recover the IMEX domain".to_owned());
        let inventory =
            Inventory { fabric: Fabric::Ready(clique()), recovery_action: said.clone(), ..Default::default() };
        rig.supervisor.tell(Message::Inventory(inventory));
        rig.status.wait_for(|status| status.recovery_action == said && status.state == "READY").await.unwrap();

        // Another member disturbs nobody either.
        rig.see(view("d", 1, 3));
        loop {
            if fs::read_to_string(rig.root.path().join("run/hosts")).unwrap().contains("10.0.0.4 ") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!((rig.starts(), rig.asked.get()), (1, 0));
        runner.stop().await;
    });
}

#[test]
fn the_end_of_an_agent_is_not_the_end_of_the_daemon() {
    run(async {
        let (mut rig, runner) = Rig::serving().await;
        let before = rig.runner_state().await;
        rig.restart_agent();
        assert!(alive(before.daemon_pid));
        rig.may_switch(Err("3 claims are prepared on this node"));
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        let after = rig.runner_state().await;
        assert_eq!((after.daemon_pid, after.starts), (before.daemon_pid, 1));
        runner.stop().await;
    });
}

#[test]
fn a_switch_waits_for_the_claims_and_for_the_allocators_word() {
    run(async {
        let (mut rig, runner) = Rig::serving().await;
        let before = rig.runner_state().await.daemon_pid;

        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.see(view("e", 1, 0));
        rig.until_not_ready("still serves domain d").await;
        assert_eq!((rig.asked.get(), rig.starts()), (0, 1));

        // It says that it may, and is of another opinion when it is asked.
        *rig.permit.borrow_mut() = Err("a claim has come".into());
        rig.may_switch(Ok(()));
        while rig.asked.get() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        rig.may_switch(Err("a claim has come"));
        assert!(alive(before));
        *rig.permit.borrow_mut() = Ok(());
        rig.may_switch(Ok(()));
        rig.until_ready_in("e").await;
        assert!(!alive(before));
        assert_eq!(rig.starts(), 2);
        runner.stop().await;
    });
}

#[test]
fn a_node_that_is_in_no_domain_ends_its_daemon() {
    run(async {
        let (mut rig, runner) = Rig::serving().await;
        let pid = rig.runner_state().await.daemon_pid;
        rig.see(DomainView { node: Arc::new(IMEXNode::new("n1", IMEXNodeSpec::default())), domain: None });
        rig.until_not_ready("not assigned").await;
        while rig.runner_state().await.daemon_state != "DOWN" {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(!alive(pid));
        runner.stop().await;
    });
}

#[test]
fn a_daemon_that_is_another_member_is_not_ready() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 0, 0));
        rig.until_not_ready("says it is member 1").await;
        let status = rig.status.wait_for(|status| status.state == "READY").await.unwrap().clone();
        assert_eq!(status.index, Some(1), "its own word is reported");
        assert!(status.message.unwrap().contains("member 0"));
        assert!(rig.usable.wait_for(Option::is_some).await.unwrap().as_ref().is_some_and(|usable| !usable.usable));
        runner.stop().await;
    });
}

#[test]
fn a_runner_that_goes_and_returns_is_found_again() {
    run(async {
        let (mut rig, runner) = Rig::serving().await;
        runner.stop().await;
        rig.until_not_ready("cannot be reached").await;
        let status = rig.status.wait_for(|status| status.state == "UNAVAILABLE").await.unwrap().clone();
        assert_eq!(status.domain.as_deref(), Some("d"), "what was known last stays");
        let runner = rig.start_runner();
        rig.until_ready_in("d").await;
        runner.stop().await;
    });
}

#[test]
fn where_the_second_door_is_open_slots_cannot_be_used() {
    run(async {
        let (mut rig, runner) = Rig::serving().await;
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| usable.usable)).await.unwrap();
        let guard = Guard::new(Mode::Require);
        let open = Verdict::Open { why: "pods get channels".into(), set: "set x in /y".into() };
        rig.supervisor.tell(Message::Guard(guard.seen(open)));
        let withheld = |usable: &Option<Usable>| {
            usable
                .as_ref()
                .is_some_and(|u| !u.usable && u.withheld.is_some() && u.reason == "pods get channels; set x in /y")
        };
        rig.usable.wait_for(withheld).await.unwrap();
        rig.supervisor.tell(Message::Guard(guard.seen(Verdict::Closed)));
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| usable.usable)).await.unwrap();
        runner.stop().await;
    });
}

#[test]
fn a_node_without_fabric_can_be_used_without_a_daemon() {
    run(async {
        let mut rig = Rig::new();
        rig.fabric(Fabric::None);
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| usable.usable)).await.unwrap();
        rig.fabric(Fabric::Unhealthy("degraded".into()));
        let sick =
            |usable: &Option<Usable>| usable.as_ref().is_some_and(|u| !u.usable && u.reason.contains("degraded"));
        rig.usable.wait_for(sick).await.unwrap();
    });
}

#[test]
fn what_a_runner_refuses_is_said_where_it_is_waited_for() {
    run(async {
        let mut rig = Rig::with(Authentication::Insecure);
        let mut settings = settings(rig.root.path());
        settings.settings = [("IMEX_GSS_SERVICE_NAME".to_owned(), "imex".to_owned())].into();
        let (end, ends) = oneshot::channel::<()>();
        let runner = Running { end, run: tokio::spawn(runner::run(settings, async { drop(ends.await) })) };
        rig.see(view("d", 1, 0));
        rig.until_not_ready("the IMEX setting IMEX_GSS_SERVICE_NAME is Kerberos's").await;
        assert_eq!(rig.starts(), 0);
        runner.stop().await;
    });
}
