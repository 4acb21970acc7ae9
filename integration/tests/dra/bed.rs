//! One node's kubelet side, without a kubelet: real sockets, files and API, and an allocator that does as it is told.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_actors::channel_allocator;
use heddle_actors::dra::{ClaimEvents, DraDependencies, DraServer, DraSettings, HealthBoard, Message};
use heddle_actors::runtime::{Actor, Addr, Cx, Reply, Runtime, Scope, Spec, Turn};
use heddle_core::api::crds;
use heddle_core::claim::{Grant, Prepared};
use heddle_core::fault::Fault;
use heddle_core::inventory::{Fabric, Gpu, Inventory};
use heddle_core::names;
use heddle_integration::api::{ApiServer, Options, Request, Verb};
use heddle_integration::node::NodePaths;
use heddle_proto::dra::v1::dra_plugin_client::DraPluginClient;
use heddle_proto::dra::v1::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

pub const NODE: &str = "n1";
/// UID of the pod that claims are reserved for.
const POD_UID: &str = "u";
/// UID of the agent's own pod.
pub const POD: &str = "7f2c1b7e-9d14-4c0b-9a76-0d6b0a5e4f11";

/// Runs a test on an actix System, and fails it when it hangs.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    heddle_actors::runtime::block_on(async {
        let done = tokio::time::timeout(Duration::from_secs(60), test()).await;
        done.expect("the test hangs");
    });
}

/// The node, its API server and what stands in for the rest of the agent.
pub struct Bed {
    _dir: tempfile::TempDir,
    pub paths: NodePaths,
    pub server: ApiServer,
    pub client: Client,
    pub stub: Rc<RefCell<Stub>>,
    pub runtime: Runtime,
    pub inventory: Inventory,
    /// What the agent has asked of the API server.
    requests: Arc<Mutex<Vec<(Verb, String)>>>,
}

/// One life of the agent's kubelet side.
pub struct Agent {
    pub scope: Scope,
    pub server: Addr<Message>,
    pub health: HealthBoard,
    pub settings: DraSettings,
}

impl Bed {
    pub async fn new() -> Self {
        Self::on(Options::default()).await
    }

    /// On this API server.
    pub async fn on(options: Options) -> Self {
        // In memory where that is possible: the tests start hundreds of agents, and each syncs its files.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let paths = NodePaths::new(dir.path());
        let random = paths.os().join("proc/sys/kernel/random");
        for folder in [paths.plugins(), paths.registry(), paths.cdi(), paths.cdi_static(), paths.state(), random] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let server = ApiServer::new(options);
        let client = server.client();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let bed = Self {
            _dir: dir,
            paths,
            client,
            stub: Rc::default(),
            runtime: Runtime::new(),
            inventory: Inventory {
                gpus: (0..4)
                    .map(|index| Gpu { index, minor: index, uuid: format!("GPU-{index}"), ..Gpu::default() })
                    .collect(),
                fabric: Fabric::Ready("0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.1".parse().unwrap()),
                ..Inventory::default()
            },
            server,
            requests,
        };
        bed.toolkit(&["GPU-0", "GPU-1", "GPU-2", "GPU-3"]);
        bed.boot("boot-1", 234);
        for crd in crds() {
            bed.create("apiextensions.k8s.io/v1", "customresourcedefinitions", serde_json::to_value(crd).unwrap())
                .await;
        }
        for name in ["team", "other"] {
            bed.create("v1", "namespaces", json!({"metadata": {"name": name}})).await;
        }
        bed.create("v1", "nodes", json!({"metadata": {"name": NODE}})).await;
        bed.heal();
        bed
    }

    /// The container toolkit's file, with these GPUs.
    pub fn toolkit(&self, uuids: &[&str]) {
        let devices: Vec<_> =
            uuids.iter().map(|uuid| json!({"name": uuid, "containerEdits": {"env": ["A=B"]}})).collect();
        let spec = json!({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices});
        let path = self.paths.cdi_static().join("nvidia.json");
        std::fs::write(path.with_extension("new"), spec.to_string()).unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
    }

    /// The files of a boot.
    pub fn boot(&self, id: &str, major: u32) {
        std::fs::write(self.paths.os().join("proc/sys/kernel/random/boot_id"), format!("{id}\n")).unwrap();
        let devices = format!("Character devices:\n{major} {}\n\nBlock devices:\n", names::CHANNEL_MAJOR_NAME);
        std::fs::write(self.paths.os().join("proc/devices"), devices).unwrap();
    }

    /// Lets the API server answer, and notes what it is asked.
    pub fn heal(&self) {
        let requests = self.requests.clone();
        self.server.fail_requests(move |request| {
            note(&requests, request);
            None
        });
    }

    /// Lets the API server answer nothing.
    pub fn api_away(&self) {
        let requests = self.requests.clone();
        self.server.fail_requests(move |request| {
            note(&requests, request);
            Some(kube::core::Status::failure("the API server is away", "ServiceUnavailable").with_code(503))
        });
    }

    /// What was asked since the last call.
    pub fn requests(&self) -> Vec<(Verb, String)> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }

    /// A pod on this node whose one container uses a claim, made after the claim was reserved for it.
    pub async fn pod(&self, name: &str, claim: &str) {
        self.pod_of(name, json!({"containers": [uses("main", &[claim])]})).await;
    }

    /// A pod on this node, made after the claims that its containers use were reserved for it.
    pub async fn pod_of(&self, name: &str, mut spec: Value) {
        let kinds = ["initContainers", "containers"];
        let containers: Vec<_> =
            kinds.iter().flat_map(|kind| spec[kind].as_array().cloned().unwrap_or_default()).collect();
        let used = containers.iter().flat_map(|container| container["resources"]["claims"].as_array().unwrap());
        let used: BTreeSet<_> = used.map(|claim| claim["name"].as_str().unwrap().to_owned()).collect();
        spec["resourceClaims"] = used.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim})).collect();
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "team", "name": name}, "spec": spec});
        let made = self.create("v1", "pods", pod).await;
        for claim in used {
            self.reserve(&claim, name, &made["metadata"]["uid"]).await;
        }
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"kind": "Node", "name": NODE}});
        let path = format!("/{name}/binding");
        self.send(http::Method::POST, "v1", "pods", Some("team"), &path, binding).await;
        self.requests();
    }

    async fn reserve(&self, claim: &str, pod: &str, uid: &Value) {
        let claims = kube::Api::<ResourceClaim>::namespaced(self.client.clone(), "team");
        let mut reserved =
            serde_json::to_value(claims.get(claim).await.unwrap().status.unwrap()).unwrap()["reservedFor"]
                .as_array()
                .cloned()
                .unwrap_or_default();
        reserved.retain(|consumer| consumer["uid"] != POD_UID);
        reserved.push(json!({"resource": "pods", "name": pod, "uid": uid}));
        let patch = kube::api::Patch::Merge(json!({"status": {"reservedFor": reserved}}));
        claims.patch_status(claim, &kube::api::PatchParams::default(), &patch).await.unwrap();
    }

    pub async fn create(&self, api_version: &str, plural: &str, object: Value) -> Value {
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        self.send(http::Method::POST, api_version, plural, namespace.as_deref(), "", object).await
    }

    async fn send(
        &self,
        method: http::Method,
        api_version: &str,
        plural: &str,
        namespace: Option<&str>,
        name: &str,
        object: Value,
    ) -> Value {
        let root = if api_version.contains('/') { "apis" } else { "api" };
        let namespace = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("/{root}/{api_version}{namespace}/{plural}{name}"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object).unwrap())
            .unwrap();
        self.client.request(request).await.unwrap()
    }

    pub async fn delete(&self, api_version: &str, plural: &str, name: &str) {
        let path = format!("/{name}");
        self.send(http::Method::DELETE, api_version, plural, Some("team"), &path, json!({})).await;
    }

    /// The claim is reserved for nobody any more.
    pub async fn unreserve(&self, claim: &str) {
        let claims = kube::Api::<ResourceClaim>::namespaced(self.client.clone(), "team");
        let patch = kube::api::Patch::Merge(json!({"status": {"reservedFor": null}}));
        claims.patch_status(claim, &kube::api::PatchParams::default(), &patch).await.unwrap();
    }

    /// UID of a ComputeDomain that there is.
    pub async fn uid_of(&self, domain: &str) -> String {
        let domains = kube::Api::<heddle_core::api::ComputeDomain>::namespaced(self.client.clone(), "team");
        domains.get(domain).await.unwrap().metadata.uid.unwrap()
    }

    /// A ComputeDomain; its UID.
    pub async fn compute_domain(&self, namespace: &str, name: &str, spec: Value) -> String {
        let mut spec = spec;
        spec["channel"]["resourceClaimTemplate"] = json!({"name": format!("{name}-channel")});
        let object = json!({"apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain",
            "metadata": {"namespace": namespace, "name": name}, "spec": spec});
        let made = self.create(names::COMPUTE_DOMAIN_API_VERSION, "computedomains", object).await;
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// A claim on a slot, allocated and reserved.
    pub async fn claim(&self, name: &str, domain: &str) -> Claim {
        let config = json!({"apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": names::CHANNEL_CONFIG_KIND,
            "domainID": domain});
        self.claim_with(name, names::DRIVER, &["slot-3"], config).await
    }

    pub async fn claim_with(&self, name: &str, driver: &str, devices: &[&str], config: Value) -> Claim {
        let requests = json!([{"name": "channel", "exactly": {"deviceClassName": names::CHANNEL_DEVICE_CLASS,
            "allocationMode": "ExactCount", "count": devices.len()}}]);
        let results = devices
            .iter()
            .map(|device| json!({"request": "channel", "driver": driver, "pool": NODE, "device": device}));
        let config = json!([{"source": "FromClaim", "opaque": {"driver": names::DRIVER, "parameters": config}}]);
        self.claim_of(name, requests, json!({"results": results.collect::<Vec<_>>(), "config": config})).await
    }

    /// A claim with these requests and this allocation, reserved for a pod that there need not be.
    pub async fn claim_of(&self, name: &str, requests: Value, allocation: Value) -> Claim {
        let made = self
            .create(
                "resource.k8s.io/v1",
                "resourceclaims",
                json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                    "metadata": {"namespace": "team", "name": name}, "spec": {"devices": {"requests": requests}}}),
            )
            .await;
        let mut allocated = made;
        allocated["status"] = json!({"allocation": {"devices": allocation},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": POD_UID}]});
        let path = format!("/{name}/status");
        let made =
            self.send(http::Method::PUT, "resource.k8s.io/v1", "resourceclaims", Some("team"), &path, allocated).await;
        let uid = made["metadata"]["uid"].as_str().unwrap().to_owned();
        self.requests();
        Claim { namespace: "team".into(), name: name.into(), uid }
    }

    pub async fn read_claim(&self, name: &str) -> ResourceClaim {
        kube::Api::namespaced(self.client.clone(), "team").get(name).await.unwrap()
    }

    pub fn settings(&self) -> DraSettings {
        settings_of(&self.paths)
    }

    /// Lets the node's own object list channels of ComputeDomains.
    pub async fn enter(&self, channels: &[(&str, u32)]) {
        let kind = "IMEXNode";
        let node =
            json!({"apiVersion": "imex.heddle.dev/v1alpha1", "kind": kind, "metadata": {"name": NODE}, "spec": {}});
        self.create("imex.heddle.dev/v1alpha1", "imexnodes", node).await;
        let api = kube::Api::<heddle_core::api::IMEXNode>::all(self.client.clone());
        let entry = |channel| json!({"channel": channel, "domain": "shared-0", "since": ""});
        let entries: serde_json::Map<String, Value> =
            channels.iter().map(|(domain, channel)| ((*domain).to_owned(), entry(*channel))).collect();
        let patch = kube::api::Patch::Merge(json!({"status": {"channelCount": 2048, "channels": entries}}));
        api.patch_status(NODE, &kube::api::PatchParams::default(), &patch).await.unwrap();
    }

    /// Starts an agent and waits until it listens.
    pub async fn start(&self) -> Agent {
        self.start_with(self.settings()).await
    }

    /// An agent, the UID of a ComputeDomain `green`, and a claim on it.
    pub async fn start_with_claim(&self) -> (Agent, String, Claim) {
        let agent = self.start().await;
        let domain = self.compute_domain("team", "green", json!({})).await;
        let claim = self.claim("c", &domain).await;
        (agent, domain, claim)
    }

    /// A pod whose claim is of a ComputeDomain `green`.
    pub async fn pod_with_claim(&self, pod: &str) {
        let domain = self.compute_domain("team", "green", json!({})).await;
        self.claim("c", &domain).await;
        self.pod(pod, "c").await;
    }

    pub async fn start_with(&self, settings: DraSettings) -> Agent {
        let turn = Turn::default();
        turn.begin();
        self.start_at(settings, turn).await
    }

    /// The new agent of a rolling update, beside the one that acts for the node, and when its turn is.
    pub async fn start_beside(&self) -> (Agent, Turn) {
        let turn = Turn::default();
        let settings = DraSettings { pod_uid: "11111111-9d14-4c0b-9a76-0d6b0a5e4f11".into(), ..self.settings() };
        (self.start_at(settings, turn.clone()).await, turn)
    }

    /// Starts an agent, which may not listen yet.
    pub async fn start_without_waiting(&self) -> Agent {
        let turn = Turn::default();
        turn.begin();
        self.begin(self.settings(), turn)
    }

    async fn start_at(&self, settings: DraSettings, turn: Turn) -> Agent {
        let agent = self.begin(settings, turn);
        // The registration socket of the last driver is the last that an agent opens.
        let last = heddle_core::names::GPU_DRIVER;
        let last = agent.settings.registry_dir.join(format!("{last}-{}-reg.sock", agent.settings.pod_uid));
        agent.until(|| std::os::unix::net::UnixStream::connect(&last).is_ok()).await;
        agent
    }

    fn begin(&self, settings: DraSettings, turn: Turn) -> Agent {
        let scope = self.runtime.root().child("agent");
        let stub = self.stub.clone();
        let allocator = scope.supervise(Spec::default(), move || Ok(StubAllocator(stub.clone())));
        let client = self.client.clone();
        let events = scope.supervise(Spec::default(), move || Ok(ClaimEvents::new(client.clone(), NODE)));
        let health = HealthBoard::default();
        let dependencies = DraDependencies {
            settings: settings.clone(),
            client: self.client.clone(),
            allocator,
            events,
            health: health.clone(),
            scope: scope.clone(),
            turn,
            inventory: Some(self.inventory.clone()),
        };
        let server = scope.supervise(DraServer::spec(), move || DraServer::new(dependencies.clone()));
        Agent { scope, server, health, settings }
    }

    /// Kills an agent where it stands.
    pub async fn kill(&self, agent: Agent) {
        agent.scope.stop();
        agent.until(|| agent.server.is_stopped()).await;
        self.requests();
    }

    pub fn cdi_files(&self) -> BTreeMap<String, Value> {
        let entries = std::fs::read_dir(self.paths.cdi()).unwrap().map(|entry| entry.unwrap().path());
        entries
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
            })
            .collect()
    }

    pub fn checkpoints(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for driver in [names::DRIVER, names::GPU_DRIVER] {
            let folder = self.paths.state().join("claims").join(driver);
            found.extend(std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
        found
    }

    /// The device nodes that a container gets for CDI ids, as a container runtime resolves them.
    pub fn inject(&self, ids: &[String]) -> Vec<(String, u64, u64)> {
        let files = self.cdi_files();
        let mut nodes = Vec::new();
        for id in ids {
            let (kind, name) = id.split_once('=').unwrap();
            let specs = files.values().filter(|spec| spec["kind"] == kind);
            let devices = specs.flat_map(|spec| spec["devices"].as_array().unwrap());
            let device = devices.clone().find(|device| device["name"] == name).expect("unresolvable CDI device");
            for node in device["containerEdits"]["deviceNodes"].as_array().into_iter().flatten() {
                let path = node["path"].as_str().unwrap().to_owned();
                nodes.push((path, node["major"].as_u64().unwrap(), node["minor"].as_u64().unwrap()));
            }
        }
        nodes
    }
}

/// A container that uses these claims.
pub fn uses(name: &str, claims: &[&str]) -> Value {
    let claims: Vec<_> = claims.iter().map(|claim| json!({"name": claim})).collect();
    json!({"name": name, "image": "i", "resources": {"claims": claims}})
}

/// The settings of the agent of a node whose files are there.
pub fn settings_of(paths: &NodePaths) -> DraSettings {
    DraSettings {
        node_name: NODE.into(),
        pod_uid: POD.into(),
        plugins_dir: paths.plugins(),
        registry_dir: paths.registry(),
        cdi_dir: paths.cdi(),
        cdi_static_dir: paths.cdi_static(),
        state_dir: paths.state(),
        gpus: true,
        proc_root: paths.os().join("proc"),
        metrics: Default::default(),
    }
}

fn note(requests: &Mutex<Vec<(Verb, String)>>, request: &Request) {
    requests.lock().unwrap().push((request.verb, request.plural.clone()));
}

impl Agent {
    pub fn registrations(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.settings.registry_dir) else { return Vec::new() };
        let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        found.retain(|path| path.to_string_lossy().ends_with("-reg.sock"));
        found.sort();
        found
    }

    pub fn service(&self, driver: &str) -> PathBuf {
        self.settings.plugins_dir.join(driver).join(format!("dra-{}.sock", self.settings.pod_uid))
    }

    pub async fn plugin(&self, driver: &str) -> DraPluginClient<Channel> {
        DraPluginClient::new(dial(self.service(driver)).await)
    }

    /// Prepares slots.
    pub async fn prepare(&self, claims: &[&Claim]) -> BTreeMap<String, NodePrepareResourceResponse> {
        self.prepare_by(names::DRIVER, claims).await
    }

    pub async fn prepare_by(&self, driver: &str, claims: &[&Claim]) -> BTreeMap<String, NodePrepareResourceResponse> {
        let request = NodePrepareResourcesRequest { claims: claims.iter().map(|claim| (*claim).clone()).collect() };
        let answer = self.plugin(driver).await.node_prepare_resources(request).await.unwrap().into_inner();
        assert_eq!(answer.claims.len(), claims.len(), "the kubelet wants an entry for each claim");
        answer.claims.into_iter().collect()
    }

    /// Prepares one claim; the CDI ids, or the error.
    pub async fn prepare_one(&self, claim: &Claim) -> Result<Vec<String>, String> {
        let answer = self.prepare(&[claim]).await.remove(&claim.uid).unwrap();
        match answer.error.as_str() {
            "" => Ok(answer.devices.into_iter().flat_map(|device| device.cdi_device_ids).collect()),
            error => Err(error.to_owned()),
        }
    }

    pub async fn unprepare(&self, claim: &Claim) -> Result<(), String> {
        self.unprepare_by(names::DRIVER, claim).await
    }

    pub async fn unprepare_by(&self, driver: &str, claim: &Claim) -> Result<(), String> {
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let mut answer = self.plugin(driver).await.node_unprepare_resources(request).await.unwrap().into_inner();
        match answer.claims.remove(&claim.uid).unwrap().error.as_str() {
            "" => Ok(()),
            error => Err(error.to_owned()),
        }
    }

    /// Waits for something that another task brings about.
    pub async fn until(&self, holds: impl Fn() -> bool) {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub async fn dial(path: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: http::Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap()
}

/// What the stand-in for the ChannelAllocator does, and what it was told.
pub struct Stub {
    pub grant: Result<Grant, Fault>,
    /// What other ComputeDomains than the usual one are given, by UID.
    pub grants: BTreeMap<String, Grant>,
    /// Enters wait until [`Stub::release`].
    pub hold: bool,
    pub lost: bool,
    pub waiting: Vec<Reply<Result<Grant, Fault>>>,
    pub enters: usize,
    /// Claims by what they hold.
    pub held: BTreeMap<String, String>,
    pub restored: Option<Vec<Prepared>>,
}

impl Default for Stub {
    fn default() -> Self {
        let grant = Grant::Channel { channel: 7, domain: "shared-0".into(), channel_count: 2048 };
        Self {
            grant: Ok(grant),
            grants: BTreeMap::new(),
            hold: false,
            lost: false,
            waiting: Vec::new(),
            enters: 0,
            held: BTreeMap::new(),
            restored: None,
        }
    }
}

impl Stub {
    pub fn release(&mut self) {
        self.hold = false;
        for reply in std::mem::take(&mut self.waiting) {
            reply.send(self.grant.clone());
        }
    }
}

struct StubAllocator(Rc<RefCell<Stub>>);

impl Actor for StubAllocator {
    const KIND: &'static str = "StubAllocator";
    type Message = channel_allocator::Message;

    fn handle(&mut self, message: Self::Message, _cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        use channel_allocator::Message;
        let mut stub = self.0.borrow_mut();
        match message {
            Message::Enter { claim, cd, reply, .. } => {
                stub.enters += 1;
                let grant = stub.grants.get(&cd.uid).cloned().map_or_else(|| stub.grant.clone(), Ok);
                if grant.is_ok() {
                    stub.held.insert(claim.uid, cd.uid);
                }
                match stub.hold {
                    true => stub.waiting.push(reply),
                    false => reply.send(grant),
                }
            }
            Message::Missing { reply, .. } => {
                let missing = "the IMEX daemon of this node is not READY: WAITING_FOR_PEERS";
                reply.send(Fault::retryable(heddle_core::fault::reason::DAEMON_NOT_READY, missing));
            }
            Message::Cancel { claim_uid } | Message::Leave { claim_uid, .. } => drop(stub.held.remove(&claim_uid)),
            Message::Restore { claims } => stub.restored = Some(claims),
            Message::Verify { reply, .. } => {
                let lost = Fault::retryable(heddle_core::fault::reason::CHANNEL_CLASH, "the entry is lost");
                reply.send(if stub.lost { Err(lost) } else { Ok(()) });
            }
            _ => {}
        }
        Ok(())
    }
}
