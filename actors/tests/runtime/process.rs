//! What only a process of its own can show: this test binary starts itself again, as the tests named `child_…`.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use heddle_actors::runtime::{Runtime, block_on, signals};
use rustix::process::{Pid, Signal, kill_process};

use crate::probe::{Log, act, start};

const ROLE: &str = "HEDDLE_RUNTIME_TEST_CHILD";

/// Starts this binary as the test `name`, which does nothing unless it is started like this.
fn child(name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("process::{name}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn is(name: &str) -> bool {
    std::env::var(ROLE).is_ok_and(|role| role == name)
}

#[test]
fn child_that_blocks() {
    if !is("child_that_blocks") {
        return;
    }
    block_on(async {
        let runtime = Runtime::new().blocked_limit(Duration::from_millis(200));
        let log = Log::default();
        let probe = start(&runtime.root(), "probe", &log, Default::default());
        probe.tell(act(|_, _| std::thread::park()));
        runtime.run(std::future::pending()).await.unwrap();
    });
}

#[test]
fn a_handler_that_blocks_the_thread_ends_the_process_and_is_named() {
    let output = child("child_that_blocks").wait_with_output().unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = "heddle: the actors' thread has been blocked for 200ms by Probe with Do in hand; the process ends";
    assert!(stderr.contains(said), "{stderr}");
}

#[test]
fn child_that_waits_for_signals() {
    if !is("child_that_waits_for_signals") {
        return;
    }
    block_on(async {
        let mut signals = std::pin::pin!(signals());
        // Polled once, so that the handlers are there before anybody is told to send a signal.
        assert!(futures::poll!(&mut signals).is_pending());
        println!("waiting");
        signals.await;
        println!("draining");
        std::future::pending::<()>().await;
    });
}

#[test]
fn the_first_signal_ends_gracefully_and_the_second_at_once() {
    let mut child = child("child_that_waits_for_signals");
    let pid = Pid::from_child(&child);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The harness's own words stand before ours on the line.
    lines.find(|line| line.ends_with("waiting")).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    lines.find(|line| line.ends_with("draining")).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
