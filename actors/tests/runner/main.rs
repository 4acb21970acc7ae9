//! The runner as a whole, over its socket, with a shell script in the place of `nvidia-imex`.

mod folder;
mod identities;
mod orphans;
mod rig;
#[path = "../stand_in/mod.rs"]
mod stand_in;

use std::fs;
use std::net::TcpListener;
use std::time::Duration;

use heddle_actors::runner;
use heddle_proto::runner::{ApplyRequest, DomainConfig, GetRequest, State, StopRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

use crate::rig::{Rig, apply, config};
use crate::stand_in::{CTL, DAEMON, alive, root, script, settings};

#[tokio::test]
async fn a_domain_is_served_and_the_same_again_changes_nothing() {
    let mut rig = Rig::start(root()).await;
    let idle = rig.client.get(GetRequest {}).await.unwrap().into_inner();
    assert_eq!((idle.daemon_state.as_str(), idle.domain.as_str(), idle.contract), ("DOWN", "", 4));
    let first = rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap().into_inner();
    assert_eq!((first.domain.as_str(), first.daemon_state.as_str(), first.starts), ("d", "INITIALIZING", 1));
    let ready = rig.until_ready().await;
    assert_eq!(ready.message, "");
    assert_eq!(ready.node_map_sha256, heddle_core::imex::node_map_hash("heddle-x-00\nheddle-x-01\n"));
    let peers = rig.until("a row", |state| state.peers_connected == 1).await;
    assert_eq!(peers.daemon_version, "595.1");

    let again = rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap().into_inner();
    assert_eq!((again.starts, again.daemon_pid), (1, ready.daemon_pid));
    let file = fs::read_to_string(rig.root.path().join("run/daemon/config.cfg")).unwrap();
    assert!(file.contains("BIND_INTERFACE_IP=127.0.0.1\n") && file.contains("DAEMONIZE=0\n"), "{file}");

    let root = rig.end().await;
    assert!(!alive(ready.daemon_pid), "the daemon ends with its runner");
    assert!(fs::read_to_string(root.path().join("calls")).unwrap().ends_with("term\n"));
}

#[tokio::test]
async fn another_domain_needs_the_word_that_no_claim_is_prepared() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let ready = rig.until_ready().await;

    let refused = rig.client.apply(apply(config("e", "10.0.0.1"), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("domain d"), "{refused}");
    let refused = rig.client.stop(StopRequest { no_claims_prepared: false }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(alive(ready.daemon_pid));

    let moved = rig.client.apply(apply(config("e", "10.0.0.1"), true)).await.unwrap().into_inner();
    assert_eq!((moved.domain.as_str(), moved.starts), ("e", 2));
    assert!(!alive(ready.daemon_pid), "one daemon ends before the next begins");
    rig.until("READY in e", |state| state.daemon_state == "READY" && state.domain == "e").await;

    let stopped = rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap().into_inner();
    assert_eq!((stopped.domain.as_str(), stopped.daemon_state.as_str()), ("", "DOWN"));
    rig.end().await;
}

#[tokio::test]
async fn what_is_no_configuration_is_refused() {
    let mut rig = Rig::start(root()).await;
    let mut unknown = config("d", "10.0.0.1");
    unknown.settings.insert("LOG_LEVLE".into(), "4".into());
    for (request, says) in [
        (ApplyRequest::default(), "no configuration"),
        (apply(DomainConfig { index: 7, ..config("d", "10.0.0.1") }, true), "index 7"),
        (apply(config("../../etc", "10.0.0.1"), true), "no name"),
        (apply(unknown, true), "LOG_LEVEL"),
    ] {
        let status = rig.client.apply(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(says), "{status}");
    }
    assert_eq!(rig.calls(), "");
    rig.end().await;
}

#[tokio::test]
async fn a_crashed_daemon_is_started_again_with_the_same_domain() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let first = rig.until_ready().await;
    fs::write(rig.root.path().join("broken"), "").unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(first.daemon_pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let down = rig.until("DOWN", |state| state.daemon_state == "DOWN").await;
    assert!(down.message.contains("signal: 9"), "{down:?}");
    assert_eq!(down.domain, "d", "what it should serve is still said");
    let down = rig.until("an early end", |state| state.message.contains("exit status: 3")).await;
    assert!(down.message.contains("No matching network interface"), "{down:?}");

    fs::remove_file(rig.root.path().join("broken")).unwrap();
    let second = rig.until_ready().await;
    assert_ne!(second.daemon_pid, first.daemon_pid);
    assert!(second.starts > 2);
    rig.end().await;
}

#[tokio::test]
async fn a_runner_serves_the_last_domain_without_an_agent() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    rig.until_ready().await;
    let root = rig.end().await;

    let mut rig = Rig::start(root).await;
    let ready = rig.until_ready().await;
    assert_eq!(ready.domain, "d");
    rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
    let root = rig.end().await;

    let mut rig = Rig::start(root).await;
    assert_eq!(rig.client.get(GetRequest {}).await.unwrap().into_inner().domain, "", "what was stopped stays so");
    rig.end().await;
}

#[tokio::test]
async fn changes_of_hosts_inside_a_window_are_one_signal_and_the_last_arrives() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let ready = rig.until_ready().await;
    for peer in ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.9"] {
        let state = rig.client.apply(apply(config("d", peer), false)).await.unwrap().into_inner();
        assert_eq!((state.starts, state.daemon_pid), (1, ready.daemon_pid), "hosts disturb nobody");
    }
    rig.until_calls("signalled with the last hosts", |calls| calls.contains("usr1 1")).await;
    let signals = rig.calls().matches("usr1").count();
    assert!(signals <= 2, "{}", rig.calls());
    rig.end().await;
}

#[tokio::test]
async fn a_missing_binary_is_said_and_found_when_it_is_there() {
    let root = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(root).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let down = rig.until("DOWN", |state| state.domain == "d" && state.daemon_state == "DOWN").await;
    assert!(down.message.contains("no nvidia-imex below"), "{down:?}");
    assert_eq!(down.starts, 0);
    let fault = runner::preflight(&settings(rig.root.path())).unwrap_err();
    assert_eq!(fault.message, down.message, "whoever starts a runner there is told the same");
    fs::write(rig.root.path().join("word"), "READY\n").unwrap();
    script(rig.root.path(), "nvidia-imex-ctl", CTL);
    script(rig.root.path(), "nvidia-imex", DAEMON);
    rig.until_ready().await;
    rig.end().await;
}

#[tokio::test]
async fn a_foreign_session_is_said_and_waited_out() {
    let root = root();
    fs::write(root.path().join("in-use"), "").unwrap();
    let mut rig = Rig::start(root).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let down = rig.until("DOWN", |state| state.message.contains("NV_ERR_IN_USE")).await;
    assert!(down.message.contains("another IMEX daemon"), "{down:?}");
    fs::remove_file(rig.root.path().join("in-use")).unwrap();
    rig.until_ready().await;
    rig.end().await;
}

#[tokio::test]
async fn a_taken_port_is_said_and_waited_out() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut rig = Rig::start_with(root(), |settings| settings.peer_port = port).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let down = rig.until("DOWN", |state| state.message.contains("is taken")).await;
    assert!(down.message.contains(&port.to_string()), "{down:?}");
    drop(taken);
    rig.until_ready().await;
    rig.end().await;
}

#[tokio::test]
async fn not_ready_is_not_ready_and_a_hanging_tool_is_bounded() {
    let root = root();
    fs::write(root.path().join("word"), "NOT_READY\n").unwrap();
    let mut rig = Rig::start(root).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let state = rig.until("a word", |state| state.daemon_state == "NOT_READY").await;
    assert!(state.message.contains("NOT_READY"));
    fs::write(rig.root.path().join("hangs"), "").unwrap();
    let state = rig.until("UNAVAILABLE", |state| state.daemon_state == "UNAVAILABLE").await;
    assert!(state.message.contains("has not answered"), "{state:?}");
    assert!(alive(state.daemon_pid), "a daemon that does not answer is not ended");
    fs::remove_file(rig.root.path().join("hangs")).unwrap();
    fs::write(rig.root.path().join("word"), "READY\n").unwrap();
    rig.until_ready().await;
    rig.end().await;
}

#[tokio::test]
async fn a_daemon_that_ignores_term_is_killed() {
    let root = root();
    fs::write(root.path().join("stubborn"), "").unwrap();
    let mut rig = Rig::start(root).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let ready = rig.until_ready().await;
    let root = rig.end().await;
    assert!(!alive(ready.daemon_pid));
    assert!(fs::read_to_string(root.path().join("calls")).unwrap().contains("term"));
}

async fn metrics(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    Some(response)
}

#[tokio::test]
async fn the_daemon_is_shown_to_prometheus_and_a_taken_port_does_not_matter_to_it() {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free().local_addr().unwrap().port();
    let mut rig = Rig::start_with(root(), |settings| settings.metrics = Some(([127, 0, 0, 1], port).into())).await;
    assert!(metrics(port).await.unwrap().contains(r#"heddle_runner_daemon_state{domain="",state="DOWN"} 1"#));
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    rig.until_ready().await;
    let text = metrics(port).await.unwrap();
    assert!(text.contains(r#"heddle_runner_daemon_state{domain="d",state="READY"} 1"#), "{text}");
    assert!(text.contains("heddle_runner_daemon_starts_total 1"), "{text}");
    rig.end().await;
    assert_eq!(metrics(port).await, None, "it ends with the runner");

    let taken = free();
    let address = taken.local_addr().unwrap();
    let mut rig = Rig::start_with(root(), |settings| settings.metrics = Some(address)).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    rig.until_ready().await;
    rig.end().await;
}

#[tokio::test]
async fn a_runner_says_that_it_lives_where_nothing_changes_and_while_it_waits_for_an_end() {
    let root = root();
    fs::write(root.path().join("stubborn"), "").unwrap();
    let beat = Duration::from_millis(20);
    let mut rig = Rig::start_with(root, |settings| settings.timing.beat = beat).await;
    let idle = rig.until("beats", |state| state.beats >= 3).await;
    assert_eq!((idle.daemon_state.as_str(), idle.beat_ms), ("DOWN", 20));
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    rig.until_ready().await;
    let (stopped, beats) = {
        let mut client = rig.client.clone();
        let stop = tokio::spawn(async move { client.stop(StopRequest { no_claims_prepared: true }).await.unwrap() });
        let ending = rig.until("its end", |state| state.daemon_state == "SHUTTING_DOWN").await;
        let later = |state: &State| state.daemon_state == "SHUTTING_DOWN" && state.beats > ending.beats;
        rig.until("a beat", later).await;
        (stop.await.unwrap().into_inner(), ending.beats)
    };
    assert!(stopped.daemon_state == "DOWN" && stopped.beats > beats, "{stopped:?}");
    rig.end().await;
}
