//! What the control tool says.

use std::net::TcpListener;
use std::process::Stdio;

use heddle_integration::imex::scenario::{Ctl, Scenario};
use heddle_integration::imex::state::{ConnectionState, DaemonState};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::rack::{PATIENCE, PROGRAM, Rack};

#[tokio::test]
async fn the_tool_reports_states_and_the_domain() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    for node in [&zero, &one] {
        node.map("rack-00\nrack-01\n");
    }
    let port = TcpListener::bind((zero.address.as_str(), 0)).unwrap().local_addr().unwrap().port().to_string();
    let settings = [("IMEX_CMD_PORT", &*port)];
    let (mut zero_daemon, mut one_daemon) = (zero.start_with(&settings), one.start_with(&settings));
    zero_daemon.says("Connected to node 1").await;
    one_daemon.says("Connected to node 0").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;

    let json = String::from_utf8(zero.ctl(&["-N", "-j", "-c", &zero.config()]).await.stdout).unwrap();
    assert!(json.ends_with("\"status\":\"UP\"}\n"), "{json}");
    let table = String::from_utf8(zero.ctl(&["-N", "-c", &zero.config()]).await.stdout).unwrap();
    assert!(table.contains("Domain State: UP"), "{table}");
    assert_eq!(zero.ctl(&["-q", "-i", &one.address, &port]).await.stdout, b"READY\n");

    // What a supervisor is told until the daemon's end.
    let mut follow = Command::new(PROGRAM)
        .args(["nvidia-imex-ctl", "-s", &format!("--u={}", one.socket())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("READY"));
    one_daemon.signal(Signal::TERM);
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("SHUTTING_DOWN"));
    assert_eq!(lines.next_line().await.unwrap(), None);
    assert!(follow.wait().await.unwrap().success());

    one_daemon.exit().await;
    let json = String::from_utf8(zero.ctl(&["-N", "-j", "-c", &zero.config()]).await.stdout).unwrap();
    assert!(json.contains(r#""1":{"status":"UNAVAILABLE""#), "{json}");
    assert!(json.ends_with("\"status\":\"DEGRADED\"}\n"), "{json}");
    std::fs::remove_file(zero.os.join("nodes.cfg")).unwrap();
    let missing = zero.ctl(&["-N", "-c", &zero.config()]).await;
    assert!(missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stdout).contains("Failed to read node configuration file"));
}

#[tokio::test]
async fn what_nobody_has_verified_is_set_by_the_scenario() {
    let rack = Rack::new();
    let node = rack.node(0);
    node.map("rack-00\nrack-01\n");
    let ctl = Ctl {
        not_ready_exit: 3,
        no_node_map_exit: 4,
        spelling: [(ConnectionState::NeverConnected, "NOT_YET".to_owned())].into(),
        ..Ctl::default()
    };
    node.scenario(&Scenario {
        version: "580.95.05".into(),
        hang_in: Some(DaemonState::InitGpu),
        ctl,
        ..Scenario::default()
    });
    let mut daemon = node.start();
    daemon.says("IMEX state is now INIT_GPU").await;
    let asked = node.ctl(&["-q", "-u", &node.socket()]).await;
    assert_eq!((asked.status.code(), &*asked.stdout), (Some(3), &b"INIT_GPU\n"[..]));
    assert_eq!(node.row(0).await, ["CONNECTED", "NOT_YET"]);
    let domain = String::from_utf8(node.ctl(&["-N", "-j", "-H", "-c", &node.config()]).await.stdout).unwrap();
    assert!(domain.contains(r#""hostName":"rack-01","version":"","#), "{domain}");
    assert!(domain.contains(r#""hostName":"rack-00","version":"580.95.05","#), "{domain}");
    assert!(domain.ends_with("\"status\":\"DOWN\"}\n"), "{domain}");
    assert_eq!(node.ctl(&["--version"]).await.stdout, b"nvidia-imex-ctl version is: 580.95.05\n");
    std::fs::remove_file(node.os.join("nodes.cfg")).unwrap();
    assert_eq!(node.ctl(&["-N", "-c", &node.config()]).await.status.code(), Some(4));
}

#[tokio::test]
async fn the_domain_is_shown_again_and_again_with_what_has_changed() {
    let rack = Rack::new();
    let node = rack.node(0);
    let mut daemon = node.start();
    daemon.ready().await;
    let mut follow = Command::new(PROGRAM)
        .args(["nvidia-imex-ctl", "-n", "-j", "-c", &node.config()])
        .env(heddle_integration::imex::os::OS_ENV, &node.os)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let before = lines.next_line().await.unwrap().unwrap();
    assert!(before.contains(r#""status":"READY""#) && !before.contains(r#""changed":true"#), "{before}");
    daemon.signal(Signal::TERM);
    daemon.exit().await;
    let gone = async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if !line.contains(r#""status":"READY""#) {
                return line;
            }
        }
    };
    let gone = tokio::time::timeout(PATIENCE, gone).await.unwrap();
    assert!(gone.contains(r#""changed":true"#), "{gone}");
}

#[tokio::test]
async fn a_limit_ends_a_subscription_and_by_the_scenario_everything() {
    let rack = Rack::new();
    let node = rack.node(0);
    let mut daemon = node.start();
    daemon.ready().await;
    let followed = node.ctl(&["-s", "-t", "20", "-u", &node.socket()]).await;
    assert_eq!((followed.status.code(), &*followed.stdout), (Some(0), &b"READY\n"[..]));

    let ctl = Ctl { hang: ['N'].into(), time_bounds_all: true, ..Ctl::default() };
    node.scenario(&Scenario { ctl, ..Scenario::default() });
    assert_eq!(node.query().await, "READY\n");
    assert_eq!(node.ctl(&["-N", "-t", "20", "-c", &node.config()]).await.stdout, b"");
    let ctl = Ctl { hang: ['N'].into(), ..Ctl::default() };
    node.scenario(&Scenario { ctl, ..Scenario::default() });
    let mut hangs = Command::new(PROGRAM)
        .args(["nvidia-imex-ctl", "-N", "-t", "20", "-c", &node.config()])
        .env(heddle_integration::imex::os::OS_ENV, &node.os)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    // The other one has asked and been answered in the meantime.
    node.query().await;
    assert!(hangs.try_wait().unwrap().is_none());
}
