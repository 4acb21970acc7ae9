//! An agent without node link: its supervisor, and an allocator that the test plays.

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
use heddle_actors::runner;
use heddle_actors::runtime::{Actor, Addr, Cx, Runtime, Scope, Spec, block_on};
use heddle_actors::slice_publisher::Usable;
use heddle_core::api::{DaemonStatus, IMEXDomain, IMEXDomainSpec, IMEXNode, IMEXNodeSpec, ImexMode, Member};
use heddle_core::clique::CliqueId;
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::Standing;
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::Guard;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{GetRequest, State};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;

use crate::stand_in::{root, settings};

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

pub struct Rig {
    pub root: tempfile::TempDir,
    pub authentication: Authentication,
    pub runtime: Runtime,
    pub scope: Scope,
    pub supervisor: Addr<Message>,
    pub ready: watch::Receiver<Option<Ready>>,
    pub status: watch::Receiver<DaemonStatus>,
    pub usable: watch::Receiver<Option<Usable>>,
    /// The allocator's answer to a question, and how often it was asked.
    pub permit: Rc<RefCell<Result<(), String>>>,
    pub asked: Rc<Cell<u32>>,
}

pub fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

/// Node `n1` as member `index` of `domain`, with as many others.
pub fn view(domain: &str, index: u32, others: u32) -> DomainView {
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
    pub fn new() -> Self {
        Self::with(Authentication::Insecure)
    }

    pub fn with(authentication: Authentication) -> Self {
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

    /// One whose daemon is READY in domain `d`.
    pub async fn serving() -> (Self, Running) {
        let mut rig = Self::new();
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.until_ready_in("d").await;
        (rig, runner)
    }

    /// A new agent in the place of the old one.
    pub fn restart_agent(&mut self) {
        self.scope.stop();
        self.scope = self.runtime.root().child("agent");
        let (supervisor, ready, status, usable) =
            supervise(&self.scope, &self.root, self.authentication, &self.permit, &self.asked);
        (self.supervisor, self.ready, self.status, self.usable) = (supervisor, ready, status, usable);
        self.fabric(Fabric::Ready(clique()));
        self.may_switch(Ok(()));
    }

    pub fn fabric(&self, fabric: Fabric) {
        self.supervisor.tell(Message::Guard(Guard::Off));
        self.supervisor.tell(Message::Inventory(Inventory { fabric, ..Default::default() }));
    }

    /// What the allocator says unasked.
    pub fn may_switch(&self, may: Result<(), &str>) {
        self.supervisor.tell(Message::MaySwitch(may.map_err(Into::into)));
    }

    pub fn see(&self, view: DomainView) {
        self.supervisor.tell(Message::View(view));
    }

    pub fn start_runner(&self) -> Running {
        let (end, ends) = oneshot::channel::<()>();
        let run = runner::run(settings(self.root.path()), async {
            let _ = ends.await;
        });
        Running { end, run: tokio::spawn(run) }
    }

    pub async fn until_ready_in(&mut self, domain: &str) {
        self.ready.wait_for(|ready| ready.as_ref().is_some_and(|ready| ready.as_deref() == Ok(domain))).await.unwrap();
    }

    pub async fn until_not_ready(&mut self, says: &str) -> String {
        let fits = |ready: &Option<Ready>| matches!(ready, Some(Err(why)) if why.contains(says));
        self.ready.wait_for(fits).await.unwrap().clone().unwrap().unwrap_err()
    }

    pub async fn runner_state(&self) -> State {
        let endpoint = format!("unix://{}", self.root.path().join("run/runner.sock").display());
        let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
        RunnerClient::new(channel).get(GetRequest {}).await.unwrap().into_inner()
    }

    pub fn starts(&self) -> usize {
        fs::read_to_string(self.root.path().join("calls")).unwrap_or_default().matches("start").count()
    }
}

pub struct Running {
    pub end: oneshot::Sender<()>,
    pub run: JoinHandle<Result<(), Fault>>,
}

impl Running {
    pub async fn stop(self) {
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

pub fn run(test: impl Future<Output = ()>) {
    block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs") });
}
