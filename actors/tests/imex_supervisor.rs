//! The IMEX supervisor with a real runner whose daemon is a script; the test plays node link and allocator.

mod stand_in;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_actors::channel_allocator::{self, Ready};
use heddle_actors::host_root::HostRoot;
use heddle_actors::imex_supervisor::{HostImex, HostTiming, ImexSupervisor, Message, Settings};
use heddle_actors::node_link::DomainView;
use heddle_actors::peer_identity::Identities;
use heddle_actors::runner;
use heddle_actors::runtime::{Actor, Addr, Cx, Runtime, Scope, Spec, block_on};
use heddle_actors::slice_publisher::Usable;
use heddle_core::api::{
    DaemonStatus, DomainKind, IMEXDomain, IMEXDomainSpec, IMEXNode, IMEXNodeSpec, ImexMode, Member,
};
use heddle_core::clique::CliqueId;
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::{Identity, Standing, shared_domain_name};
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::{Guard, Mode, Verdict};
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::runner_server::{self, RunnerServer};
use heddle_proto::runner::{ApplyRequest, GetRequest, RenewRequest, State, StopRequest, WatchRequest};
use stand_in::{alive, root, settings};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;

/// The allocator's part that matters here: whether the daemon may be ended.
struct Allocator(Rc<RefCell<Result<(), String>>>, Rc<Cell<u32>>);

impl Actor for Allocator {
    const KIND: &'static str = "Allocator";
    type Message = channel_allocator::Message;

    fn handle(&mut self, message: Self::Message, _: &mut Cx<'_, Self>) -> Result<(), Fault> {
        if let channel_allocator::Message::Suspend { reply } = message {
            self.1.set(self.1.get() + 1);
            reply.send(self.0.borrow().clone());
        }
        Ok(())
    }
}

struct Rig {
    root: tempfile::TempDir,
    authentication: Authentication,
    runtime: Runtime,
    scope: Scope,
    supervisor: Addr<Message>,
    ready: watch::Receiver<Option<Ready>>,
    status: watch::Receiver<DaemonStatus>,
    usable: watch::Receiver<Option<Usable>>,
    /// The allocator's answer to a question, and how often it was asked.
    permit: Rc<RefCell<Result<(), String>>>,
    asked: Rc<Cell<u32>>,
}

fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

/// Node `n1` as member `index` of `domain`, with as many others.
fn view(domain: &str, index: u32, others: u32) -> DomainView {
    let member = |index: u32, address: String| Member { index, address, away: false };
    let mut members: BTreeMap<_, _> =
        (0..others).map(|n| (format!("other{n}"), member(10 + n, format!("10.0.0.{}", n + 2)))).collect();
    members.insert("n1".to_owned(), member(index, "127.0.0.1".into()));
    let spec = IMEXDomainSpec { clique: clique().to_string(), max_members: 18, members, ..Default::default() };
    DomainView {
        node: Arc::new(IMEXNode::new("n1", IMEXNodeSpec { domain: Some(domain.into()), ..Default::default() })),
        domain: Some(Arc::new(IMEXDomain::new(domain, spec))),
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(Authentication::Insecure)
    }

    fn with(authentication: Authentication) -> Self {
        let (runtime, root) = (Runtime::new(), root());
        let scope = runtime.root().child("agent");
        let permit = Rc::new(RefCell::new(Ok(())));
        let asked = Rc::default();
        let mut rig = Self {
            supervisor: supervise(&scope, &root, authentication, &permit, &asked).0,
            ready: watch::channel(None).1,
            status: watch::channel(DaemonStatus::default()).1,
            usable: watch::channel(None).1,
            root,
            authentication,
            runtime,
            scope,
            permit,
            asked,
        };
        rig.restart_agent();
        rig
    }

    /// A new agent in the place of the old one.
    fn restart_agent(&mut self) {
        self.scope.stop();
        self.scope = self.runtime.root().child("agent");
        let (supervisor, ready, status, usable) =
            supervise(&self.scope, &self.root, self.authentication, &self.permit, &self.asked);
        (self.supervisor, self.ready, self.status, self.usable) = (supervisor, ready, status, usable);
        self.fabric(Fabric::Ready(clique()));
        self.may_switch(Ok(()));
    }

    fn fabric(&self, fabric: Fabric) {
        self.supervisor.tell(Message::Guard(Guard::Off));
        self.supervisor.tell(Message::Inventory(Inventory { fabric, ..Default::default() }));
    }

    /// What the allocator says unasked.
    fn may_switch(&self, may: Result<(), &str>) {
        self.supervisor.tell(Message::MaySwitch(may.map_err(Into::into)));
    }

    fn see(&self, view: DomainView) {
        self.supervisor.tell(Message::View(view));
    }

    fn start_runner(&self) -> Running {
        let (end, ends) = oneshot::channel::<()>();
        let run = runner::run(settings(self.root.path()), async {
            let _ = ends.await;
        });
        Running { end, run: tokio::spawn(run) }
    }

    async fn until_ready_in(&mut self, domain: &str) {
        self.ready.wait_for(|ready| ready.as_ref().is_some_and(|ready| ready.as_deref() == Ok(domain))).await.unwrap();
    }

    async fn until_not_ready(&mut self, says: &str) -> String {
        let fits = |ready: &Option<Ready>| matches!(ready, Some(Err(why)) if why.contains(says));
        self.ready.wait_for(fits).await.unwrap().clone().unwrap().unwrap_err()
    }

    async fn runner_state(&self) -> State {
        let endpoint = format!("unix://{}", self.root.path().join("run/runner.sock").display());
        let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
        RunnerClient::new(channel).get(GetRequest {}).await.unwrap().into_inner()
    }

    fn starts(&self) -> usize {
        fs::read_to_string(self.root.path().join("calls")).unwrap_or_default().matches("start").count()
    }
}

struct Running {
    end: oneshot::Sender<()>,
    run: JoinHandle<Result<(), Fault>>,
}

impl Running {
    async fn stop(self) {
        self.end.send(()).unwrap();
        self.run.await.unwrap().unwrap();
    }
}

/// A host's daemon whose tool is the script of the test.
fn host_imex(root: &Path) -> HostImex {
    let millis = Duration::from_millis;
    HostImex {
        driver_root: root.join("driver"),
        enter: Vec::new(),
        build: root.join("build"),
        control_socket: root.join("host.sock"),
        host: HostRoot::new(root.join("host")),
        config: "/etc/nvidia-imex/config.cfg".into(),
        addresses: vec!["10.0.0.2".parse().unwrap()],
        runner_socket: root.join("run/runner.sock"),
        timing: HostTiming { limit: millis(300), not_ready: millis(10), ready: millis(10), files: millis(20) },
    }
}

type Heard =
    (Addr<Message>, watch::Receiver<Option<Ready>>, watch::Receiver<DaemonStatus>, watch::Receiver<Option<Usable>>);

fn supervise(
    scope: &Scope,
    root: &tempfile::TempDir,
    authentication: Authentication,
    permit: &Rc<RefCell<Result<(), String>>>,
    asked: &Rc<Cell<u32>>,
) -> Heard {
    let (say_ready, ready) = watch::channel(None);
    let (say_status, status) = watch::channel(DaemonStatus::default());
    let (say_usable, usable) = watch::channel(None);
    let (permit, asked) = (permit.clone(), asked.clone());
    let allocator = scope.supervise(Spec::default(), move || Ok(Allocator(permit.clone(), asked.clone())));
    let settings = Settings {
        socket: root.path().join("run/runner.sock"),
        host: host_imex(root.path()),
        standing: Some(Standing::settled(ImexMode::DriverManaged)),
        allocator,
        authentication,
        status: Rc::new(move |status| drop(say_status.send(status))),
        ready: Rc::new(move |ready| drop(say_ready.send(Some(ready)))),
        usable: Rc::new(move |usable| drop(say_usable.send(Some(usable)))),
        running: Rc::new(|_| {}),
    };
    let supervisor = scope.supervise(Spec::default(), move || Ok(ImexSupervisor::new(settings.clone())));
    (supervisor, ready, status, usable)
}

fn run(test: impl Future<Output = ()>) {
    block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs") });
}

#[test]
fn a_node_comes_up_whatever_starts_first() {
    run(async {
        let mut rig = Rig::new();
        rig.see(view("d", 1, 2));
        let why = rig.until_not_ready("cannot be reached").await;
        assert!(why.contains("runner.sock"), "{why}");
        let runner = rig.start_runner();
        rig.until_ready_in("d").await;
        let status = rig.status.wait_for(|status| status.state == "READY").await.unwrap().clone();
        assert_eq!((status.domain.as_deref(), status.index, status.message), (Some("d"), Some(1), None));
        assert!(status.since.parse::<jiff::Timestamp>().is_ok());
        let usable = rig.usable.wait_for(|u| u.as_ref().is_some_and(|u| u.usable)).await.unwrap().clone().unwrap();
        assert_eq!((usable.domain.as_deref(), usable.kind), (Some("d"), Some(DomainKind::Shared)));
        assert_eq!(rig.asked.get(), 0, "nobody is asked for what disturbs nobody");

        let said = Some("GPU 1: recover the IMEX domain".to_owned());
        let inventory =
            Inventory { fabric: Fabric::Ready(clique()), recovery_action: said.clone(), ..Default::default() };
        rig.supervisor.tell(Message::Inventory(inventory));
        rig.status.wait_for(|status| status.recovery_action == said && status.state == "READY").await.unwrap();

        // Another member disturbs nobody either.
        rig.see(view("d", 1, 3));
        loop {
            if fs::read_to_string(rig.root.path().join("run/hosts")).unwrap().contains("10.0.0.4 ") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!((rig.starts(), rig.asked.get()), (1, 0));
        runner.stop().await;
    });
}

#[test]
fn the_end_of_an_agent_is_not_the_end_of_the_daemon() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        let before = rig.runner_state().await;
        rig.restart_agent();
        assert!(alive(before.daemon_pid));
        rig.may_switch(Err("3 claims are prepared on this node"));
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        let after = rig.runner_state().await;
        assert_eq!((after.daemon_pid, after.starts), (before.daemon_pid, 1));
        runner.stop().await;
    });
}

#[test]
fn a_switch_waits_for_the_claims_and_for_the_allocators_word() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        let before = rig.runner_state().await.daemon_pid;

        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.see(view("e", 1, 0));
        rig.until_not_ready("still serves domain d").await;
        assert_eq!((rig.asked.get(), rig.starts()), (0, 1));

        // It says that it may, and is of another opinion when it is asked.
        *rig.permit.borrow_mut() = Err("a claim has come".into());
        rig.may_switch(Ok(()));
        while rig.asked.get() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        rig.may_switch(Err("a claim has come"));
        assert!(alive(before));
        *rig.permit.borrow_mut() = Ok(());
        rig.may_switch(Ok(()));
        rig.until_ready_in("e").await;
        assert!(!alive(before));
        assert_eq!(rig.starts(), 2);
        runner.stop().await;
    });
}

#[test]
fn a_node_that_is_in_no_domain_ends_its_daemon() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        let pid = rig.runner_state().await.daemon_pid;
        rig.see(DomainView { node: Arc::new(IMEXNode::new("n1", IMEXNodeSpec::default())), domain: None });
        rig.until_not_ready("not assigned").await;
        while rig.runner_state().await.daemon_state != "DOWN" {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(!alive(pid));
        runner.stop().await;
    });
}

#[test]
fn a_daemon_that_is_another_member_is_not_ready() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 0, 0));
        rig.until_not_ready("says it is member 1").await;
        let status = rig.status.wait_for(|status| status.state == "READY").await.unwrap().clone();
        assert_eq!(status.index, Some(1), "its own word is reported");
        assert!(status.message.unwrap().contains("member 0"));
        assert!(rig.usable.wait_for(Option::is_some).await.unwrap().as_ref().is_some_and(|usable| !usable.usable));
        runner.stop().await;
    });
}

#[test]
fn a_runner_that_goes_and_returns_is_found_again() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        runner.stop().await;
        rig.until_not_ready("cannot be reached").await;
        let status = rig.status.wait_for(|status| status.state == "UNAVAILABLE").await.unwrap().clone();
        assert_eq!(status.domain.as_deref(), Some("d"), "what was known last stays");
        let runner = rig.start_runner();
        rig.until_ready_in("d").await;
        runner.stop().await;
    });
}

#[test]
fn where_the_second_door_is_open_slots_cannot_be_used() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| usable.usable)).await.unwrap();
        let guard = Guard::new(Mode::Require);
        let open = Verdict::Open { why: "pods get channels".into(), set: "set x in /y".into() };
        rig.supervisor.tell(Message::Guard(guard.seen(open)));
        let withheld = |usable: &Option<Usable>| {
            usable
                .as_ref()
                .is_some_and(|u| !u.usable && u.withheld.is_some() && u.reason == "pods get channels; set x in /y")
        };
        rig.usable.wait_for(withheld).await.unwrap();
        rig.supervisor.tell(Message::Guard(guard.seen(Verdict::Closed)));
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| usable.usable)).await.unwrap();
        runner.stop().await;
    });
}

#[test]
fn a_node_without_fabric_can_be_used_without_a_daemon() {
    run(async {
        let mut rig = Rig::new();
        rig.fabric(Fabric::None);
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| usable.usable)).await.unwrap();
        rig.fabric(Fabric::Unhealthy("degraded".into()));
        let sick =
            |usable: &Option<Usable>| usable.as_ref().is_some_and(|u| !u.usable && u.reason.contains("degraded"));
        rig.usable.wait_for(sick).await.unwrap();
    });
}

fn identity(domain: &str, serial: u32, not_after: i64) -> Identities {
    let pem = format!("-----BEGIN {serial}-----\n");
    let identity = Identity {
        name: format!("{domain}.peer.imex.heddle.dev"),
        certificate_pem: pem.clone(),
        key_pem: pem.clone(),
        authority_pem: pem,
        not_after,
    };
    Identities { of_domains: [(domain.to_owned(), Arc::new(identity))].into(), ..Identities::default() }
}

fn missing(domain: &str, why: &str) -> Identities {
    Identities { missing: [(domain.to_owned(), why.to_owned())].into(), ..Identities::default() }
}

const FUTURE: i64 = 4_000_000_000;

#[test]
fn a_daemon_waits_for_its_identity_and_is_told_of_another_without_a_restart() {
    run(async {
        let mut rig = Rig::with(Authentication::DomainCa);
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(missing("d", "request r waits for the controller to sign it")));
        rig.until_not_ready("request r waits for the controller").await;
        assert_eq!(rig.starts(), 0, "no daemon runs without one");
        rig.supervisor.tell(Message::Identities(identity("d", 1, FUTURE)));
        rig.until_ready_in("d").await;
        let before = rig.runner_state().await;
        let until = rig.status.wait_for(|status| status.certificate_not_after.is_some()).await.unwrap().clone();
        assert_eq!(until.certificate_not_after.as_deref(), Some("2096-10-02T07:06:40Z"));

        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.supervisor.tell(Message::Identities(identity("d", 2, FUTURE + 1)));
        let renewed = loop {
            let state = rig.runner_state().await;
            if state.identity_not_after_unix == FUTURE + 1 {
                break state;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        assert_eq!((renewed.daemon_pid, renewed.starts), (before.daemon_pid, 1));

        // The signer away is nobody's end: what the daemon shows is valid, also for an agent that has lost its own copy.
        rig.restart_agent();
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(missing("d", "the signer is away")));
        rig.until_ready_in("d").await;
        runner.stop().await;
    });
}

#[test]
fn a_certificate_that_has_expired_is_said_and_a_clock_that_jumps_stops_no_daemon() {
    run(async {
        let mut rig = Rig::with(Authentication::DomainCa);
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        // As after a jump of the clock beyond its end.
        rig.supervisor.tell(Message::Identities(identity("d", 1, 1_000_000_000)));
        rig.until_ready_in("d").await;
        let before = rig.runner_state().await;
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.supervisor.tell(Message::Identities(missing("d", "the signer is away")));
        rig.until_not_ready("has expired: the signer is away").await;
        // And back, or with a certificate that is valid after it.
        rig.supervisor.tell(Message::Identities(identity("d", 2, FUTURE)));
        rig.until_ready_in("d").await;
        let after = rig.runner_state().await;
        assert_eq!((after.daemon_pid, after.starts), (before.daemon_pid, 1));
        runner.stop().await;
    });
}

#[test]
fn going_over_to_authenticated_peers_waits_for_the_claims() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        let before = rig.runner_state().await;
        rig.authentication = Authentication::DomainCa;
        rig.restart_agent();
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(identity("d", 1, FUTURE)));
        rig.until_not_ready("takes peers without a certificate").await;
        assert_eq!(rig.runner_state().await.daemon_pid, before.daemon_pid);
        rig.may_switch(Ok(()));
        rig.until_ready_in("d").await;
        let after = rig.runner_state().await;
        assert_eq!((after.starts, after.identity.as_str()), (2, "d.peer.imex.heddle.dev"));
        runner.stop().await;
    });
}

/// A runner of before: it serves a domain, and knows of no identities.
struct OldRunner(Arc<std::sync::atomic::AtomicU32>);

impl OldRunner {
    fn state() -> State {
        State {
            contract: 1,
            domain: "d".into(),
            daemon_state: "READY".into(),
            daemon_index: Some(1),
            ..State::default()
        }
    }
}

#[tonic::async_trait]
impl runner_server::Runner for OldRunner {
    async fn get(&self, _: tonic::Request<GetRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        Ok(tonic::Response::new(Self::state()))
    }

    type WatchStream = futures::stream::BoxStream<'static, Result<State, tonic::Status>>;

    async fn watch(
        &self,
        _: tonic::Request<WatchRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, tonic::Status> {
        use futures::StreamExt as _;
        let once = futures::stream::iter([Ok(Self::state())]);
        Ok(tonic::Response::new(once.chain(futures::stream::pending()).boxed()))
    }

    async fn apply(&self, _: tonic::Request<ApplyRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(tonic::Response::new(Self::state()))
    }

    async fn renew(&self, _: tonic::Request<RenewRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        Err(tonic::Status::unimplemented("Renew"))
    }

    async fn stop(&self, _: tonic::Request<StopRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        Err(tonic::Status::failed_precondition("no"))
    }
}

#[test]
fn a_runner_that_is_too_old_is_left_alone_and_said() {
    run(async {
        let mut rig = Rig::with(Authentication::DomainCa);
        std::fs::create_dir_all(rig.root.path().join("run")).unwrap();
        let applied = Arc::default();
        let listener = tokio::net::UnixListener::bind(rig.root.path().join("run/runner.sock")).unwrap();
        let connections = tokio_stream::wrappers::UnixListenerStream::new(listener);
        let server =
            tonic::transport::Server::builder().add_service(RunnerServer::new(OldRunner(Arc::clone(&applied))));
        let server = tokio::spawn(server.serve_with_incoming(connections));
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(identity("d", 1, FUTURE)));
        rig.until_not_ready("update the imex-runner DaemonSet").await;
        assert_eq!(applied.load(std::sync::atomic::Ordering::Relaxed), 0, "its daemon is not touched");
        // Where peers are not authenticated it serves as before.
        rig.authentication = Authentication::Insecure;
        rig.restart_agent();
        rig.see(view("d", 1, 0));
        rig.until_not_ready("another node map").await;
        while applied.load(std::sync::atomic::Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        server.abort();
    });
}

/// The files and the socket of a host that runs the daemon itself.
fn host_files(root: &Path, map: &str) {
    let folder = root.join("host/etc/nvidia-imex");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.cfg"), "IMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/map\nIMEX_CMD_UNIX_DOMAIN_PATH=/x\n")
        .unwrap();
    fs::write(folder.join("map"), map).unwrap();
    fs::write(root.join("host.sock"), "").unwrap();
}

fn host_managed() -> Message {
    Message::Standing(Standing::settled(ImexMode::HostManaged))
}

#[test]
fn a_daemon_of_the_host_is_asked_and_nothing_is_started() {
    run(async {
        let mut rig = Rig::new();
        let root = rig.root.path().to_owned();
        host_files(&root, "10.0.0.1\n10.0.0.2\n");
        fs::write(root.join("word"), "WAITING_FOR_PEERS\n").unwrap();
        rig.supervisor.tell(host_managed());
        rig.until_not_ready("the host's IMEX daemon is WAITING_FOR_PEERS, not READY").await;
        fs::write(root.join("word"), "READY\n").unwrap();
        rig.until_ready_in(&shared_domain_name(&clique())).await;
        let status = rig.status.wait_for(|s| s.state == "READY" && s.peers_connected == 1).await.unwrap().clone();
        assert_eq!((status.domain, status.index, status.message), (Some(shared_domain_name(&clique())), Some(1), None));
        assert_eq!(status.version, "595.1");
        let hash = status.node_map_hash.unwrap();
        let usable = rig.usable.wait_for(|u| u.as_ref().is_some_and(|u| u.usable)).await.unwrap().clone().unwrap();
        assert!(usable.host_managed);

        // Another map, a daemon that hangs, and none.
        host_files(&root, "10.0.0.1\n10.0.0.3\n");
        let other = |s: &DaemonStatus| s.index.is_none() && s.node_map_hash.as_ref().is_some_and(|now| *now != hash);
        let message = rig.status.wait_for(other).await.unwrap().message.clone().unwrap();
        assert!(message.contains("none of the 2 entries"), "{message}");
        fs::remove_dir_all(root.join("host")).unwrap();
        let unread = |s: &DaemonStatus| s.message.as_ref().is_some_and(|why| why.contains("could not be checked"));
        rig.status.wait_for(unread).await.unwrap();
        assert!(rig.ready.borrow().as_ref().unwrap().is_ok(), "as far as the files can be read");
        fs::write(root.join("hangs"), "").unwrap();
        rig.until_not_ready("has not answered within").await;
        fs::remove_file(root.join("host.sock")).unwrap();
        rig.until_not_ready("has no control socket at").await;
        rig.status.wait_for(|status| status.state == "UNAVAILABLE").await.unwrap();
        fs::create_dir_all(root.join("run")).unwrap();
        fs::write(root.join("run/runner.sock"), "").unwrap();
        rig.until_not_ready("Heddle's own imex-runner is on this node too: remove its DaemonSet").await;
        host_files(&root, "10.0.0.1\n10.0.0.2\n");
        fs::remove_file(root.join("hangs")).unwrap();
        rig.until_ready_in(&shared_domain_name(&clique())).await;
        assert_eq!((rig.starts(), rig.asked.get()), (0, 0), "nothing is started, ended or asked for");
    });
}

#[test]
fn issue_1163_a_node_goes_from_one_mode_to_the_other_and_back() {
    run(async {
        let mut rig = Rig::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        let pid = rig.runner_state().await.daemon_pid;
        // While it waits for its claims nothing is offered, and the daemon of before is served on with.
        let held = Standing { acts: ImexMode::DriverManaged, wanted: ImexMode::HostManaged, holding: 1 };
        rig.supervisor.tell(Message::Standing(held));
        let withheld = |usable: &Option<Usable>| usable.as_ref().is_some_and(|u| u.withheld == Some("ImexModePending"));
        rig.usable.wait_for(withheld).await.unwrap();
        assert_eq!(rig.ready.borrow().as_ref().unwrap().as_deref(), Ok("d"));
        rig.supervisor.tell(host_managed());
        rig.until_ready_in(&shared_domain_name(&clique())).await;
        assert!(alive(pid), "it is not the agent's any more to end");
        rig.supervisor.tell(Message::Standing(Standing::settled(ImexMode::DriverManaged)));
        rig.until_ready_in("d").await;
        assert_eq!((rig.starts(), rig.runner_state().await.daemon_pid), (1, pid));
        runner.stop().await;
    });
}

#[test]
fn what_a_runner_refuses_is_said_where_it_is_waited_for() {
    run(async {
        let mut rig = Rig::with(Authentication::Insecure);
        let mut settings = settings(rig.root.path());
        settings.settings = [("IMEX_GSS_SERVICE_NAME".to_owned(), "imex".to_owned())].into();
        let (end, ends) = oneshot::channel::<()>();
        let runner = Running { end, run: tokio::spawn(runner::run(settings, async { drop(ends.await) })) };
        rig.see(view("d", 1, 0));
        rig.until_not_ready("the IMEX setting IMEX_GSS_SERVICE_NAME is Kerberos's").await;
        assert_eq!(rig.starts(), 0);
        runner.stop().await;
    });
}

#[test]
fn a_certificate_of_another_name_waits_for_the_claims_and_then_restarts_the_daemon() {
    run(async {
        let mut rig = Rig::with(Authentication::Files);
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        let named = |name: &str, serial: u32| {
            let identity = identity("d", serial, FUTURE).of("d").unwrap().clone();
            let identity = Identity { name: name.into(), ..(*identity).clone() };
            Message::Identities(Identities { of_all: Some(Arc::new(identity)), ..Identities::default() })
        };
        rig.supervisor.tell(named("one.example", 1));
        rig.until_ready_in("d").await;
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.supervisor.tell(named("two.example", 2));
        rig.until_not_ready("shows its peers the name one.example, not two.example").await;
        assert_eq!(rig.starts(), 1);
        rig.may_switch(Ok(()));
        rig.until_ready_in("d").await;
        assert_eq!((rig.starts(), rig.runner_state().await.identity.as_str()), (2, "two.example"));
        runner.stop().await;
    });
}
