//! Who may import what, and until when.

use heddle_integration::imex::cuda::Cuda;
use rustix::process::Signal;

use crate::rack::{Rack, SENTINEL, code, connected_pair, imported};

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
async fn the_end_of_a_daemon_ends_what_it_exported() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    let (mut exporter, handle, mut importer) = imported(&zero, &one).await;

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
    let (_exporter, handle, mut importer) = imported(&zero, &one).await;
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
