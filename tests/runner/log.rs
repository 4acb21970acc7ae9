//! A runner whose log nobody reads: it goes on, and so does its daemon.

use std::fs::File;
use std::io::{ErrorKind, PipeWriter, Write as _};
use std::process::{Command, Stdio};

use heddle_integration::imex::os::OS_ENV;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;

use crate::rig::{Client, HEDDLE, Node, is_alive, kill, may_isolate};

/// Fills a pipe, so that the next line waits for its reader.
fn fill(mut pipe: &PipeWriter) {
    let flags = fcntl_getfl(pipe).unwrap();
    fcntl_setfl(pipe, flags | OFlags::NONBLOCK).unwrap();
    let full = std::iter::repeat_with(|| pipe.write(b"x")).find_map(Result::err).unwrap();
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    fcntl_setfl(pipe, flags).unwrap();
}

/// Serves, logs, starts its daemon again, and ends it in good order.
async fn goes_on(node: &mut Node, client: &mut Client) {
    let before = client.ready().await.daemon_pid;
    client.apply(node.domain(Some("127.0.0.98")), false).await.unwrap();
    client.refuses_to_end(node).await;
    kill(before, Signal::KILL);
    let again = client.until("another", |state| state.daemon_pid != before && state.daemon_state == "READY").await;
    assert_eq!(node.runner_ended(), None);
    node.stop_runner();
    assert!(!is_alive(again.daemon_pid));
}

#[tokio::test]
async fn a_runner_whose_log_is_closed_goes_on() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let (reader, writer) = std::io::pipe().unwrap();
    node.spawn(&[], &node.arguments(), writer.into());
    let mut client = Client::connect(&node.socket()).await;
    client.apply(node.domain(None), false).await.unwrap();
    client.ready().await;
    drop(reader);
    goes_on(&mut node, &mut client).await;
}

#[tokio::test]
async fn a_runner_whose_log_nobody_reads_goes_on_and_obeys() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let (_reader, writer) = std::io::pipe().unwrap();
    fill(&writer);
    node.spawn(&[], &node.arguments(), writer.into());
    let mut client = Client::connect(&node.socket()).await;
    client.apply(node.domain(None), false).await.unwrap();
    goes_on(&mut node, &mut client).await;
}

#[tokio::test]
async fn a_log_that_takes_nothing_from_the_start_on_keeps_no_role_from_starting() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    node.spawn(&[], &node.arguments(), File::options().write(true).open("/dev/full").unwrap().into());
    let mut client = Client::connect(&node.socket()).await;
    client.apply(node.domain(None), false).await.unwrap();
    goes_on(&mut node, &mut client).await;

    // One that cannot start says so by its exit code.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let no_cluster = node.folder.path().join("kubeconfig");
    let mut controller = Command::new(HEDDLE)
        .args(["controller", "--kubeconfig"])
        .arg(no_cluster)
        .stdin(Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    assert_eq!(controller.wait().unwrap().code(), Some(1));
}

#[test]
fn the_last_word_of_a_runner_that_cannot_start_is_read() {
    let node = Node::new();
    let mut arguments = node.arguments();
    arguments.extend(["--set".into(), "LOG_LEVLE=4".into()]);
    let ended = Command::new(HEDDLE).args(arguments).env(OS_ENV, node.os()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && said.contains("heddle: ") && said.contains("LOG_LEVEL"), "{said}");
}
