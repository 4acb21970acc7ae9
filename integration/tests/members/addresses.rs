//! Changes of addresses.

use heddle_core::api::DaemonStatus;
use heddle_core::fault::reason;
use rustix::process::{Pid, Signal, kill_process};

use crate::bed::{Field, clique, test};

/// A claim on each of three nodes.
pub async fn at_work(field: &Field) {
    let green = field.create("green").await;
    for node in ["n0", "n1", "n2"] {
        field.prepare(&green, node).await;
    }
}

#[test]
fn a_daemon_that_listens_at_the_old_address_is_restarted_when_its_last_claim_is_gone_and_no_sooner() {
    test(async |field| {
        field.with_nodes(3).await;
        at_work(field).await;
        let before = field.pids().await;
        let new = field.address(78);
        field.node("n1").have(&[&new]);
        field.node("n1").report(clique());
        // Until it has heard of its own new address it goes on as before.
        let anew = |daemon: &DaemonStatus| daemon.message.as_ref().is_some_and(|text| text.contains("started anew"));
        field.until_daemon("n1", "it says where its daemon listens", anew).await;
        let blue = field.create("blue").await;
        let waits = async {
            let fault = field.missing(&blue, "n1", reason::DAEMON_NOT_READY).await;
            assert!(fault.message.contains("started anew once no claim"), "{fault}");
            let told = async || field.node("n0").hosts().contains(&format!("{new} heddle-")).then_some(());
            field.until("the others know the new address", told).await;
            assert_eq!(field.pids().await, before, "a job runs there");
            field.holds("n1").await;
            field.unprepare("n1");
        };
        let (channel, ()) = futures::join!(field.prepare(&blue, "n1"), waits);
        assert_eq!(channel, 2);
        field.up(3).await;
        let after = field.pids().await;
        assert_ne!(after["n1"], before["n1"]);
        assert_eq!((after["n0"], after["n2"]), (before["n0"], before["n2"]));
        assert_eq!(field.node("n1").state().await.starts, 2);
    });
}

#[test]
fn a_crash_after_the_change_is_the_end_of_the_old_address() {
    test(async |field| {
        field.with_nodes(3).await;
        at_work(field).await;
        let new = field.address(79);
        field.node("n1").have(&[&new]);
        field.node("n1").report(clique());
        let told = async || field.node("n1").hosts().contains(&format!("{new} heddle-")).then_some(());
        field.until("its own runner knows the new address", told).await;
        let pid = field.node("n1").state().await.daemon_pid;
        kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
        field.until("another runs", async || (field.node("n1").state().await.starts == 2).then_some(())).await;
        assert_eq!(field.node("n1").state().await.listens_at, new);
        field.up(3).await;
        field.holds("n1").await;
    });
}

#[test]
fn an_address_beside_the_one_that_peers_know_is_no_change() {
    test(async |field| {
        field.with_nodes(2).await;
        let (old, new) = (field.address(2), field.address(80));
        let hosts = field.node("n0").hosts();
        field.node("n1").have(&[&new, &old]);
        field.node("n1").report(clique());
        let reported = |node: &heddle_core::api::IMEXNode| node.status.as_ref().unwrap().addresses == [&*new, &*old];
        field.until_node("n1", "both are reported", reported).await;
        field.up(2).await;
        assert_eq!(field.node("n0").hosts(), hosts);
        assert_eq!(field.node("n1").state().await.starts, 1);
    });
}
