//! What a daemon needs to start, and what it says about it.

use std::net::TcpListener;

use heddle_integration::imex::scenario::{Scenario, UnknownKeys};
use rustix::process::Signal;

use crate::rack::Rack;

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
async fn the_driver_must_be_of_the_same_version() {
    let rack = Rack::new();
    let node = rack.node(0);
    std::fs::create_dir_all(node.os.join("proc/driver/nvidia")).unwrap();
    let driver = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n";
    std::fs::write(node.os.join("proc/driver/nvidia/version"), driver).unwrap();
    let mut daemon = node.start();
    daemon.says("does not match the loaded kernel driver's, which is 580.95.05").await;
    assert_eq!(daemon.exit().await, Some(1));
    node.scenario(&Scenario { version: "580.95.05".into(), ..Scenario::default() });
    let mut daemon = node.start();
    daemon.says("IMEX version 580.95.05 is running").await;
    daemon.ready().await;
}

#[tokio::test]
async fn without_gpus_peers_connect_and_there_is_no_session() {
    let rack = Rack::new();
    let node = rack.node(0);
    std::fs::create_dir_all(node.os.join("proc/driver/nvidia")).unwrap();
    std::fs::write(node.os.join("proc/driver/nvidia/version"), "NVRM version: 1.2.3\n").unwrap();
    let (mut daemon, mut other) = (node.start_as(&["--nogpu"], &[], &[]), rack.node(1).start());
    daemon.ready().await;
    daemon.says("Connected to node 1").await;
    other.says("Connected to node 0").await;
    let domain = String::from_utf8(node.ctl(&["-N", "-j", "-c", &node.config()]).await.stdout).unwrap();
    assert!(domain.contains("\"version\":\"NO_GPU\""), "{domain}");
    assert_eq!(node.process(1).export().await.unwrap_err().code, 801);
}

#[tokio::test]
async fn an_argument_goes_before_the_file() {
    let rack = Rack::new();
    let node = rack.node(0);
    let port = TcpListener::bind((node.address.as_str(), 0)).unwrap().local_addr().unwrap().port().to_string();
    for argument in ["-p", "--port"] {
        let mut daemon = node.start_as(&[argument, &port], &[], &[]);
        daemon.says(&format!("IMEX library communication bind port = {port}")).await;
        daemon.ready().await;
        std::net::TcpStream::connect((node.address.as_str(), port.parse().unwrap())).unwrap();
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.exit().await, Some(0));
    }
}

#[tokio::test]
async fn unknown_keys_are_warned_of_or_refused() {
    let rack = Rack::new();
    let node = rack.node(0);
    let settings = [("IMEX_CONN_WAIT_TIMEOUT", "3")];
    let mut daemon = node.start_with(&settings);
    daemon.says("[WARNING]").await;
    daemon.says("Unknown key IMEX_CONN_WAIT_TIMEOUT").await;
    daemon.ready().await;
    daemon.signal(Signal::TERM);
    daemon.exit().await;
    node.scenario(&Scenario { unknown_keys: UnknownKeys::Refuse, ..Scenario::default() });
    let mut daemon = node.start_with(&settings);
    daemon.says("IMEX_CONN_WAIT_TIMEOUT: is no known key").await;
    assert_eq!(daemon.exit().await, Some(1));
}

#[tokio::test]
async fn a_log_file_that_cannot_be_opened_is_replaced_by_stderr() {
    let rack = Rack::new();
    let node = rack.node(0);
    let mut daemon = node.start_with(&[("LOG_FILE_NAME", "/proc/nothing/imex.log")]);
    daemon.says("WARNING: failed to open IMEX log file  errno = ").await;
    daemon.says("INFO: using stderr for IMEX logging").await;
    daemon.ready().await;
    daemon.signal(Signal::TERM);
    daemon.exit().await;

    let path = node.os.join("var/log/imex.log").display().to_string();
    let settings = [("LOG_FILE_NAME", &*path), ("LOG_LEVEL", "4")];
    let mut daemon = node.start_with(&settings);
    while !std::fs::read_to_string(&path).is_ok_and(|log| log.contains("IMEX state is now READY")) {
        assert!(daemon.child.try_wait().unwrap().is_none());
        node.ctl(&["-q", "-u", &node.socket()]).await;
    }
    // Attempts that were left out are in the memory buffer.
    daemon.signal(Signal::HUP);
    daemon.signal(Signal::TERM);
    daemon.exit().await;
    let log = std::fs::read_to_string(&path).unwrap();
    assert!(log.starts_with("IMEX Log initializing at: ") && log.contains("IMEX daemon has ended"), "{log}");
    assert!(!daemon.log().contains("READY"));
}
