//! A runner of this process, and what an agent asks of it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use heddle_actors::runner::{self, Settings};
use heddle_core::fault::Fault;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{ApplyRequest, DomainConfig, Host, Identity, State, WatchRequest};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::stand_in::settings;

pub struct Rig {
    pub root: tempfile::TempDir,
    pub client: RunnerClient<Channel>,
    pub states: Streaming<State>,
    pub end: oneshot::Sender<()>,
    pub runner: JoinHandle<Result<(), Fault>>,
}

pub fn config(domain: &str, peer: &str) -> DomainConfig {
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

pub fn apply(config: DomainConfig, no_claims_prepared: bool) -> ApplyRequest {
    ApplyRequest { config: Some(config), no_claims_prepared, identity: None }
}

impl Rig {
    pub async fn start(root: tempfile::TempDir) -> Self {
        Self::start_with(root, |_| {}).await
    }

    pub async fn start_with(root: tempfile::TempDir, change: impl FnOnce(&mut Settings)) -> Self {
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
    pub async fn until(&mut self, what: &str, fits: impl Fn(&State) -> bool) -> State {
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

    pub async fn until_ready(&mut self) -> State {
        self.until("READY", |state| state.daemon_state == "READY" && state.daemon_index == Some(1)).await
    }

    pub async fn until_ready_again(&mut self, before: u32) -> State {
        let is = |s: &State| s.daemon_state == "READY" && s.daemon_index == Some(1) && s.daemon_pid != before;
        self.until("READY again", is).await
    }

    pub fn calls(&self) -> String {
        fs::read_to_string(self.root.path().join("calls")).unwrap_or_default()
    }

    /// Waits until the daemon's own record fits.
    pub async fn until_calls(&self, what: &str, fits: impl Fn(&str) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(20), async {
            while !fits(&self.calls()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(waited.await.is_ok(), "never {what}: {}", self.calls());
    }

    /// Ends the runner as SIGKILL does.
    pub async fn kill(self) -> tempfile::TempDir {
        self.runner.abort();
        assert!(self.runner.await.unwrap_err().is_cancelled());
        // Its server lives on in this process, where nobody is to find it.
        fs::remove_file(self.root.path().join("run/runner.sock")).unwrap();
        self.root
    }

    pub async fn end(self) -> tempfile::TempDir {
        self.end.send(()).unwrap();
        self.runner.await.unwrap().unwrap();
        self.root
    }
}

pub fn identity(domain: &str, serial: u32) -> Identity {
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

pub fn apply_as(config: DomainConfig, identity: Identity, no_claims_prepared: bool) -> ApplyRequest {
    ApplyRequest { identity: Some(identity), ..apply(config, no_claims_prepared) }
}

/// Puts a file in the place of the folder of what the daemon reads, so that nothing can be written there.
pub fn obstruct(run: &Path) {
    while fs::write(run.join("daemon"), "").is_err() {
        let _ = fs::remove_dir_all(run.join("daemon"));
    }
}
