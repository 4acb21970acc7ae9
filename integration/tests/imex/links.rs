//! Who connects to whom.

use std::net::TcpListener;

use heddle_integration::imex::scenario::Scenario;
use rustix::process::Signal;

use crate::rack::{Rack, code};

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
async fn issue_1447_a_daemon_of_another_domain_at_a_members_old_address_shuts_nobody_down() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    // The domain's hash is in each name, so that the maps of two domains never agree.
    let map = |domain: &str| heddle_core::imex::node_map(domain, 2);
    let name = |domain: &str, index| heddle_core::imex::member_name(domain, index);
    let hosts = |domain: &str, node: &crate::rack::Node| {
        let names = [name(domain, 0), name(domain, 1)];
        node.hosts(&[(&zero.address, &names[0]), (&one.address, &names[1])]);
        node.map(&map(domain));
    };
    hosts("shared-1", &zero);
    hosts("shared-1", &one);
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    zero_daemon.says("Connected to node 1").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    one_daemon.signal(Signal::KILL);
    one_daemon.exit().await;

    // The address is given to a node of another domain, whose daemon knows ours by an address of before.
    hosts("shared-2", &one);
    let mut foreign = one.start();
    foreign.ready().await;
    zero_daemon.says("Connection to node 1 is refused: !M!").await;
    foreign.says("Connection to node 0 is refused: !M!").await;
    foreign.signal(Signal::TERM);
    assert_eq!(foreign.exit().await, Some(0));
    assert_eq!(zero.query().await, "READY\n");
    assert!(!zero_daemon.log().contains("Node 1 is shutting down"), "{}", zero_daemon.log());
    assert_eq!(code(zero.process(2).import(&handle)).await, 800, "what it exports is not touched");
    zero.process(1).import(&handle).await.unwrap();
}

#[tokio::test]
async fn another_revision_of_the_protocol_is_refused() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    one.scenario(&Scenario { protocol: 2, ..Scenario::default() });
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    zero_daemon.says("Connection to node 1 is refused: !V!").await;
    one_daemon.says("Connection to node 0 is refused: !V!").await;
    zero_daemon.ready().await;
    assert_eq!(zero.row(0).await[..2], ["CONNECTED", "VERSION_MISMATCH"]);
}

#[tokio::test]
async fn a_name_may_have_addresses_of_both_families() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("this machine has no IPv6, nothing is tested");
        return;
    }
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    // Node 0 has both families and listens at the first that its name has; nobody is at its IPv4 address.
    std::fs::write(zero.os.join("net/addresses"), format!("{}\n::1\n", zero.address)).unwrap();
    let dead = "127.255.255.253";
    let hosts = [(dead, "rack-00"), ("::1", "rack-00"), (zero.address.as_str(), "rack-00"), (&one.address, "rack-01")];
    for node in [&zero, &one] {
        node.hosts(&hosts);
        node.map("rack-00\nrack-01\n");
    }
    let command_port = TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap().port().to_string();
    let settings = [("IMEX_CMD_PORT", &*command_port)];
    let (mut zero_daemon, mut one_daemon) = (zero.start_with(&settings), one.start_with(&settings));
    zero_daemon.says("IMEX Library communication bind interface = ::1").await;
    zero_daemon.says("Identified this node as ID 0").await;
    one_daemon.says("Connected to node 0").await;
    zero_daemon.says("Connected to node 1").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    one.process(1).import(&handle).await.unwrap();
    assert_eq!(zero.ctl(&["-q", "-i", "::1", &command_port]).await.stdout, b"READY\n");
    let domain = String::from_utf8(one.ctl(&["-N", "-j", "-c", &one.config()]).await.stdout).unwrap();
    assert!(domain.ends_with("\"status\":\"UP\"}\n"), "{domain}");
}

#[tokio::test]
async fn addresses_in_the_map_are_nodes_too() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    for node in [&zero, &one] {
        node.map(&format!("# two nodes\n{}\n\n{}\n", zero.address, one.address));
    }
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    zero_daemon.says("Connected to node 1").await;
    one_daemon.says("Connected to node 0").await;
    assert!(!zero_daemon.log().contains("as a host name"));
}

#[tokio::test]
async fn a_partition_between_two_members_heals_by_itself() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    // From the start, and at one side only.
    one.scenario(&Scenario { unreachable: [0].into(), ..Scenario::default() });
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    zero_daemon.ready().await;
    one_daemon.ready().await;
    assert_ne!(zero.row(0).await[1], "CONNECTED");
    assert_eq!(one.row(1).await[0], "NEVER_CONNECTED");
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    assert_eq!(code(one.process(1).import(&handle)).await, 400);
    one.scenario(&Scenario::default());
    zero.sees(0, 1, "CONNECTED").await;
    one.sees(1, 0, "CONNECTED").await;
    one.process(1).import(&handle).await.unwrap();
    zero_daemon.signal(Signal::TERM);
    assert_eq!(zero_daemon.exit().await, Some(0));
}
