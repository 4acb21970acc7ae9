//! Each node has NodeLink, ChannelAllocator and ImexSupervisor wired as an agent wires them, a runner, and a fake daemon
//! below it; the test plays the hardware and the kubelet.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use heddle_actors::agent::Later;
use heddle_actors::channel_allocator::{self, ChannelAllocator};
use heddle_actors::controller;
use heddle_actors::imex_supervisor::{self, HostImex, ImexSupervisor};
use heddle_actors::node_link::{self, DomainView, NodeFacts, NodeLink};
use heddle_actors::runner::{self, Timing};
use heddle_actors::runtime::{Addr, Runtime, Scope, Spec, block_on};
use heddle_actors::slice_publisher::Usable;
use heddle_core::api::{
    ChannelSpec, ComputeDomain, ComputeDomainRef, ComputeDomainSpec, DaemonStatus, DomainHealth, IMEXDomain, IMEXNode,
    ImexMode, IsolationMode, TemplateRef, crds,
};
use heddle_core::claim::{ClaimKey, Grant, Prepared};
use heddle_core::clique::CliqueId;
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::{Standing, shared_domain_name};
use heddle_core::invariants::{Report, RunningDaemon, World};
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::names;
use heddle_core::runtime_guard::Guard;
use heddle_integration::api::{ApiServer, Options};
use heddle_integration::imex::cuda::Cuda;
use heddle_integration::imex::os::{OS_ENV, Os};
use heddle_integration::imex::scenario::Scenario;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{GetRequest, State};
use k8s_openapi::api::core::v1::{Namespace, Node as KubeNode};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::transport::Endpoint;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fake-nvidia-imex");
const MAJOR: u32 = 506;
const DRIVER: &str = "580.95.05";
/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

pub fn home() -> String {
    shared_domain_name(&clique())
}

/// A cluster with a controller, and nodes that have one port and addresses that no other test has.
pub struct Field {
    pub server: ApiServer,
    pub client: Client,
    runtime: Runtime,
    folder: TempDir,
    network: String,
    port: u16,
    /// Settings of the daemons by their operator.
    pub operator: BTreeMap<String, String>,
    pub nodes: BTreeMap<String, Node>,
    prepared: RefCell<BTreeMap<String, Vec<Prepared>>>,
}

/// Runs a test on a System of its own, and checks the invariants at its end.
pub fn test(scene: impl AsyncFnOnce(&mut Field)) {
    block_on(async {
        let mut field = Field::new().await;
        tokio::time::timeout(PATIENCE, scene(&mut field)).await.expect("the scene has not ended in time");
        field.check().await;
        for node in std::mem::take(&mut field.nodes).into_values() {
            node.stop().await;
        }
    });
}

impl Field {
    async fn new() -> Self {
        static LAST: AtomicU8 = AtomicU8::new(1);
        let network = format!("127.{}.{}", 200 + std::process::id() % 50, LAST.fetch_add(1, Ordering::Relaxed));
        let port = TcpListener::bind((format!("{network}.1"), 0)).unwrap().local_addr().unwrap().port();
        let server = ApiServer::new(Options { seed: Some(1), ..Options::default() });
        let client = server.client();
        for crd in crds() {
            Api::<CustomResourceDefinition>::all(client.clone()).create(&PostParams::default(), &crd).await.unwrap();
        }
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": "team"}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let settings = controller::Settings {
            client: client.clone(),
            requests: Default::default(),
            metrics: None,
            driver_match: Default::default(),
            election: None,
            signer: None,
        };
        tokio::task::spawn_local(async move { controller::run(settings, std::future::pending()).await.unwrap() });
        Self {
            server,
            client,
            runtime: Runtime::new(),
            folder: TempDir::with_prefix("mem").unwrap(),
            network,
            port,
            operator: BTreeMap::new(),
            nodes: BTreeMap::new(),
            prepared: RefCell::default(),
        }
    }

    pub fn address(&self, number: u8) -> String {
        format!("{}.{number}", self.network)
    }

    /// Nodes `n0`, … with the first addresses of the network, which have met.
    pub async fn with_nodes(&mut self, count: u8) {
        for index in 0..count {
            let address = self.address(index + 1);
            self.add(&format!("n{index}"), &[&address]).await;
        }
        self.up(count.into()).await;
    }

    /// A node comes, with its Node.
    pub async fn add(&mut self, name: &str, addresses: &[&str]) {
        let node: KubeNode = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &node).await.unwrap();
        let os = self.folder.path().join(name);
        let node = Node::start(self, name, os, addresses, None);
        self.nodes.insert(name.into(), node);
    }

    /// What is to go wrong on a node from its daemon's first start on.
    pub fn begin_with(&self, name: &str, scenario: &Scenario) {
        scenario.write(&Os::at(self.folder.path().join(name))).unwrap();
    }

    /// No packet gets from one address to the other any more, and nobody is told; or all of them again.
    pub fn drop_packets(&self, one: &str, other: &str, dropped: bool) {
        let what = if dropped { "add" } else { "del" };
        for (from, to) in [(one, other), (other, one)] {
            sh(&format!("ip rule {what} from {from} to {to} blackhole"));
        }
    }

    /// A node comes that has a network of its own, with one address.
    pub async fn add_host(&mut self, name: &str, address: &str) {
        let node: KubeNode = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &node).await.unwrap();
        let os = self.folder.path().join(name);
        let host = Host::new(name, address);
        let node = Node::start(self, name, os, &[address], Some(host));
        self.nodes.insert(name.into(), node);
    }

    /// A node with a network of its own gets another address in the place of the one that it has.
    pub fn move_host(&self, name: &str, old: &str, new: &str) {
        let node = self.node(name);
        let host = node.host.as_ref().unwrap();
        host.within(&format!("ip addr add {new}/32 dev e0; ip addr del {old}/32 dev e0"));
        sh(&format!("ip route add {new} dev v{name}; ip route del {old} dev v{name}"));
        node.have(&[new]);
    }

    pub fn node(&self, name: &str) -> &Node {
        &self.nodes[name]
    }

    /// Looks after each change of an object, until there is something to see.
    pub async fn until<T, F: Future<Output = Option<T>>>(&self, what: &str, seen: impl Fn() -> F) -> T {
        let wait = async {
            let mut changes = self.server.changes();
            loop {
                changes.mark_unchanged();
                if let Some(found) = seen().await {
                    return found;
                }
                let _ = tokio::time::timeout(Duration::from_millis(100), changes.changed()).await;
            }
        };
        match tokio::time::timeout(PATIENCE / 2, wait).await {
            Ok(found) => found,
            Err(_) => {
                for (group, kind) in [
                    ("imex.heddle.dev", "imexdomains"),
                    ("imex.heddle.dev", "imexnodes"),
                    ("resource.nvidia.com", "computedomains"),
                ] {
                    self.server.objects(group, kind).iter().for_each(|object| eprintln!("{object}"));
                }
                panic!("{what}: it has not come to that");
            }
        }
    }

    pub async fn health(&self) -> Option<DomainHealth> {
        Api::<IMEXDomain>::all(self.client.clone()).get_opt(&home()).await.unwrap()?.status?.health
    }

    /// Waits until the shared domain's health fits.
    pub async fn until_health(&self, what: &str, fits: impl Fn(&DomainHealth) -> bool) -> DomainHealth {
        self.until(what, async || self.health().await.filter(|health| fits(health))).await
    }

    /// Waits until so many members are READY and pairwise connected.
    pub async fn up(&self, count: u32) -> DomainHealth {
        self.until_health("the domain is up", |health| health.state == "Up" && health.ready == count).await
    }

    /// Waits until the node's object fits.
    pub async fn until_node(&self, name: &str, what: &str, fits: impl Fn(&IMEXNode) -> bool) -> IMEXNode {
        let nodes = Api::<IMEXNode>::all(self.client.clone());
        self.until(&format!("{name}: {what}"), async || nodes.get_opt(name).await.unwrap().filter(|node| fits(node)))
            .await
    }

    pub async fn until_daemon(&self, name: &str, what: &str, fits: impl Fn(&DaemonStatus) -> bool) -> DaemonStatus {
        let fits = |node: &IMEXNode| node.status.as_ref().is_some_and(|status| fits(&status.daemon));
        self.until_node(name, what, fits).await.status.unwrap().daemon
    }

    fn compute_domains(&self) -> Api<ComputeDomain> {
        Api::namespaced(self.client.clone(), "team")
    }

    pub async fn create(&self, name: &str) -> ComputeDomainRef {
        let template = TemplateRef { name: format!("{name}-channel") };
        let channel = ChannelSpec { resource_claim_template: template, ..Default::default() };
        let cd = ComputeDomain::new(
            name,
            ComputeDomainSpec { num_nodes: 0, isolation_mode: IsolationMode::Channel, channel },
        );
        let cd = self.compute_domains().create(&PostParams::default(), &cd).await.unwrap();
        ComputeDomainRef { namespace: "team".into(), name: name.into(), uid: cd.uid().unwrap() }
    }

    /// Waits until the condition has this reason; its message.
    pub async fn condition(&self, cd: &str, type_: &str, reason: &str) -> String {
        let seen = async || {
            let found = self.compute_domains().get_opt(cd).await.unwrap()?.status?;
            let condition = found.conditions.into_iter().find(|condition| condition.type_ == type_)?;
            (condition.reason == reason).then_some(condition.message)
        };
        self.until(&format!("{cd} {type_} {reason}"), seen).await
    }

    /// A claim of the ComputeDomain comes to the node: it is allocated there, and the kubelet asks for it.
    pub async fn ask(&self, cd: &ComputeDomainRef, node: &str) -> Result<u32, Fault> {
        let claim = format!("{}-{node}", cd.name);
        let claims = Api::<ResourceClaim>::namespaced(self.client.clone(), "team");
        if claims.get_opt(&claim).await.unwrap().is_none() {
            let object = serde_json::from_value(json!({
                "metadata": {"name": claim, "labels": {names::COMPUTE_DOMAIN_LABEL: cd.uid}},
                "spec": {"devices": {"requests": [{"name": "c", "exactly": {"deviceClassName": names::CHANNEL_DEVICE_CLASS}}]}},
            }));
            claims.create(&PostParams::default(), &object.unwrap()).await.unwrap();
            let result = json!({"driver": names::DRIVER, "pool": node, "device": "slot-0", "request": "c"});
            let patch = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
            claims.patch_status(&claim, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
        let key = ClaimKey { namespace: "team".into(), name: claim.clone(), uid: claim.clone() };
        let (cd, mode) = (cd.clone(), IsolationMode::Channel);
        let uid = cd.uid.clone();
        let allocator = &self.node(node).wired.allocator;
        let granted =
            allocator.ask(|reply| channel_allocator::Message::Enter { claim: key, cd, mode, reply }).await.unwrap()?;
        let Grant::Channel { channel, domain, .. } = granted else { panic!("{granted:?}") };
        let prepared = Prepared { claim_uid: claim, cd_uid: uid, channel, domain };
        self.prepared.borrow_mut().entry(node.into()).or_default().push(prepared);
        Ok(channel)
    }

    pub async fn prepare(&self, cd: &ComputeDomainRef, node: &str) -> u32 {
        self.ask(cd, node).await.unwrap()
    }

    /// What a claim waits for, once it is for this reason.
    pub async fn missing(&self, cd: &ComputeDomainRef, node: &str, reason: &str) -> Fault {
        let claim_uid = format!("{}-{node}", cd.name);
        let ask = async || {
            let claim_uid = claim_uid.clone();
            let allocator = &self.node(node).wired.allocator;
            let fault = allocator.ask(|reply| channel_allocator::Message::Missing { claim_uid, reply }).await.unwrap();
            (fault.reason == reason).then_some(fault)
        };
        self.until(&format!("{} waits on {node} for {reason}", cd.name), ask).await
    }

    /// The claims that are prepared on the node still are, once its agent knows enough to say so.
    pub async fn holds(&self, node: &str) {
        let claims = self.prepared.borrow()[node].clone();
        for claim in claims {
            let verified = async || {
                let (prepared, allocator) = (claim.clone(), &self.node(node).wired.allocator);
                allocator.ask(|reply| channel_allocator::Message::Verify { prepared, reply }).await.unwrap().ok()
            };
            self.until(&format!("{} holds", claim.claim_uid), verified).await;
        }
    }

    /// All claims of the node are unprepared.
    pub fn unprepare(&self, node: &str) {
        for gone in self.prepared.borrow_mut().remove(node).into_iter().flatten() {
            let (claim_uid, cd_uid) = (gone.claim_uid, gone.cd_uid);
            self.node(node).wired.allocator.tell(channel_allocator::Message::Leave { claim_uid, cd_uid });
        }
    }

    /// A new agent in the place of the old one; it finds the claims in its checkpoints.
    pub async fn restart_agent(&mut self, name: &str) {
        let claims = self.prepared.borrow().get(name).cloned().unwrap_or_default();
        let scope = self.runtime.root().child(name);
        let client = self.client.clone();
        let node = self.nodes.get_mut(name).unwrap();
        node.scope.stop();
        node.wired = Wired::new(&scope, client, name, &node.os, &node.addresses, &node.count);
        node.scope = scope;
        node.begin(claims);
    }

    /// The process ids of all daemons.
    pub async fn pids(&self) -> BTreeMap<String, u32> {
        let mut pids = BTreeMap::new();
        for (name, node) in &self.nodes {
            pids.insert(name.clone(), node.state().await.daemon_pid);
        }
        pids
    }

    /// The invariants hold now, and no daemon was stopped by us.
    pub async fn check(&self) {
        let (nodes, domains) = (Api::<IMEXNode>::all(self.client.clone()), Api::<IMEXDomain>::all(self.client.clone()));
        let mut world = World { prepared: self.prepared.borrow().clone(), ..World::default() };
        for domain in domains.list(&Default::default()).await.unwrap() {
            world.domains.insert(domain.name_any(), domain);
        }
        for node in nodes.list(&Default::default()).await.unwrap() {
            world.nodes.insert(node.name_any(), node);
        }
        for (name, node) in &self.nodes {
            let domain = Some(node.state().await.domain).filter(|domain| !domain.is_empty());
            world.daemons.insert(name.clone(), RunningDaemon { domain, stopped_under_claims: 0 });
        }
        let report = Report::of(&world);
        assert!(report.holds(), "{report:?}");
    }
}

/// The actors of an agent that matter here.
pub struct Wired {
    link: Addr<node_link::Message>,
    pub allocator: Addr<channel_allocator::Message>,
    supervisor: Addr<imex_supervisor::Message>,
    pub usable: watch::Receiver<Option<Usable>>,
}

impl Wired {
    fn new(
        scope: &Scope,
        client: Client,
        name: &str,
        os: &Path,
        addresses: &Rc<RefCell<Vec<String>>>,
        count: &Rc<Cell<u32>>,
    ) -> Self {
        let to_allocator = Later::<channel_allocator::Message>::default();
        let to_supervisor = Later::<imex_supervisor::Message>::default();
        let (addresses, count) = (addresses.clone(), count.clone());
        let (viewing_allocator, viewing_supervisor) = (to_allocator.clone(), to_supervisor.clone());
        let settings = node_link::Settings {
            client: client.clone(),
            node_name: name.into(),
            facts: Rc::new(move || NodeFacts {
                boot_id: Some("boot".into()),
                channel_count: Some(count.get()),
                addresses: addresses.borrow().clone(),
            }),
            view: Rc::new(move |view: DomainView| {
                viewing_allocator.tell(channel_allocator::Message::View(view.clone()));
                viewing_supervisor.tell(imex_supervisor::Message::View(view));
            }),
        };
        let link = scope.supervise(Spec::default(), move || Ok(NodeLink::new(settings.clone())));
        let switching = to_supervisor.clone();
        let settings = channel_allocator::Settings {
            client,
            node_link: link.clone(),
            may_switch: Rc::new(move |may| switching.tell(imex_supervisor::Message::MaySwitch(may))),
            prepared: Rc::new(|_| {}),
            standing: Some(Standing::settled(ImexMode::DriverManaged)),
            restore: Rc::new(|| {}),
        };
        let allocator = scope.supervise(Spec::default(), move || Ok(ChannelAllocator::new(settings.clone())));
        to_allocator.set(&allocator);
        let (say_usable, usable) = watch::channel(None);
        let (reporting, readying) = (link.clone(), allocator.clone());
        let settings = imex_supervisor::Settings {
            socket: os.join("runner/runner.sock"),
            host: HostImex::at("/none"),
            standing: Some(Standing::settled(ImexMode::DriverManaged)),
            allocator: allocator.clone(),
            authentication: Authentication::Insecure,
            status: Rc::new(move |status| reporting.tell(node_link::Message::Daemon(status))),
            ready: Rc::new(move |ready| readying.tell(channel_allocator::Message::Daemon(ready))),
            usable: Rc::new(move |usable| drop(say_usable.send(Some(usable)))),
            running: Rc::new(|_| {}),
        };
        let supervisor = scope.supervise(Spec::default(), move || Ok(ImexSupervisor::new(settings.clone())));
        to_supervisor.set(&supervisor);
        Self { link, allocator, supervisor, usable }
    }
}

pub struct Node {
    pub os: PathBuf,
    scope: Scope,
    /// What the node reports, read anew with each inventory.
    addresses: Rc<RefCell<Vec<String>>>,
    count: Rc<Cell<u32>>,
    pub wired: Wired,
    host: Option<Host>,
    runner: Runner,
}

fn runner_settings(os: &Path, port: u16, operator: &BTreeMap<String, String>) -> runner::Settings {
    runner::Settings {
        dir: os.join("runner"),
        socket: os.join("runner/runner.sock"),
        driver_root: os.join("driver"),
        isolation: runner::Isolation::None {
            hosts_file: os.join("etc/hosts"),
            command_socket: os.join("run/imex.sock"),
        },
        settings: operator.clone(),
        peer_port: port,
        metrics: None,
        timing: Timing {
            poll_starting: Duration::from_millis(30),
            poll_ready: Duration::from_millis(100),
            poll_peers: Duration::from_millis(200),
            poll_missing_peers: Duration::from_millis(100),
            poll_peers_least: Duration::from_millis(50),
            peers_settle: Duration::from_secs(1),
            query_limit: Duration::from_secs(1),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_millis(200),
            ..Timing::default()
        },
    }
}

/// A runner, in this process or in one of its own.
enum Runner {
    Here(oneshot::Sender<()>, JoinHandle<()>),
    Apart(Child),
}

impl Runner {
    fn here(settings: runner::Settings) -> Self {
        let (end, ends) = oneshot::channel::<()>();
        let run = async move { runner::run(settings, async { drop(ends.await) }).await.unwrap() };
        Self::Here(end, tokio::spawn(run))
    }

    async fn stop(self) {
        match self {
            Self::Here(end, run) => {
                end.send(()).unwrap();
                run.await.unwrap();
            }
            Self::Apart(mut child) => {
                let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
                kill_process(pid, Signal::TERM).unwrap();
                assert!(child.wait().await.unwrap().success());
            }
        }
    }
}

/// Name of the test that is a runner in a process of its own, and what it is told by its environment.
const APART: &str = "netns::the_runner_s_own_process";
const APART_OS: &str = "HEDDLE_MEMBERS_OS";
const APART_PORT: &str = "HEDDLE_MEMBERS_PORT";
const APART_BIND: &str = "HEDDLE_MEMBERS_BIND";

/// Is a runner, where the environment says so.
pub fn live() {
    let Some(os) = std::env::var_os(APART_OS) else { return };
    let said = |name| std::env::var(name).unwrap();
    let operator = [("BIND_INTERFACE_IP".to_owned(), said(APART_BIND))].into();
    let settings = runner_settings(Path::new(&os), said(APART_PORT).parse().unwrap(), &operator);
    block_on(async { runner::run(settings, heddle_actors::runtime::signals()).await.unwrap() });
}

/// Who forwards packets, as its hosts know it: without being asked who it is, so that nothing but a packet can be lost.
const ROUTER: &str = "169.254.1.1";
const ROUTER_MAC: &str = "02:00:00:00:00:01";

/// A network namespace with one interface `e0`, whose other end is `v<name>` here, where packets are forwarded.
struct Host {
    /// A process that lives there.
    keeper: std::process::Child,
}

impl Host {
    fn new(name: &str, address: &str) -> Self {
        let keeper = std::process::Command::new("unshare").args(["--net", "sleep", "1000"]).spawn().unwrap();
        let host = Self { keeper };
        let (own, its) = ("/proc/self/ns/net", format!("/proc/{}/ns/net", host.keeper.id()));
        while std::fs::read_link(&its).ok() == std::fs::read_link(own).ok() {
            std::thread::yield_now();
        }
        sh(&format!(
            "ip link add v{name} address {ROUTER_MAC} type veth peer name e0 netns {}; ip link set v{name} up
             echo 1 > /proc/sys/net/ipv4/ip_forward; ip route add {address} dev v{name}",
            host.keeper.id()
        ));
        host.within(&format!(
            "ip link set lo up; ip link set e0 up; ip addr add {address}/32 dev e0; ip route add {ROUTER} dev e0
             ip neigh add {ROUTER} lladdr {ROUTER_MAC} dev e0 nud permanent; ip route add default via {ROUTER}"
        ));
        host
    }

    fn within(&self, script: &str) {
        sh(&format!("nsenter --net=/proc/{}/ns/net sh -e -c '{script}'", self.keeper.id()));
    }

    fn runner(&self, os: &Path, port: u16, operator: &BTreeMap<String, String>) -> Runner {
        let child = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.keeper.id()))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", APART, "--nocapture"])
            .env(APART_OS, os)
            .env(APART_PORT, port.to_string())
            .env(APART_BIND, &operator["BIND_INTERFACE_IP"])
            .kill_on_drop(true)
            .spawn();
        Runner::Apart(child.unwrap())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

fn sh(script: &str) {
    let output = std::process::Command::new("sh").args(["-e", "-c", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Node {
    fn start(field: &Field, name: &str, os: PathBuf, addresses: &[&str], host: Option<Host>) -> Self {
        for folder in ["etc", "net", "proc", "run", "imex", "driver/usr/bin"] {
            std::fs::create_dir_all(os.join(folder)).unwrap();
        }
        let devices = format!("Character devices:\n{MAJOR} nvidia-caps-imex-channels\n");
        std::fs::write(os.join("proc/devices"), devices).unwrap();
        for program in ["nvidia-imex", "nvidia-imex-ctl"] {
            let place = os.join("driver/usr/bin").join(program);
            let said = if program == "nvidia-imex-ctl" {
                format!("echo $1 >> {}\n", os.join("asked").display())
            } else {
                format!("exec 2> >(tee -a {} >&2)\n", os.join("log").display())
            };
            let script = format!("#!/bin/bash\n{said}exec env {OS_ENV}={} {PROGRAM} {program} \"$@\"\n", os.display());
            // By a process of its own: a file that a fork of another test holds open for writing cannot be executed.
            let write = format!("cat > {0} <<'E'\n{script}E\nchmod 755 {0}", place.display());
            assert!(std::process::Command::new("sh").args(["-c", &write]).status().unwrap().success());
        }
        let runner = match &host {
            None => Runner::here(runner_settings(&os, field.port, &field.operator)),
            Some(host) => host.runner(&os, field.port, &field.operator),
        };
        let (addresses_said, count) = (Rc::default(), Rc::new(Cell::new(2048)));
        let scope = field.runtime.root().child(name);
        let wired = Wired::new(&scope, field.client.clone(), name, &os, &addresses_said, &count);
        let node = Self { os, scope, addresses: addresses_said, count, wired, host, runner };
        node.have(addresses);
        node.begin(Vec::new());
        node
    }

    /// The node has these addresses from now on, and says so with the next report.
    pub fn have(&self, addresses: &[&str]) {
        std::fs::write(self.os.join("net/addresses"), addresses.join("\n")).unwrap();
        *self.addresses.borrow_mut() = addresses.iter().map(ToString::to_string).collect();
    }

    pub fn channels(&self, count: u32) {
        self.count.set(count);
    }

    /// The hardware is read: the node is in this clique.
    pub fn report(&self, clique: CliqueId) {
        self.report_driver(clique, DRIVER, None);
    }

    pub fn report_driver(&self, clique: CliqueId, driver: &str, recovery: Option<&str>) {
        let inventory = Inventory {
            fabric: Fabric::Ready(clique),
            driver_version: driver.into(),
            recovery_action: recovery.map(Into::into),
            ..Inventory::default()
        };
        self.wired.link.tell(node_link::Message::Inventory(inventory.clone()));
        self.wired.allocator.tell(channel_allocator::Message::Inventory(inventory.clone()));
        self.wired.supervisor.tell(imex_supervisor::Message::Inventory(inventory));
    }

    /// What an agent finds when it starts.
    fn begin(&self, claims: Vec<Prepared>) {
        self.wired.supervisor.tell(imex_supervisor::Message::Guard(Guard::Off));
        self.wired.allocator.tell(channel_allocator::Message::Restore { claims });
        self.report(clique());
    }

    /// What goes wrong in the daemon from now on, or at its next start.
    pub fn scenario(&self, scenario: &Scenario) {
        scenario.write(&Os::at(&self.os)).unwrap();
    }

    pub async fn state(&self) -> State {
        let socket = self.os.join("runner/runner.sock");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        };
        RunnerClient::new(channel).get(GetRequest {}).await.unwrap().into_inner()
    }

    /// How often the daemon was asked for its connections.
    pub fn asked(&self) -> usize {
        std::fs::read_to_string(self.os.join("asked")).unwrap_or_default().matches("-N").count()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.os.join("log")).unwrap_or_default()
    }

    pub fn hosts(&self) -> String {
        std::fs::read_to_string(self.os.join("etc/hosts")).unwrap_or_default()
    }

    /// A container with this channel.
    pub fn process(&self, channel: u32) -> Cuda {
        Cuda::open(&self.os, (MAJOR, channel)).unwrap()
    }

    async fn stop(self) {
        self.scope.stop();
        self.runner.stop().await;
    }
}
