//! What goes wrong under a runner, and that no daemon ends for it which a prepared claim may need: `refuses_to_end` and the
//! daemon's pid stand for it in each case.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use heddle_integration::imex::cuda::Cuda;
use heddle_integration::imex::os::OS_ENV;
use heddle_integration::imex::scenario::Scenario;
use heddle_integration::imex::state::DaemonState;
use heddle_proto::runner::{Identity, State};
use rustix::process::Signal;

use crate::rig::{Client, HEDDLE, MAJOR, Node, is_alive, kill, may_isolate, programs_of_either_root, until};

#[tokio::test]
async fn a_daemon_that_dies_in_any_state_is_started_again_with_its_last_domain() {
    if !may_isolate() {
        return;
    }
    let states = [
        DaemonState::Initializing,
        DaemonState::StartingAuthServer,
        DaemonState::WaitingForPeers,
        DaemonState::InitGpu,
        DaemonState::Ready,
    ];
    let mut nodes: tokio::task::JoinSet<()> = states.into_iter().map(dies_in).collect();
    while let Some(ended) = nodes.join_next().await {
        ended.unwrap();
    }
}

async fn dies_in(state: DaemonState) {
    let mut node = Node::new();
    node.scenario(&Scenario { crash_in: Some(state), ..Scenario::default() });
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let fits = |known: &State| known.daemon_state == "DOWN" && known.message.contains("signal: 9") && known.starts >= 3;
    let down = client.until("down again and again", fits).await;
    assert_eq!((down.domain.as_str(), down.daemon_pid), ("d", 0), "{state}");
    client.refuses_to_end(&node).await;
    node.scenario(&Scenario::default());
    let ready = client.ready().await;
    assert_eq!(ready.domain, "d", "{state}");
    // Each pause is longer than the one before.
    let log = node.log();
    let pauses: Vec<_> = log.lines().filter_map(|line| line.split_once("next_start=")?.1.split(' ').next()).collect();
    assert_eq!(pauses[..3], ["250ms", "500ms", "1s"], "{state}");
}

#[tokio::test]
async fn a_daemon_outlives_a_runner_that_is_killed_and_goes_on_being_heard() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let pid = client.ready().await.daemon_pid;
    client.apply(node.domain(Some("127.0.0.98")), false).await.unwrap();
    node.says("Restarting all outgoing connections", 1).await;
    node.kill_runner();
    assert!(is_alive(pid));
    // Lines that nobody reads: they neither end nor stop it.
    for _ in 0..3 {
        kill(pid, Signal::USR1);
        kill(pid, Signal::HUP);
    }
    let mut client = node.start().await;
    let adopted = client.ready().await;
    assert_eq!((adopted.daemon_pid, adopted.domain.as_str(), adopted.starts), (pid, "d", 1));
    client.refuses_to_end(&node).await;
    // The daemon drops a signal that comes soon after another, of which this runner knows nothing: the last change arrives
    // nevertheless, and is heard of.
    client.apply(node.domain(Some("127.0.0.97")), false).await.unwrap();
    node.says("Restarting all outgoing connections", 2).await;
    assert!(node.seen(pid, "/etc/hosts").contains("127.0.0.97"));
    kill(pid, Signal::KILL);
    let again = client.until("another", |state| state.daemon_pid != pid && state.daemon_state == "READY").await;
    assert!(node.seen(again.daemon_pid, "/etc/hosts").contains("127.0.0.97"));
}

#[tokio::test]
async fn a_daemon_is_asked_the_way_it_was_started_whatever_isolation_its_next_runner_has() {
    if !may_isolate() {
        return;
    }
    let driver_root = programs_of_either_root();
    for (before, after) in [(true, false), (false, true)] {
        let mut node = Node::new();
        node.driver_root = driver_root.path().into();
        let arguments = |node: &Node, isolated: bool| if isolated { node.arguments() } else { node.plain_arguments() };
        let mut client = node.start_by(&[], &arguments(&node, before)).await;
        client.apply(node.domain(None), false).await.unwrap();
        let pid = client.ready().await.daemon_pid;
        assert_eq!(has_own_root(pid), before);
        node.kill_runner();

        let mut client = node.start_by(&[], &arguments(&node, after)).await;
        let adopted = client.ready().await;
        assert_eq!((adopted.daemon_pid, adopted.starts), (pid, 1));
        client.until("its row", |state| state.links_since_unix_ms != 0 && state.links_unknown.is_empty()).await;
        client.apply(node.domain(Some("127.0.0.97")), false).await.unwrap();
        node.says("Restarting all outgoing connections", 1).await;
        client.refuses_to_end(&node).await;

        // The next one is started as is wanted now.
        kill(pid, Signal::KILL);
        let again = client.until("another", |state| state.daemon_pid != pid && state.daemon_state == "READY").await;
        assert_eq!(has_own_root(again.daemon_pid), after);
        client.apply(node.domain(Some("127.0.0.97")), false).await.unwrap();
        assert_eq!(client.state().await.daemon_pid, again.daemon_pid, "its agent sees nothing of it");
    }
}

#[tokio::test]
async fn a_daemon_of_which_nothing_is_recorded_is_taken_back_by_its_own_runner_alone() {
    if !may_isolate() {
        return;
    }
    let (mut node, mut other) = Node::pair();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let pid = client.ready().await.daemon_pid;
    node.kill_runner();
    for file in ["daemon.json", "domain.json"] {
        fs::remove_file(node.dir().join(file)).unwrap();
    }
    // One that sees the process, whose folder has the same name in its root.
    let idle = other.start().await.state().await;
    assert_eq!((idle.domain.as_str(), idle.daemon_pid), ("", 0));
    other.stop_runner();
    assert!(is_alive(pid));

    let mut client = node.start().await;
    let adopted = client.ready().await;
    assert_eq!((adopted.daemon_pid, adopted.domain.as_str(), adopted.starts), (pid, "d", 1));
    client.refuses_to_end(&node).await;
    client.apply(node.domain(Some("127.0.0.98")), false).await.unwrap();
    node.says("Restarting all outgoing connections", 1).await;
    let state = client.state().await;
    assert_eq!((state.daemon_pid, state.starts), (pid, 1));
}

fn has_own_root(pid: u32) -> bool {
    let root = fs::metadata(format!("/proc/{pid}/root/")).unwrap();
    root.dev() != fs::metadata("/").unwrap().dev()
}

#[tokio::test]
async fn who_held_imports_is_remembered_over_a_container_and_not_over_a_boot() {
    if !may_isolate() {
        return;
    }
    let (mut zero, mut one) = Node::pair();
    let (mut client, mut other) = (zero.start().await, one.start().await);
    client.apply(zero.domain(None), false).await.unwrap();
    other.apply(one.domain(None), false).await.unwrap();
    let pid = client.ready().await.daemon_pid;
    other.ready().await;
    client.until("connected", |state| state.peers_connected == 1).await;
    let mut exporter = Cuda::open(&zero.os(), (MAJOR, 1)).unwrap();
    let mut importer = Cuda::open(&one.os(), (MAJOR, 1)).unwrap();
    let handle = exporter.export().await.unwrap();
    importer.import(&handle).await.unwrap();
    let held = zero.dir().join("persist/persist.dat");
    until("noted", || fs::read_to_string(&held).is_ok_and(|text| text.contains("1: ")), || format!("{held:?}")).await;

    // A container ends all its processes at once.
    zero.kill_runner();
    kill(pid, Signal::KILL);
    until("ended", || !is_alive(pid), String::new).await;
    let mut client = zero.start().await;
    client.ready().await;
    zero.says("Waiting for node 1, which held imports from this node", 1).await;

    // A boot empties the tmpfs too, and the agent says again whom to serve.
    importer.import(&exporter_again(&zero).await).await.unwrap();
    let pid = client.state().await.daemon_pid;
    zero.kill_runner();
    kill(pid, Signal::KILL);
    until("ended", || !is_alive(pid), String::new).await;
    fs::remove_dir_all(zero.dir()).unwrap();
    let mut client = zero.start().await;
    assert_eq!(client.state().await.domain, "");
    client.apply(zero.domain(None), false).await.unwrap();
    client.ready().await;
    assert_eq!(zero.log().matches("Waiting for node 1").count(), 1, "{}", zero.log());
}

async fn exporter_again(node: &Node) -> heddle_integration::imex::cuda::Handle {
    let mut exporter = Cuda::open(&node.os(), (MAJOR, 1)).unwrap();
    let handle = exporter.export().await.unwrap();
    // The memory lives as long as its process.
    std::mem::forget(exporter);
    handle
}

#[tokio::test]
async fn a_runners_folder_that_is_removed_is_made_again_under_a_daemon_that_runs_on() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let before = client.ready().await;
    let removed = [node.dir(), node.socket(), node.dir().join("daemon"), node.dir().join("lock")];
    for (peer, what) in ["127.0.0.95", "127.0.0.94", "127.0.0.93", "127.0.0.92"].into_iter().zip(removed) {
        match what.is_dir() {
            true => fs::remove_dir_all(&what).unwrap(),
            false => fs::remove_file(&what).unwrap(),
        }
        // The agent that is connected, and one that comes anew.
        let files = ["lock", "runner.sock", "domain.json", "daemon.json", "daemon/hosts", "persist"];
        until("made again", || files.iter().all(|file| node.dir().join(file).exists()), || node.log()).await;
        let mut anew = Client::connect(&node.socket()).await;
        anew.refuses_to_end(&node).await;
        anew.apply(node.domain(Some(peer)), false).await.unwrap();
        let sees = || node.seen(before.daemon_pid, "/etc/hosts").contains(peer);
        until("seen by the daemon", sees, || node.log()).await;
        let state = client.state().await;
        assert_eq!((state.daemon_pid, state.starts, state.daemon_state.as_str()), (before.daemon_pid, 1, "READY"));
    }
    // A runner that is killed now leaves a daemon that is found.
    node.kill_runner();
    let mut client = node.start().await;
    assert_eq!(client.ready().await.daemon_pid, before.daemon_pid);
}

#[tokio::test]
async fn a_full_disk_ends_no_daemon_and_keeps_none_from_starting_again() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    fs::create_dir(node.dir()).unwrap();
    // Seen by the runner alone, so that nothing is left; the agent's way is beside it.
    let socket = node.folder.path().join("runner.sock");
    let mut arguments = node.arguments();
    let place = arguments.iter().position(|word| *word == "--socket").unwrap() + 1;
    arguments[place] = socket.display().to_string();
    let script = r#"mount -t tmpfs -o size=128k tmpfs "$0" && exec "$@""#;
    let dir = node.dir().display().to_string();
    let mut client = node.start_at(&["unshare", "-m", "sh", "-c", script, &dir], &arguments, &socket).await;
    client.apply(node.domain(None), false).await.unwrap();
    let before = client.ready().await;

    let filler = format!("/proc/{}/root{dir}/filler", node.runner_pid());
    let full = fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    let refused = client.apply(node.domain(Some("127.0.0.96")), false).await.unwrap_err();
    assert!(refused.message().contains("make room"), "{refused}");
    client.refuses_to_end(&node).await;
    let state = client.state().await;
    assert_eq!((state.daemon_pid, state.daemon_state.as_str()), (before.daemon_pid, "READY"));

    kill(before.daemon_pid, Signal::KILL);
    let again = client.until("READY again", |state| state.daemon_state == "READY" && state.starts > 1).await;
    assert_eq!(again.daemon_index, Some(0), "its log is heard");
    fs::remove_file(&filler).unwrap();
    client.apply(node.domain(Some("127.0.0.96")), false).await.unwrap();
    assert!(node.seen(again.daemon_pid, "/etc/hosts").contains("127.0.0.96"));

    // What cannot be written whole leaves nothing, however often it is tried.
    fs::write(&filler, vec![0; 1 << 20]).unwrap_err();
    // Room for the domain, and not for three times two pages.
    let full = fs::OpenOptions::new().write(true).open(&filler).unwrap();
    full.set_len(full.metadata().unwrap().len() - (16 << 10)).unwrap();
    let text = format!("-----BEGIN {}", "x".repeat(8192));
    let identity = Identity {
        domain: "d".into(),
        certificate_pem: text.clone(),
        key_pem: text.clone(),
        ca_pem: text,
        name: "d.x".into(),
        not_after_unix: 1,
    };
    client.apply_as(node.domain(None), identity, true).await;
    let down = client.until("DOWN", |state| state.daemon_state == "DOWN").await;
    assert!(down.message.contains("identity") && down.message.contains("make room"), "{down:?}");
    node.says("failures=3", 1).await;
    let daemon = format!("/proc/{}/root{dir}/daemon", node.runner_pid());
    let left = fs::read_dir(daemon).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("identity")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Upstream 524, aicr 2520.
#[tokio::test]
async fn whoever_holds_the_session_is_named_and_waited_for() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let foreign = node.folder.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("nodes.cfg"), node.own_address()).unwrap();
    // On another port: it is the session that is in the way.
    let port = TcpListener::bind((node.own_address(), 0)).unwrap().local_addr().unwrap().port();
    let settings = format!(
        "DAEMONIZE=0\nLOG_FILE_NAME={0}/log\nSERVER_PORT={port}\nIMEX_NODE_CONFIG_FILE={0}/nodes.cfg\n",
        foreign.display()
    );
    fs::write(foreign.join("config.cfg"), settings).unwrap();
    let mut host = Command::new(HEDDLE)
        .arg0("/usr/bin/nvidia-imex")
        .arg("-c")
        .arg(foreign.join("config.cfg"))
        .env(OS_ENV, node.os())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_ready = || fs::read_to_string(foreign.join("log")).unwrap_or_default().contains("state is now READY");
    until("the host's daemon is READY", is_ready, String::new).await;

    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let down = client.until("NV_ERR_IN_USE", |state| state.message.contains("NV_ERR_IN_USE")).await;
    assert!(down.message.contains(&format!("pid {} (/usr/bin/nvidia-imex", host.id())), "{down:?}");
    assert_eq!((down.daemon_state.as_str(), down.daemon_pid), ("DOWN", 0));
    assert!(host.try_wait().unwrap().is_none(), "it is not ours to end");
    host.kill().unwrap();
    host.wait().unwrap();
    client.ready().await;
}

#[tokio::test]
async fn whoever_has_the_port_is_named_and_waited_for() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let taken = TcpListener::bind((node.own_address(), node.port())).unwrap();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let down = client.until("a word", |state| state.message.contains("is taken by")).await;
    assert!(down.message.contains(&format!("pid {} (", std::process::id())), "{down:?}");
    assert_eq!((down.daemon_state.as_str(), down.daemon_pid), ("DOWN", 0));
    drop(taken);
    client.ready().await;
}

#[tokio::test]
async fn a_daemon_that_ignores_term_is_waited_for_and_then_killed() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    node.scenario(&Scenario { hang_in: Some(DaemonState::ShuttingDown), ..Scenario::default() });
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let pid = client.ready().await.daemon_pid;
    node.stop_runner();
    assert!(!is_alive(pid));
    assert!(node.log().contains("has not ended 10s after SIGTERM and is killed"), "{}", node.log());
}

/// Upstream 1417.
#[tokio::test]
async fn a_tool_that_hangs_is_ended_and_its_daemon_is_not() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let pid = client.ready().await.daemon_pid;
    let hangs = r#"{"ctl": {"hang": ["q", "N"]}}"#;
    fs::write(node.os().join("imex/new.json"), hangs).unwrap();
    fs::rename(node.os().join("imex/new.json"), node.os().join("imex/scenario.json")).unwrap();
    let state = client.until("UNAVAILABLE", |state| state.daemon_state == "UNAVAILABLE").await;
    assert!(state.message.contains("has not answered within") && state.daemon_pid == pid, "{state:?}");
    node.scenario(&Scenario::default());
    assert_eq!(client.ready().await.daemon_pid, pid);
}
