//! Who finds whom, and who may import what.

use std::net::TcpListener;
use std::process::Stdio;

use heddle_integration::imex::cuda::Cuda;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::rack::{PROGRAM, Rack, SENTINEL, code, connected_pair};

#[tokio::test]
async fn a_node_finds_its_index_and_says_ready() {
    let rack = Rack::new();
    let node = rack.node(1);
    let mut daemon = node.start();
    daemon.says("Treating node config entry 'rack-02' as a host name.").await;
    daemon.says("Identified this node as ID 1").await;
    daemon.ready().await;
    assert_eq!(node.query().await, "READY\n");
}

#[tokio::test]
async fn a_node_that_is_not_in_the_map_ends_with_an_error() {
    let rack = Rack::new();
    let node = rack.node(0);
    node.map("rack-01\nrack-02\n");
    let mut daemon = node.start();
    daemon.says("[ERROR]").await;
    daemon.says("No matching network interface found for any IP addresses").await;
    assert_eq!(daemon.exit().await, Some(1));
    let output = node.ctl(&["-q", "-u", &node.socket()]).await;
    assert!(!output.status.success() && output.stdout.is_empty() && !output.stderr.is_empty());
}

#[tokio::test]
async fn what_the_fake_cannot_do_it_refuses() {
    let rack = Rack::new();
    let mut daemon = rack.node(0).start_with(&[("DAEMONIZE", "1")]);
    daemon.says("set DAEMONIZE=0").await;
    assert_eq!(daemon.exit().await, Some(1));
}

#[tokio::test]
async fn an_import_needs_the_same_channel() {
    let rack = Rack::new();
    let (zero, one, _zero_daemon, _one_daemon) = connected_pair(&rack).await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();

    let (mut same, mut other) = (one.process(1), one.process(2));
    same.import(&handle).await.unwrap();
    same.holds(&handle).await.unwrap();
    assert_eq!(code(other.import(&handle)).await, 800);
    let (mut near, mut other) = (zero.process(1), zero.process(2));
    near.import(&handle).await.unwrap();
    assert_eq!(code(other.import(&handle)).await, 800);
    assert_eq!(code(Cuda::open(&one.os, None).unwrap().import(&handle)).await, 800);

    // The exporting process ends; its daemon hears of it on another connection than ours.
    drop(exporter);
    while near.holds(&handle).await.is_ok() {}
    assert_eq!(code(one.process(1).import(&handle)).await, 400);
    while same.holds(&handle).await.is_ok() {}
}

#[tokio::test]
async fn another_node_map_is_refused() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    one.map("rack-00\nrack-01\n");
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    zero_daemon.says("Connection to node 1 is refused: !M!").await;
    one_daemon.says("Connection to node 0 is refused: !M!").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    assert_eq!(zero.row(0).await[..2], ["CONNECTED", "MAP_MISMATCH"]);
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    assert_eq!(code(one.process(1).import(&handle)).await, 400);

    // A new instance with the right map is welcome.
    one_daemon.signal(Signal::TERM);
    assert_eq!(one_daemon.exit().await, Some(0));
    one.map("rack-00\nrack-01\nrack-02\n");
    let mut one_daemon = one.start();
    one_daemon.ready().await;
    zero_daemon.says("Connected to node 1").await;
    one.process(1).import(&handle).await.unwrap();
}

#[tokio::test]
async fn one_daemon_per_os() {
    let rack = Rack::new();
    let node = rack.node(0);
    let mut first = node.start();
    first.ready().await;
    let port = (node.port ^ 1).to_string();
    let mut second = node.start_with(&[("SERVER_PORT", &*port), ("IMEX_CMD_UNIX_DOMAIN_PATH", "")]);
    second.says("Failed to allocate Imex session: NV_ERR_IN_USE").await;
    assert_eq!(second.exit().await, Some(1));
    assert_eq!(node.query().await, "READY\n");
    node.process(1).export().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_daemon_ends_what_it_exported() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    let mut importer = one.process(1);
    importer.import(&handle).await.unwrap();

    zero_daemon.signal(Signal::TERM);
    assert_eq!(zero_daemon.exit().await, Some(0));
    one_daemon.says("Node 0 is shutting down").await;
    assert_eq!(code(importer.holds(&handle)).await, 400);
    // The session's processes are disabled with it, and new ones find none.
    assert_eq!(code(exporter.export()).await, 801);
    assert_eq!(code(zero.process(1).export()).await, 801);

    let mut again = zero.start();
    again.ready().await;
    assert_eq!(code(importer.import(&handle)).await, 400);
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    importer.import(&handle).await.unwrap();
}

#[tokio::test]
async fn a_signal_resolves_names_again_and_disturbs_nobody() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    // Node 0 does not know yet where node 1 is.
    zero.hosts(&[(&zero.address, "rack-00"), (SENTINEL, "rack-01"), (SENTINEL, "rack-02")]);
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    one_daemon.says("Connected to node 0").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    let mut importer = one.process(1);
    importer.import(&handle).await.unwrap();
    let mut back = one.process(1);
    let back = back.export().await.unwrap();
    assert_eq!(code(zero.process(1).import(&back)).await, 400);

    zero.hosts(&[(&zero.address, "rack-00"), (&one.address, "rack-01"), (SENTINEL, "rack-02")]);
    zero_daemon.signal(Signal::USR1);
    zero_daemon.says("Connected to node 1").await;
    importer.holds(&handle).await.unwrap();

    one_daemon.signal(Signal::USR1);
    one_daemon.says("Restarting all outgoing connections").await;
    importer.holds(&handle).await.unwrap();
    importer.import(&handle).await.unwrap();
    one_daemon.signal(Signal::USR1);
    one_daemon.says("the signal is dropped").await;
}

#[tokio::test]
async fn after_an_unclean_end_a_daemon_waits_for_its_importers() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    let mut importer = one.process(1);
    importer.import(&handle).await.unwrap();

    zero_daemon.signal(Signal::KILL);
    zero_daemon.exit().await;
    one_daemon.signal(Signal::TERM);
    one_daemon.exit().await;
    let mut again = zero.start();
    again.says("Waiting for node 1, which held imports from this node").await;
    assert_eq!(zero.query().await, "WAITING_FOR_RECOVERY\n");
    assert_eq!(code(zero.process(1).export()).await, 801);
    let mut one_again = one.start();
    one_again.ready().await;
    again.ready().await;
}

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
    assert!(String::from_utf8_lossy(&missing.stderr).contains("Failed to read node configuration file"));
}
