//! What a test may let go wrong.

use heddle_integration::imex::scenario::{Reconnect, Scenario};
use heddle_integration::imex::state::DaemonState;
use rustix::process::Signal;

use crate::rack::{Rack, connected_pair};

/// Those that a daemon passes on its way up when nothing is to be recovered.
const STATES: [DaemonState; 5] = [
    DaemonState::Initializing,
    DaemonState::StartingAuthServer,
    DaemonState::WaitingForPeers,
    DaemonState::InitGpu,
    DaemonState::Ready,
];

#[tokio::test]
async fn a_daemon_hangs_in_any_state_and_says_so() {
    let rack = Rack::new();
    let node = rack.node(0);
    for state in STATES {
        node.scenario(&Scenario { hang_in: Some(state), ..Scenario::default() });
        let mut daemon = node.start();
        // The log begins before the socket is there.
        daemon.says("Identified this node as ID 0").await;
        while node.ctl(&["-q", "-u", &node.socket()]).await.stdout != format!("{state}\n").as_bytes() {
            assert!(daemon.child.try_wait().unwrap().is_none(), "{}", daemon.log());
        }
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.exit().await, Some(0));
    }
}

#[tokio::test]
async fn a_daemon_fails_or_crashes_in_any_state() {
    let rack = Rack::new();
    let node = rack.node(0);
    for state in STATES {
        node.scenario(&Scenario { fail_in: Some(state), ..Scenario::default() });
        let mut daemon = node.start();
        daemon.says(&format!("Failed in {state}")).await;
        assert_eq!(daemon.exit().await, Some(1));
        node.scenario(&Scenario { crash_in: Some(state), ..Scenario::default() });
        assert_eq!(node.start().exit().await, None);
    }
}

#[tokio::test]
async fn a_daemon_that_does_not_end_has_to_be_killed() {
    let rack = Rack::new();
    let node = rack.node(0);
    node.scenario(&Scenario { hang_in: Some(DaemonState::ShuttingDown), ..Scenario::default() });
    let mut daemon = node.start();
    daemon.ready().await;
    daemon.signal(Signal::TERM);
    daemon.says("IMEX state is now SHUTTING_DOWN").await;
    assert_eq!(node.query().await, "SHUTTING_DOWN\n");
    daemon.signal(Signal::TERM);
    assert_eq!(node.query().await, "SHUTTING_DOWN\n");
    daemon.signal(Signal::KILL);
    assert_eq!(daemon.exit().await, None);
}

#[tokio::test]
async fn somebody_else_has_the_kernels_session() {
    let rack = Rack::new();
    let node = rack.node(0);
    node.scenario(&Scenario { session_in_use: true, ..Scenario::default() });
    let mut daemon = node.start();
    daemon.says("Failed to allocate Imex session: NV_ERR_IN_USE").await;
    assert_eq!(daemon.exit().await, Some(1));
}

#[tokio::test]
async fn a_slow_start_and_slow_attempts() {
    let rack = Rack::new();
    let node = rack.node(0);
    let delays = [(DaemonState::StartingAuthServer, 50), (DaemonState::InitGpu, 50)];
    node.scenario(&Scenario { delay_ms: delays.into(), reconnect: Reconnect::Long, ..Scenario::default() });
    let mut daemon = node.start();
    daemon.ready().await;
    // Nobody is there: the next attempt is far away, and a sign of life from the peer is not.
    daemon.says("Attempting connection for target node 1").await;
    let mut other = rack.node(1).start();
    other.says("Connected to node 0").await;
    daemon.says("Connected to node 1").await;
}

#[tokio::test]
async fn a_full_quorum_waits_for_every_peer() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    for node in [&zero, &one] {
        node.map("rack-00\nrack-01\n");
    }
    zero.scenario(&Scenario { full_quorum: true, ..Scenario::default() });
    let mut daemon = zero.start_with(&[("IMEX_WAIT_FOR_QUORUM", "FULL")]);
    daemon.says("IMEX state is now WAITING_FOR_PEERS").await;
    daemon.says("Attempting connection for target node 1").await;
    assert_eq!(zero.query().await, "WAITING_FOR_PEERS\n");
    let mut other = one.start();
    other.ready().await;
    daemon.ready().await;
}

#[tokio::test]
async fn a_scenario_that_is_broken_while_a_daemon_runs_changes_nothing() {
    let rack = Rack::new();
    let (zero, _one, mut zero_daemon, _one_daemon) = connected_pair(&rack).await;
    std::fs::write(zero.os.join("imex/scenario.json"), "{\"unreachabel\": [1]}").unwrap();
    zero_daemon.says("unreachabel").await;
    // Nor do the tools work with it: a slip in a test must not pass for the usual.
    let asked = zero.ctl(&["-q", "-u", &zero.socket()]).await;
    assert!(!asked.status.success() && String::from_utf8_lossy(&asked.stderr).contains("unreachabel"));
    zero.scenario(&Scenario::default());
    assert_eq!(zero.row(0).await[1], "CONNECTED");
    assert!(!zero_daemon.log().contains("Lost the connection"));
}
