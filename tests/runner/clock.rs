//! A runner and its daemon under a clock of the wall that jumps.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::rig::{Node, kill, programs_of_either_root};

/// Ten of them, in seconds.
const YEARS: i64 = 10 * 365 * 24 * 3600;

/// Adds what a file says to the clock of the wall.
const JUMPING_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, at);
    FILE *file = id == CLOCK_REALTIME ? fopen(getenv("JUMP"), "re") : NULL;
    long by;
    if (file && fscanf(file, "%ld", &by) == 1) at->tv_sec += by;
    if (file) fclose(file);
    return result;
}
"#;

/// Of runner and daemon: whatever waits or measures does so by another clock.
#[tokio::test]
async fn a_clock_that_jumps_is_no_reason_for_anything() {
    let mut node = Node::new();
    let driver_root = programs_of_either_root();
    node.driver_root = driver_root.path().into();
    let file = |name: &str| node.folder.path().join(name);
    let (source, library, jump) = (file("jump.c"), file("jump.so"), file("jump"));
    fs::write(&source, JUMPING_CLOCK).unwrap();
    // A linker there must be: it has linked this test.
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    assert!(made.unwrap().success());
    let jumps = |by: i64| {
        fs::write(jump.with_extension("new"), by.to_string()).unwrap();
        fs::rename(jump.with_extension("new"), &jump).unwrap();
    };
    jumps(0);
    let preload = [format!("LD_PRELOAD={}", library.display()), format!("JUMP={}", jump.display())];
    let mut client = node.start_by(&["env", &preload[0], &preload[1]], &node.plain_arguments()).await;
    client.apply(node.domain(None), false).await.unwrap();
    let mut pid = client.ready().await.daemon_pid;
    for (number, by) in [YEARS, -YEARS, -4 * YEARS, 0].into_iter().enumerate() {
        let starts = client.state().await.starts;
        jumps(by);
        // Names arrive within a window of SIGUSR1, and the daemon is asked as before.
        client.apply(node.domain(Some(&format!("127.0.1.{number}"))), false).await.unwrap();
        node.says("Restarting all outgoing connections", number + 1).await;
        let asked = client.state().await;
        assert_eq!((asked.daemon_pid, asked.daemon_state.as_str(), asked.starts), (pid, "READY", starts));
        client.refuses_to_end(&node).await;
        // One that dies is started again after the usual pause.
        kill(pid, Signal::KILL);
        let again = client.until("another", |state| state.daemon_pid != pid && state.daemon_state == "READY").await;
        assert_eq!(again.starts, starts + 1);
        let ahead = again.since_unix_ms / 1000 - now();
        assert!(by == 0 || (ahead - by).abs() < YEARS / 10, "the clock has jumped: {ahead}, {by}");
        pid = again.daemon_pid;
    }
    let log = node.log();
    let pauses: Vec<_> = log.lines().filter_map(|line| line.split_once("next_start=")?.1.split(' ').next()).collect();
    assert_eq!(pauses, ["250ms", "500ms", "1s", "2s"]);
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs().cast_signed()
}
