//! What is left of a daemon that ended uncleanly, and of a connection that was lost.

use std::path::PathBuf;

use heddle_integration::imex::scenario::Scenario;
use rustix::process::Signal;

use crate::rack::{Node, Rack, code, connected_pair, connected_pair_with, imported};

fn persist(node: &Node) -> PathBuf {
    node.os.join("run/nvidia-imex/persist.dat")
}

/// The lines after the key.
fn importers(node: &Node) -> Vec<String> {
    let text = std::fs::read_to_string(persist(node)).unwrap();
    text.lines().skip(1).map(str::to_owned).collect()
}

/// Cuts a node off from these, or lets it through to them again.
fn cut(node: &Node, from: &[u16]) {
    node.scenario(&Scenario { unreachable: from.iter().copied().collect(), ..Scenario::default() });
}

#[tokio::test]
async fn after_an_unclean_end_a_daemon_waits_for_its_importers() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    let (_exporter, _handle, _importer) = imported(&zero, &one).await;

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
async fn nobody_is_waited_for_after_a_clean_end_another_map_or_without_quorum() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    assert_eq!(importers(&zero), [""; 0]);
    let (_exporter, _handle, _importer) = imported(&zero, &one).await;
    assert_eq!(importers(&zero), [format!("1: {}", one.address)]);
    one_daemon.signal(Signal::KILL);
    one_daemon.exit().await;
    zero_daemon.signal(Signal::KILL);
    zero_daemon.exit().await;

    // Without waiting, although the file says so; it is of no more use afterwards.
    let unclean = std::fs::read(persist(&zero)).unwrap();
    let mut daemon = zero.start_with(&[("IMEX_WAIT_FOR_QUORUM", "NONE")]);
    daemon.ready().await;
    assert!(!daemon.log().contains("WAITING_FOR_RECOVERY"));
    assert_eq!(importers(&zero), [""; 0]);
    daemon.signal(Signal::TERM);
    daemon.exit().await;

    std::fs::write(persist(&zero), &unclean).unwrap();
    zero.map("rack-00\nrack-01\n");
    let mut daemon = zero.start();
    daemon.ready().await;
    assert!(!daemon.log().contains("WAITING_FOR_RECOVERY"));
    daemon.signal(Signal::TERM);
    daemon.exit().await;
    let mut daemon = zero.start();
    daemon.ready().await;
}

#[tokio::test]
async fn who_was_waited_for_is_not_waited_for_again() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    one.process(1).import(&handle).await.unwrap();
    let mut importer = one.process(1);
    importer.import(&handle).await.unwrap();
    zero_daemon.signal(Signal::KILL);
    zero_daemon.exit().await;
    let mut zero_daemon = zero.start();
    zero_daemon.says("IMEX state is now WAITING_FOR_RECOVERY").await;
    zero_daemon.ready().await;
    one_daemon.says("it runs as a new instance").await;
    assert_eq!(code(importer.holds(&handle)).await, 400);

    zero_daemon.signal(Signal::KILL);
    zero_daemon.exit().await;
    one_daemon.signal(Signal::KILL);
    one_daemon.exit().await;
    let mut zero_daemon = zero.start();
    zero_daemon.ready().await;
    assert!(!zero_daemon.log().contains("WAITING_FOR_RECOVERY"));
}

#[tokio::test]
async fn inside_the_grace_time_nothing_is_lost() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, _one_daemon) = connected_pair(&rack).await;
    let (_exporter, handle, mut importer) = imported(&zero, &one).await;

    cut(&zero, &[1]);
    zero_daemon.says("Lost the connection to node 1").await;
    zero.sees(0, 1, "RECOVERING").await;
    one.sees(1, 0, "RECOVERING").await;
    assert_eq!(code(one.process(1).import(&handle)).await, 400);
    importer.holds(&handle).await.unwrap();
    cut(&zero, &[]);
    zero.sees(0, 1, "CONNECTED").await;
    one.sees(1, 0, "CONNECTED").await;
    importer.holds(&handle).await.unwrap();
    importer.import(&handle).await.unwrap();
    assert_eq!(importers(&zero), [format!("1: {}", one.address)]);
}

#[tokio::test]
async fn without_grace_time_a_lost_connection_ends_imports_at_once() {
    let rack = Rack::new();
    let settings = [("IMEX_NODE_DISCONNECTED_GRACE_TIME", "0")];
    let (zero, one, _zero_daemon, mut one_daemon) = connected_pair_with(&rack, &settings).await;
    let (_exporter, handle, mut importer) = imported(&zero, &one).await;
    cut(&zero, &[1]);
    one_daemon.says("it has been away for longer than the grace time").await;
    assert_eq!(code(importer.holds(&handle)).await, 400);
    one.sees(1, 0, "DISCONNECTED").await;
    // The exporter takes its memory back too.
    while !importers(&zero).is_empty() {
        zero.query().await;
    }
}

#[tokio::test]
async fn after_a_finite_grace_time_imports_end() {
    let rack = Rack::new();
    let settings = [("IMEX_NODE_DISCONNECTED_GRACE_TIME", "1")];
    let (zero, one, _zero_daemon, mut one_daemon) = connected_pair_with(&rack, &settings).await;
    let (_exporter, handle, mut importer) = imported(&zero, &one).await;
    cut(&zero, &[1]);
    one_daemon.says("Lost the connection to node 0").await;
    one_daemon.says("it has been away for longer than the grace time").await;
    assert_eq!(code(importer.holds(&handle)).await, 400);
    cut(&zero, &[]);
    one.sees(1, 0, "CONNECTED").await;
    assert_eq!(code(importer.holds(&handle)).await, 400);
    importer.import(&handle).await.unwrap();
}

#[tokio::test]
async fn an_endless_grace_time_ends_with_a_new_instance() {
    let rack = Rack::new();
    let settings = [("IMEX_NODE_DISCONNECTED_GRACE_TIME", "-1")];
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair_with(&rack, &settings).await;
    let (_exporter, handle, mut importer) = imported(&zero, &one).await;
    zero_daemon.signal(Signal::KILL);
    zero_daemon.exit().await;
    one.sees(1, 0, "RECOVERING").await;
    importer.holds(&handle).await.unwrap();
    let _zero_daemon = zero.start();
    one_daemon.says("1 imports from node 0 are invalid: it runs as a new instance").await;
    assert_eq!(code(importer.holds(&handle)).await, 400);
}
