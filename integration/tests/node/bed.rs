//! Nodes with their NodeLink and ChannelAllocator on one embedded API.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use heddle_actors::channel_allocator::{self, ChannelAllocator, Message};
use heddle_actors::node_link::{self, DomainView, NodeFacts, NodeLink};
use heddle_actors::runtime::{Addr, Runtime, Scope, Spec, block_on};
use heddle_core::api::{
    ComputeDomain, ComputeDomainRef, DomainKind, IMEXDomain, IMEXDomainSpec, IMEXNode, ImexMode, IsolationMode, Member,
    crds,
};
use heddle_core::claim::{ClaimKey, Grant, Prepared};
use heddle_core::clique::CliqueId;
use heddle_core::fault::Fault;
use heddle_core::imex::{Standing, shared_domain_name};
use heddle_core::inventory::{Fabric, Inventory};
use heddle_integration::api::{ApiServer, Options};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

pub const CHANNELS: u32 = 2048;

pub fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

pub fn shared() -> String {
    shared_domain_name(&clique())
}

thread_local! {
    /// UIDs of the ComputeDomains of this test.
    static UIDS: RefCell<BTreeMap<String, String>> = RefCell::default();
}

pub fn uid(name: &str) -> String {
    UIDS.with_borrow(|uids| uids[name].clone())
}

pub fn cd(name: &str) -> ComputeDomainRef {
    ComputeDomainRef { namespace: "team".into(), name: name.into(), uid: uid(name) }
}

pub fn prepared(claim: &str, cd: &str, channel: u32) -> Prepared {
    Prepared { claim_uid: claim.into(), cd_uid: uid(cd), channel, domain: shared() }
}

/// A cluster with one shared domain.
pub struct Cluster {
    pub server: ApiServer,
    pub client: Client,
    pub runtime: Runtime,
}

impl Cluster {
    pub async fn new(nodes: &[&str]) -> Self {
        let server = ApiServer::new(Options { seed: Some(1), ..Options::default() });
        let client = server.client();
        let api = Api::<CustomResourceDefinition>::all(client.clone());
        for crd in crds() {
            api.create(&PostParams::default(), &crd).await.unwrap();
        }
        let cluster = Self { server, client, runtime: Runtime::new() };
        cluster.make_domain(&shared(), DomainKind::Shared, None, nodes).await;
        let team = serde_json::from_value(json!({"metadata": {"name": "team"}})).unwrap();
        Api::<Namespace>::all(cluster.client.clone()).create(&PostParams::default(), &team).await.unwrap();
        UIDS.with_borrow_mut(BTreeMap::clear);
        for name in ["green", "blue", "yellow", "red", "pink"] {
            cluster.make_compute_domain(name).await;
        }
        cluster
    }

    pub fn compute_domains(&self) -> Api<ComputeDomain> {
        Api::namespaced(self.client.clone(), "team")
    }

    pub async fn make_compute_domain(&self, name: &str) {
        let channel = json!({"resourceClaimTemplate": {"name": name}});
        let made = json!({"metadata": {"name": name, "finalizers": ["test/hold"]}, "spec": {"channel": channel}});
        let made = serde_json::from_value(made).unwrap();
        let made = self.compute_domains().create(&PostParams::default(), &made).await.unwrap();
        UIDS.with_borrow_mut(|uids| uids.insert(name.into(), made.uid().unwrap()));
    }

    pub async fn make_domain(&self, name: &str, kind: DomainKind, owner: Option<ComputeDomainRef>, nodes: &[&str]) {
        let members = (0..).zip(nodes).map(|(index, node)| {
            let address = format!("127.10.0.{}", index + 1);
            ((*node).to_owned(), Member { index, address, away: false })
        });
        let spec = IMEXDomainSpec {
            clique: clique().to_string(),
            kind,
            compute_domain: owner,
            max_members: 18,
            members: members.collect(),
        };
        self.domains().create(&PostParams::default(), &IMEXDomain::new(name, spec)).await.unwrap();
    }

    pub fn domains(&self) -> Api<IMEXDomain> {
        Api::all(self.client.clone())
    }

    pub fn nodes(&self) -> Api<IMEXNode> {
        Api::all(self.client.clone())
    }

    pub async fn domain(&self) -> IMEXDomain {
        self.domains().get(&shared()).await.unwrap()
    }

    pub async fn assign(&self, node: &str, domain: &str) {
        let patch = Patch::Merge(json!({"spec": {"domain": domain}}));
        self.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until the node's object fits.
    pub async fn until(&self, node: &str, fits: impl Fn(&IMEXNode) -> bool) -> IMEXNode {
        let fits = |node: Option<&IMEXNode>| node.is_some_and(&fits);
        await_condition(self.nodes(), node, fits).await.unwrap().unwrap()
    }

    /// Starts a node's two actors and brings the node to where it can enter.
    pub async fn node(&self, name: &str) -> Node {
        let node = Node::start(&self.runtime.root(), self.client.clone(), name);
        node.bring_up(self).await;
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        node
    }

    /// How often the channel map of the domain was written, and which nodes' objects how often.
    pub fn writes(&self) -> (usize, BTreeMap<String, usize>) {
        let (mut maps, mut nodes) = (0, BTreeMap::<String, usize>::new());
        let mut history = self.server.history();
        while let Some(change) = history.try_next().unwrap() {
            let epoch = |object: &serde_json::Value| object["status"]["epoch"].as_u64().unwrap_or_default();
            match change.kind() {
                "IMEXDomain" if change.previous().is_some_and(|old| epoch(old) != epoch(change.object())) => maps += 1,
                "IMEXNode" => {
                    *nodes.entry(change.object()["metadata"]["name"].as_str().unwrap().to_owned()).or_default() += 1;
                }
                _ => {}
            }
        }
        (maps, nodes)
    }
}

pub struct Node {
    pub name: String,
    pub scope: Scope,
    pub allocator: Addr<Message>,
    pub link: Addr<node_link::Message>,
    pub may_switch: Rc<RefCell<Option<Result<(), String>>>>,
}

impl Node {
    pub fn start(root: &Scope, client: Client, name: &str) -> Self {
        let scope = root.child(name);
        let later = heddle_actors::agent::Later::<Message>::default();
        let to_allocator = later.clone();
        let settings = node_link::Settings {
            client: client.clone(),
            node_name: name.into(),
            facts: Rc::new(|| NodeFacts {
                boot_id: Some("boot".into()),
                channel_count: Some(CHANNELS),
                addresses: vec!["127.10.0.1".into()],
            }),
            view: Rc::new(move |view: DomainView| to_allocator.tell(Message::View(view))),
        };
        let link = scope.supervise(Spec::default(), move || Ok(NodeLink::new(settings.clone())));
        let may_switch = Rc::new(RefCell::new(None));
        let said = may_switch.clone();
        let settings = channel_allocator::Settings {
            client,
            node_link: link.clone(),
            may_switch: Rc::new(move |may| *said.borrow_mut() = Some(may)),
            prepared: Rc::new(|_| {}),
            standing: Some(Standing::settled(ImexMode::DriverManaged)),
            restore: Rc::new(|| {}),
        };
        let allocator = scope.supervise(Spec::default(), move || Ok(ChannelAllocator::new(settings.clone())));
        later.set(&allocator);
        Self { name: name.into(), scope, allocator, link, may_switch }
    }

    pub async fn bring_up(&self, cluster: &Cluster) {
        self.fabric(Fabric::Ready(clique()));
        cluster.until(&self.name, |node| node.status.as_ref().is_some_and(|s| s.clique.is_some())).await;
        cluster.assign(&self.name, &shared()).await;
        self.allocator.tell(Message::Daemon(Ok(shared())));
    }

    pub fn fabric(&self, fabric: Fabric) {
        let inventory = Inventory { fabric, ..Default::default() };
        self.link.tell(node_link::Message::Inventory(inventory.clone()));
        self.allocator.tell(Message::Inventory(inventory));
    }

    pub async fn enter_in(&self, claim: &str, name: &str, mode: IsolationMode) -> Result<Grant, Fault> {
        let claim = ClaimKey { namespace: "team".into(), name: claim.into(), uid: claim.into() };
        self.allocator.ask(|reply| Message::Enter { claim, cd: cd(name), mode, reply }).await.unwrap()
    }

    pub async fn enter(&self, claim: &str, name: &str) -> u32 {
        match self.enter_in(claim, name, IsolationMode::Channel).await {
            Ok(Grant::Channel { channel, domain, channel_count }) => {
                assert_eq!((domain, channel_count), (shared(), CHANNELS));
                channel
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn leave(&self, claim: &str, cd: &str) {
        self.allocator.tell(Message::Leave { claim_uid: claim.into(), cd_uid: uid(cd) });
    }

    pub async fn missing(&self, claim: &str) -> Fault {
        self.allocator.ask(|reply| Message::Missing { claim_uid: claim.into(), reply }).await.unwrap()
    }

    /// Waits for the reason for which a claim waits.
    pub async fn until_missing(&self, claim: &str, reason: &str) -> Fault {
        loop {
            let fault = self.missing(claim).await;
            if fault.reason == reason {
                return fault;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub async fn verify(&self, prepared: Prepared) -> Result<(), Fault> {
        self.allocator.ask(|reply| Message::Verify { prepared, reply }).await.unwrap()
    }
}

pub fn lists(node: &IMEXNode, cd: &str) -> Option<u32> {
    Some(node.status.as_ref()?.channels.get(&uid(cd))?.channel)
}

pub fn run(test: impl Future<Output = ()>) {
    block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs") });
}
