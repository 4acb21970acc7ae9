//! The runner as a whole, over its socket, with a shell script in the place of `nvidia-imex`.

mod stand_in;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use heddle_actors::runner::{self, Isolation, Settings};
use heddle_core::fault::{Class, Fault};
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{
    ApplyRequest, DomainConfig, GetRequest, Host, Identity, RenewRequest, State, StopRequest, WatchRequest,
};
use stand_in::{CTL, DAEMON, alive, root, script, settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Streaming};

struct Rig {
    root: tempfile::TempDir,
    client: RunnerClient<Channel>,
    states: Streaming<State>,
    end: oneshot::Sender<()>,
    runner: JoinHandle<Result<(), Fault>>,
}

fn config(domain: &str, peer: &str) -> DomainConfig {
    DomainConfig {
        domain: domain.into(),
        node_map: "heddle-x-00\nheddle-x-01\n".into(),
        index: 1,
        hosts: vec![
            Host { address: peer.into(), name: "heddle-x-00".into() },
            Host { address: "127.0.0.1".into(), name: "heddle-x-01".into() },
        ],
        settings: [("BIND_INTERFACE_IP".to_owned(), "127.0.0.1".to_owned())].into(),
    }
}

fn apply(config: DomainConfig, no_claims_prepared: bool) -> ApplyRequest {
    ApplyRequest { config: Some(config), no_claims_prepared, identity: None }
}

impl Rig {
    async fn start(root: tempfile::TempDir) -> Self {
        Self::start_with(root, |_| {}).await
    }

    async fn start_with(root: tempfile::TempDir, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings(root.path());
        change(&mut settings);
        let socket = settings.socket.clone();
        let run = || {
            let (end, ends) = oneshot::channel::<()>();
            let until = async {
                let _ = ends.await;
            };
            (end, tokio::spawn(runner::run(settings.clone(), until)))
        };
        let (mut end, mut runner) = run();
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                // A fork that has not become another program yet holds the folder's lock of a killed runner.
                Err(_) if runner.is_finished() => (end, runner) = run(),
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let mut client = RunnerClient::new(channel);
        let states = client.watch(WatchRequest {}).await.unwrap().into_inner();
        Self { root, client, states, end, runner }
    }

    /// The next state that fits.
    async fn until(&mut self, what: &str, fits: impl Fn(&State) -> bool) -> State {
        let mut last = None;
        let found = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                let state = self.states.message().await.unwrap().expect("the stream goes on");
                if fits(&state) {
                    return state;
                }
                last = Some(state);
            }
        });
        match found.await {
            Ok(state) => state,
            Err(_) => panic!("never {what}; last: {last:?}; calls: {}", self.calls()),
        }
    }

    async fn until_ready(&mut self) -> State {
        self.until("READY", |state| state.daemon_state == "READY" && state.daemon_index == Some(1)).await
    }

    async fn until_ready_again(&mut self, before: u32) -> State {
        let is = |s: &State| s.daemon_state == "READY" && s.daemon_index == Some(1) && s.daemon_pid != before;
        self.until("READY again", is).await
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.root.path().join("calls")).unwrap_or_default()
    }

    /// Waits until the daemon's own record fits.
    async fn until_calls(&self, what: &str, fits: impl Fn(&str) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(20), async {
            while !fits(&self.calls()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(waited.await.is_ok(), "never {what}: {}", self.calls());
    }

    /// Ends the runner as SIGKILL does.
    async fn kill(self) -> tempfile::TempDir {
        self.runner.abort();
        assert!(self.runner.await.unwrap_err().is_cancelled());
        // Its server lives on in this process, where nobody is to find it.
        fs::remove_file(self.root.path().join("run/runner.sock")).unwrap();
        self.root
    }

    async fn end(self) -> tempfile::TempDir {
        self.end.send(()).unwrap();
        self.runner.await.unwrap().unwrap();
        self.root
    }
}

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
async fn a_daemon_whose_runner_was_killed_is_served_on_with() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let before = rig.until_ready().await.daemon_pid;
    let mut rig = Rig::start(rig.kill().await).await;
    let after = rig.until_ready().await;
    assert_eq!((after.daemon_pid, after.domain.as_str()), (before, "d"), "{}", rig.calls());
    let refused = rig.client.apply(apply(config("e", "10.0.0.1"), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "it is protected like any other");
    rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap();
    rig.until_calls("signalled", |calls| calls.contains("usr1 1")).await;
    assert_eq!(rig.calls().matches("start").count(), 1);

    rig.client.apply(apply(config("e", "10.0.0.1"), true)).await.unwrap();
    let second = rig.until_ready_again(before).await;
    assert!(second.domain == "e" && !alive(before));

    // Ended by itself it is started again, and one whose domain nobody remembers is ended on the word only.
    let mut rig = Rig::start(rig.kill().await).await;
    let adopted = rig.until_ready().await;
    assert_eq!(adopted.daemon_pid, second.daemon_pid);
    let pid = rustix::process::Pid::from_raw(i32::try_from(adopted.daemon_pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let third = rig.until_ready_again(adopted.daemon_pid).await;
    for lost in [|file: &Path| fs::write(file, "{").unwrap(), |file: &Path| fs::remove_file(file).unwrap()] {
        let root = rig.kill().await;
        lost(&root.path().join("run/domain.json"));
        rig = Rig::start(root).await;
        assert_eq!(rig.until_ready().await.daemon_pid, third.daemon_pid);
    }
    assert_eq!(
        rig.client.stop(StopRequest { no_claims_prepared: false }).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
    assert!(!alive(third.daemon_pid));
    rig.end().await;
}

#[tokio::test]
async fn a_daemon_is_taken_back_whatever_has_become_of_its_record() {
    let mut rig = Rig::start(root()).await;
    let given = || apply_as(config("d", "10.0.0.9"), identity("d", 1), false);
    rig.client.apply(given()).await.unwrap();
    let ready = rig.until_ready().await;
    let losses: [fn(&Path); 6] = [
        // No room was left when its index was to be noted.
        |run| {
            let text = fs::read_to_string(run.join("daemon.json")).unwrap();
            fs::write(
                run.join("daemon.json"),
                text.replace("\"index\":1,\"isolation\"", "\"index\":null,\"isolation\""),
            )
            .unwrap();
        },
        |run| fs::write(run.join("daemon.json"), "").unwrap(),
        |run| fs::write(run.join("daemon.json"), "{").unwrap(),
        // That of one before.
        |run| {
            let text = fs::read_to_string(run.join("daemon.json")).unwrap();
            fs::write(run.join("daemon.json"), text.replace("\"pid\":", "\"pid\":1")).unwrap();
        },
        |run| fs::remove_file(run.join("daemon.json")).unwrap(),
        |run| {
            fs::remove_file(run.join("daemon.json")).unwrap();
            fs::remove_file(run.join("domain.json")).unwrap();
        },
    ];
    for (number, lose) in losses.into_iter().enumerate() {
        let root = rig.kill().await;
        lose(&root.path().join("run"));
        rig = Rig::start(root).await;
        let adopted = rig.until_ready().await;
        assert_eq!((adopted.daemon_pid, adopted.domain.as_str()), (ready.daemon_pid, "d"), "loss {number}");
        let state = rig.client.apply(given()).await.unwrap().into_inner();
        assert_eq!((state.daemon_pid, state.starts, state.identity.as_str()), (ready.daemon_pid, 1, "d.x"));
        let hosts = fs::read_to_string(rig.root.path().join("run/hosts")).unwrap();
        assert!(hosts.contains("10.0.0.9 heddle-x-00"), "{hosts}");
    }
    // Neither is that of another folder taken.
    let other = Rig::start(stand_in::root()).await;
    assert_eq!(other.client.clone().get(GetRequest {}).await.unwrap().into_inner().domain, "");
    other.end().await;
    assert!(alive(ready.daemon_pid));
    rig.end().await;
}

#[tokio::test]
async fn a_daemon_whose_index_nobody_knows_any_more_is_not_ended_for_it() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let ready = rig.until_ready().await;
    let root = rig.kill().await;
    // Neither its log, which is emptied when it is long, nor its record has it.
    let log = fs::OpenOptions::new().write(true).open(format!("/proc/{}/fd/2", ready.daemon_pid)).unwrap();
    log.set_len(0).unwrap();
    fs::remove_file(root.path().join("run/daemon.json")).unwrap();
    let mut rig = Rig::start(root).await;
    let adopted = rig.until("READY", |state| state.daemon_state == "READY").await;
    assert_eq!((adopted.daemon_pid, adopted.daemon_index), (ready.daemon_pid, None));
    rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap();
    rig.until_calls("signalled", |calls| calls.contains("usr1 1")).await;
    assert!(alive(ready.daemon_pid));
    rig.end().await;
}

#[tokio::test]
async fn where_a_daemon_listens_is_known_to_the_next_runner_though_peers_look_elsewhere() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let ready = rig.until_ready().await;
    let mut moved = config("d", "10.0.0.9");
    moved.settings.insert("BIND_INTERFACE_IP".into(), "127.0.0.2".into());
    let state = rig.client.apply(apply(moved, false)).await.unwrap().into_inner();
    assert_eq!((state.daemon_pid, state.listens_at.as_str()), (ready.daemon_pid, "127.0.0.1"));
    let record = rig.root.path().join("run/daemon.json");
    fs::remove_file(&record).unwrap();
    rig.until_calls("recorded again", |_| record.exists()).await;
    let mut rig = Rig::start(rig.kill().await).await;
    let adopted = rig.until_ready().await;
    assert_eq!((adopted.daemon_pid, adopted.listens_at.as_str()), (ready.daemon_pid, "127.0.0.1"));
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

#[tokio::test]
async fn one_runner_serves_a_folder() {
    let rig = Rig::start(root()).await;
    let fault = runner::run(settings(rig.root.path()), std::future::pending()).await.unwrap_err();
    assert_eq!(fault.class, Class::Fatal);
    assert!(fault.message.contains("another IMEX runner"), "{fault}");
    let mode = fs::metadata(rig.root.path().join("run/runner.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    rig.end().await;
}

#[tokio::test]
async fn a_socket_on_which_somebody_answers_is_left_to_him() {
    let rig = Rig::start(root()).await;
    let mut other = settings(rig.root.path());
    other.dir = rig.root.path().join("other");
    let fault = runner::run(other, std::future::pending()).await.unwrap_err();
    assert!(fault.class == Class::Fatal && fault.message.contains("somebody answers"), "{fault}");
    let endpoint = format!("unix://{}", rig.root.path().join("run/runner.sock").display());
    let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
    assert!(RunnerClient::new(channel).get(GetRequest {}).await.is_ok(), "the first is where it was");
    rig.end().await;
}

#[tokio::test]
async fn a_socket_that_was_replaced_is_made_again() {
    let mut rig = Rig::start(root()).await;
    let socket = rig.root.path().join("run/runner.sock");
    let replacements: [fn(&Path); 4] = [
        |_| {},
        |socket| fs::write(socket, "").unwrap(),
        |socket| fs::create_dir(socket).unwrap(),
        |socket| drop(std::os::unix::net::UnixListener::bind(socket).unwrap()),
    ];
    for (number, replace) in replacements.into_iter().enumerate() {
        fs::remove_file(&socket).unwrap();
        replace(&socket);
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let found = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                match endpoint.connect().await {
                    Ok(channel) => break channel,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let channel = found.await.unwrap_or_else(|_| panic!("never again after replacement {number}"));
        RunnerClient::new(channel).get(GetRequest {}).await.unwrap();
    }
    rig.client.get(GetRequest {}).await.unwrap();
    let _root = rig.end().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn an_unusable_folder_or_setting_ends_the_runner_at_once() {
    let root = root();
    fs::write(root.path().join("run"), "a file").unwrap();
    let fault = runner::run(settings(root.path()), std::future::pending()).await.unwrap_err();
    assert_eq!(fault.class, Class::Fatal);
    assert!(fault.message.contains("cannot be used"), "{fault}");
    fs::remove_file(root.path().join("run")).unwrap();
    let mut mistyped = settings(root.path());
    mistyped.settings.insert("IMEX_NODE_DISCONNECT_GRACE_TIME".into(), "60".into());
    let fault = runner::run(mistyped, std::future::pending()).await.unwrap_err();
    assert!(fault.message.contains("IMEX_NODE_DISCONNECTED_GRACE_TIME"), "{fault}");
}

fn identity(domain: &str, serial: u32) -> Identity {
    let pem = format!("-----BEGIN {serial}-----\n");
    Identity {
        domain: domain.into(),
        certificate_pem: pem.clone(),
        key_pem: pem.clone(),
        ca_pem: pem,
        name: format!("{domain}.x"),
        not_after_unix: i64::from(serial),
    }
}

fn apply_as(config: DomainConfig, identity: Identity, no_claims_prepared: bool) -> ApplyRequest {
    ApplyRequest { identity: Some(identity), ..apply(config, no_claims_prepared) }
}

#[tokio::test]
async fn an_identity_is_shown_and_renewed_without_a_restart() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    let ready = rig.until_ready().await;
    assert_eq!((ready.identity.as_str(), ready.identity_not_after_unix), ("d.x", 1));
    let run = rig.root.path().join("run");
    let file = fs::read_to_string(run.join("daemon/config.cfg")).unwrap();
    for line in [
        "IMEX_ENABLE_AUTH_ENCRYPTION=1",
        "IMEX_AUTH_ENCRYPTION_MODE=SSL_TLS",
        "IMEX_AUTH_SOURCE=FILE",
        "IMEX_SECURITY_TARGET_OVERRIDE=d.x",
        &format!("IMEX_SERVER_KEY={}", run.join("daemon/identity/tls.key").display()),
        &format!("IMEX_CLIENT_CERT_AUTH={}", run.join("daemon/identity/ca.crt").display()),
    ] {
        assert!(file.lines().any(|l| l == line), "{line} in {file}");
    }
    let mode = |name: &str| fs::metadata(run.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("daemon/identity/tls.key"), mode("daemon/identity")), (0o600, 0o700));

    // Renewals inside a window are one signal, and the last certificate is what is there at it.
    for serial in 2..6 {
        let renew = RenewRequest { identity: Some(identity("d", serial)) };
        let state = rig.client.renew(renew).await.unwrap().into_inner();
        assert_eq!((state.daemon_pid, state.starts), (ready.daemon_pid, 1));
        assert_eq!(state.identity_not_after_unix, i64::from(serial));
    }
    assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.crt")).unwrap(), "-----BEGIN 5-----\n");
    rig.until_calls("signalled", |calls| calls.contains("usr1")).await;
    let state =
        rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 6), false)).await.unwrap().into_inner();
    assert_eq!(
        (state.daemon_pid, state.identity_not_after_unix),
        (ready.daemon_pid, 6),
        "with the domain it is the same"
    );
    rig.until_calls("signalled again", |calls| calls.matches("usr1").count() >= 2).await;
    assert!(rig.calls().matches("usr1").count() <= 3, "{}", rig.calls());

    for (bad, says) in [
        (RenewRequest::default(), "no identity"),
        (RenewRequest { identity: Some(identity("e", 7)) }, "does not serve"),
        (RenewRequest { identity: Some(Identity { name: "e.x".into(), ..identity("d", 7) }) }, "takes a restart"),
        (RenewRequest { identity: Some(Identity { key_pem: String::new(), ..identity("d", 7) }) }, "no PEM"),
    ] {
        let refused = rig.client.renew(bad).await.unwrap_err();
        assert!(refused.message().contains(says), "{refused}");
    }
    let mixed = apply_as(config("d", "10.0.0.1"), identity("e", 7), true);
    assert_eq!(rig.client.apply(mixed).await.unwrap_err().code(), Code::InvalidArgument);

    // A runner that is started anew shows what was there last.
    let mut rig = Rig::start(rig.end().await).await;
    let again = rig.until_ready().await;
    assert_eq!((again.identity.as_str(), again.identity_not_after_unix), ("d.x", 6));
    rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
    assert!(!rig.root.path().join("run/daemon/identity").exists(), "nothing is left of a domain that is not served");
    rig.end().await;
}

#[tokio::test]
async fn whether_peers_are_authenticated_changes_by_a_restart_alone() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    let first = rig.until_ready().await;
    // An agent of before, which knows of no identities, does not take the authentication off a daemon in use.
    let refused = rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(alive(first.daemon_pid));
    let open = rig.client.apply(apply(config("d", "10.0.0.1"), true)).await.unwrap().into_inner();
    assert_eq!((open.starts, open.identity.as_str()), (2, ""));
    assert!(!fs::read_to_string(rig.root.path().join("run/daemon/config.cfg")).unwrap().contains("AUTH_ENCRYPTION"));
    let refused = rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 2), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    rig.end().await;
}

#[tokio::test]
async fn a_hosts_file_that_cannot_be_written_is_said_and_ends_no_daemon() {
    let root = root();
    let folder = root.path().join("etc");
    let hosts = folder.join("hosts");
    let mut rig = Rig::start_with(root, |settings| {
        if let Isolation::None { hosts_file, .. } = &mut settings.isolation {
            hosts_file.clone_from(&hosts);
        }
    })
    .await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let down = rig.until("a word", |state| state.message.contains("cannot be written")).await;
    assert!(down.daemon_state == "DOWN" && down.message.contains(&hosts.display().to_string()), "{down:?}");
    fs::create_dir(&folder).unwrap();
    let ready = rig.until_ready().await;

    // Under a daemon that runs the agent is told, tries again, and nobody is disturbed.
    fs::remove_dir_all(&folder).unwrap();
    let refused = rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap_err();
    assert!(refused.code() == Code::Internal && refused.message().contains("cannot be written"), "{refused}");
    assert!(alive(ready.daemon_pid));
    fs::create_dir(&folder).unwrap();
    let state = rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap().into_inner();
    assert_eq!((state.daemon_pid, state.starts), (ready.daemon_pid, 1));
    assert!(fs::read_to_string(&hosts).unwrap().contains("10.0.0.9"));
    rig.end().await;
}

/// Puts a file in the place of the folder of what the daemon reads, so that nothing can be written there.
fn obstruct(run: &Path) {
    while fs::write(run.join("daemon"), "").is_err() {
        let _ = fs::remove_dir_all(run.join("daemon"));
    }
}

#[tokio::test]
async fn what_kept_a_daemon_from_its_identity_is_waited_out_without_an_agent() {
    let mut rig = Rig::start(root()).await;
    let run = rig.root.path().join("run");
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    rig.until_ready().await;
    for (domain, stops) in [("e", false), ("f", true)] {
        if stops {
            rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
        }
        obstruct(&run);
        let given = apply_as(config(domain, "10.0.0.1"), identity(domain, 2), true);
        // Told or not, it is not forgotten.
        let _ = rig.client.apply(given).await;
        let down = rig.until("DOWN", |state| state.domain == domain && state.daemon_state == "DOWN").await;
        assert!(down.message.contains("cannot be written"), "{down:?}");
        fs::remove_file(run.join("daemon")).unwrap();
        rig.until("READY", |state| state.domain == domain && state.daemon_state == "READY").await;
        assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.key")).unwrap(), "-----BEGIN 2-----\n");
    }
    rig.end().await;
}

#[tokio::test]
async fn a_stop_is_whole_whatever_has_become_of_the_files() {
    let mut rig = Rig::start(root()).await;
    let run = rig.root.path().join("run");
    let damages: [fn(&Path); 2] = [|run| fs::remove_dir_all(run.join("daemon")).unwrap(), obstruct];
    for damage in damages {
        rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
        let ready = rig.until_ready().await;
        damage(&run);
        let stopped = rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap().into_inner();
        assert_eq!((stopped.domain.as_str(), stopped.identity.as_str()), ("", ""));
        assert!(!alive(ready.daemon_pid));
        let _ = fs::remove_file(run.join("daemon"));
    }
    rig.end().await;
}

#[tokio::test]
async fn a_file_that_was_lost_or_damaged_is_put_right_and_the_daemon_reads_it_again() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.9"), identity("d", 1), false)).await.unwrap();
    let ready = rig.until_ready().await;
    let run = rig.root.path().join("run");
    let files = ["hosts", "daemon/nodes.cfg", "daemon/config.cfg", "daemon/identity/tls.key", "daemon/identity/ca.crt"];
    let mut signals = 0;
    for file in files.map(|file| run.join(file)) {
        let before = fs::read_to_string(&file).unwrap();
        let damages: [fn(&Path); 2] = [|file| fs::remove_file(file).unwrap(), |file| fs::write(file, "x").unwrap()];
        for damage in damages {
            damage(&file);
            let is_right = || fs::read_to_string(&file).is_ok_and(|text| text == before);
            rig.until_calls("put right", |_| is_right()).await;
            rig.until_calls("signalled", |calls| calls.matches("usr1 1").count() > signals).await;
            signals = rig.calls().matches("usr1 1").count();
        }
    }
    // Not by the next look: at once, where the agent says the same again.
    fs::remove_file(run.join("hosts")).unwrap();
    rig.client.apply(apply_as(config("d", "10.0.0.9"), identity("d", 1), false)).await.unwrap();
    assert!(run.join("hosts").exists());
    let state = rig.client.get(GetRequest {}).await.unwrap().into_inner();
    assert_eq!((state.daemon_pid, state.starts), (ready.daemon_pid, 1));
    rig.end().await;
}

#[tokio::test]
async fn a_key_that_was_lost_with_the_folder_is_there_again_and_one_that_nobody_knows_is_missed() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
    let ready = rig.until_ready().await;
    assert_ne!(ready.identity_sha256, "");
    let run = rig.root.path().join("run");
    fs::remove_dir_all(&run).unwrap();
    rig.until_calls("signalled", |calls| calls.contains("usr1")).await;
    assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.key")).unwrap(), "-----BEGIN 1-----\n");

    let root = rig.kill().await;
    fs::remove_file(run.join("daemon/identity/tls.key")).unwrap();
    let mut rig = Rig::start(root).await;
    rig.until_ready().await;
    let missed = rig.until("missed", |state| state.identity_sha256.is_empty()).await;
    assert_eq!((missed.daemon_pid, missed.identity.as_str()), (ready.daemon_pid, "d.x"));
    rig.client.renew(RenewRequest { identity: Some(identity("d", 2)) }).await.unwrap();
    assert_eq!(fs::read_to_string(run.join("daemon/identity/tls.key")).unwrap(), "-----BEGIN 2-----\n");
    let signals = rig.calls().matches("usr1").count();
    rig.until_calls("signalled", |calls| calls.matches("usr1").count() > signals).await;
    assert!(alive(ready.daemon_pid));
    rig.end().await;
}
