//! Daemons under real runners, with the identities that the controller's signer makes.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_actors::identity::{Authority, new_key, request};
use heddle_actors::runner::{self, Isolation, Settings, Timing};
use heddle_core::identity::identity_name;
use heddle_integration::imex::os::OS_ENV;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{ApplyRequest, DomainConfig, Host, Identity, RenewRequest, State, WatchRequest};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::rack::{Node, PATIENCE, PROGRAM, Rack, imported};

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// What the agent of a member has after it has asked; valid for an hour from `made` on.
fn identity(authority: &Authority, domain: &str, made: i64) -> Identity {
    let key_pem = new_key().unwrap();
    let signed = authority.sign(&request(domain, &key_pem).unwrap(), 3600, made).unwrap();
    let own = signed.len() - authority.certificate_pem().len();
    Identity {
        domain: domain.into(),
        certificate_pem: signed[..own].into(),
        key_pem,
        ca_pem: authority.certificate_pem().into(),
        name: identity_name(domain),
        not_after_unix: made + 3600,
    }
}

/// The driver's programs below the node's driver root.
pub fn install(node: &Node) {
    let bin = node.os.join("driver/usr/bin");
    std::fs::create_dir_all(&bin).unwrap();
    for name in ["nvidia-imex", "nvidia-imex-ctl"] {
        // Its log goes to the runner, and to a file for the test.
        let log = format!("exec 2> >(tee -a {} >&2)", node.os.join("log").display());
        let script = format!("#!/bin/bash\n{log}\nexec env {OS_ENV}={} {PROGRAM} {name} \"$@\"\n", node.os.display());
        // By a process of its own: a file that a fork of another test holds open for writing cannot be executed.
        let write = format!("cat > {0} <<'E'\n{script}E\nchmod 755 {0}", bin.join(name).display());
        assert!(std::process::Command::new("sh").args(["-c", &write]).status().unwrap().success());
    }
}

/// A node whose daemon is its runner's.
pub struct Member {
    pub node: Node,
    client: RunnerClient<Channel>,
    states: Streaming<State>,
    config: DomainConfig,
    end: oneshot::Sender<()>,
    runner: JoinHandle<()>,
}

impl Member {
    pub async fn start(rack: &Rack, index: u8) -> Self {
        let node = rack.node(index);
        install(&node);
        std::os::unix::fs::symlink("runner/daemon/config.cfg", node.config()).unwrap();
        let settings = Settings {
            dir: node.os.join("runner"),
            socket: node.os.join("runner/runner.sock"),
            driver_root: node.os.join("driver"),
            isolation: Isolation::None { hosts_file: node.os.join("etc/hosts"), command_socket: node.socket().into() },
            settings: BTreeMap::new(),
            peer_port: node.port,
            metrics: None,
            timing: Timing {
                poll_peers: Duration::from_millis(50),
                poll_ready: Duration::from_millis(50),
                ..Timing::default()
            },
        };
        let socket = settings.socket.clone();
        let (end, ends) = oneshot::channel::<()>();
        let until = async { drop(ends.await) };
        let runner = tokio::spawn(async move { runner::run(settings, until).await.unwrap() });
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let mut client = RunnerClient::new(channel);
        let states = client.watch(WatchRequest {}).await.unwrap().into_inner();
        let host = |index: u8| Host { address: rack.address(index), name: format!("rack-0{index}") };
        let config = DomainConfig {
            domain: "d".into(),
            node_map: "rack-00\nrack-01\n".into(),
            index: index.into(),
            hosts: vec![host(0), host(1)],
            settings: [("BIND_INTERFACE_IP".to_owned(), node.address.clone())].into(),
        };
        Self { node, client, states, config, end, runner }
    }

    async fn serve(&mut self, identity: &Identity) {
        self.serve_with(Some(identity.clone())).await;
    }

    /// With an identity, or taking any peer.
    pub async fn serve_with(&mut self, identity: Option<Identity>) {
        let request = ApplyRequest { config: Some(self.config.clone()), no_claims_prepared: false, identity };
        self.client.apply(request).await.unwrap();
    }

    async fn renew(&mut self, identity: &Identity) -> State {
        let request = RenewRequest { identity: Some(identity.clone()) };
        self.client.renew(request).await.unwrap().into_inner()
    }

    pub async fn until(&mut self, what: &str, fits: impl Fn(&State) -> bool) -> State {
        let mut last = None;
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let state = self.states.message().await.unwrap().unwrap();
                if fits(&state) {
                    return state;
                }
                last = Some(state);
            }
        });
        found.await.unwrap_or_else(|_| panic!("never {what}: {last:?}"))
    }

    pub async fn ready(&mut self) -> State {
        self.until("READY", |state| state.daemon_state == "READY" && state.daemon_index.is_some()).await
    }

    pub async fn connected(&mut self) -> State {
        self.until("connected", |state| state.peers_connected == 1).await
    }

    pub fn log(&self, text: &str) -> usize {
        std::fs::read_to_string(self.node.os.join("log")).unwrap_or_default().matches(text).count()
    }

    /// Waits until the daemon has said it so often.
    pub async fn says(&self, text: &str, times: usize) {
        let said = async {
            while self.log(text) < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, said).await.is_ok(), "{text:?} is not in the log {times} times");
    }

    pub async fn stop(self) {
        self.end.send(()).unwrap();
        self.runner.await.unwrap();
    }
}

#[tokio::test]
async fn a_clique_comes_up_authenticated_and_renews_under_running_jobs() {
    let (rack, authority) = (Rack::new(), Authority::new("d", "uid", now()).unwrap());
    let (mut zero, mut one) = (Member::start(&rack, 0).await, Member::start(&rack, 1).await);
    zero.serve(&identity(&authority, "d", now())).await;
    one.serve(&identity(&authority, "d", now())).await;
    let (before, _) = (zero.connected().await, one.connected().await);
    let (_exporter, handle, mut importer) = imported(&zero.node, &one.node).await;

    for member in [&mut zero, &mut one] {
        let state = member.renew(&identity(&authority, "d", now() + 1)).await;
        assert_eq!(state.starts, 1);
    }
    importer.holds(&handle).await.unwrap();
    zero.node.sees(0, 1, "CONNECTED").await;
    one.node.sees(1, 0, "CONNECTED").await;
    importer.holds(&handle).await.unwrap();
    importer.import(&handle).await.unwrap();
    let after = zero.renew(&identity(&authority, "d", now() + 2)).await;
    assert_eq!((after.daemon_pid, after.starts), (before.daemon_pid, 1));
    zero.stop().await;
    one.stop().await;
}

#[tokio::test]
async fn expired_or_of_another_domain_nobody_is_met_until_the_certificate_is_renewed() {
    let (rack, authority) = (Rack::new(), Authority::new("d", "uid", now() - 9000).unwrap());
    let stranger = Authority::new("d", "another", now()).unwrap();
    let (mut zero, mut one) = (Member::start(&rack, 0).await, Member::start(&rack, 1).await);
    zero.serve(&identity(&authority, "d", now())).await;
    one.serve(&identity(&stranger, "d", now())).await;
    zero.ready().await;
    one.ready().await;
    zero.says("Authentication with node 1 failed", 1).await;
    one.says("Authentication with node 0 failed", 1).await;
    let mut exporter = zero.node.process(1);
    let handle = exporter.export().await.unwrap();
    assert!(one.node.process(1).import(&handle).await.is_err());

    one.renew(&identity(&authority, "d", now() - 7200)).await;
    one.says("Restarting all outgoing connections", 1).await;
    let tried = one.log("Authentication with node 0 failed");
    one.says("Authentication with node 0 failed", tried + 1).await;
    assert!(one.node.process(1).import(&handle).await.is_err(), "it has expired");
    one.renew(&identity(&authority, "d", now())).await;
    one.connected().await;
    one.node.process(1).import(&handle).await.unwrap();
    zero.stop().await;
    one.stop().await;
}
