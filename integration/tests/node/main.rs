//! NodeLink and ChannelAllocator of several nodes against the embedded API; the test plays the controller.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_actors::channel_allocator::{self, ChannelAllocator, Message};
use heddle_actors::node_link::{self, DomainView, NodeFacts, NodeLink};
use heddle_actors::runtime::{Addr, Runtime, Scope, Spec, block_on};
use heddle_core::api::{
    ComputeDomain, ComputeDomainRef, DaemonStatus, DomainKind, EpochMark, IMEXDomain, IMEXDomainSpec, IMEXNode,
    IsolationMode, Member, NodeChannel, crds,
};
use heddle_core::claim::{ClaimKey, Grant, Prepared};
use heddle_core::clique::CliqueId;
use heddle_core::fault::{Class, Fault, reason};
use heddle_core::imex::{exclusive_domain_name, shared_domain_name};
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::protocol;
use heddle_integration::api::{ApiServer, Options, Request, Verb};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Status;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

const CHANNELS: u32 = 2048;

fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

fn shared() -> String {
    shared_domain_name(&clique())
}

thread_local! {
    /// UIDs of the ComputeDomains of this test.
    static UIDS: RefCell<BTreeMap<String, String>> = RefCell::default();
}

fn uid(name: &str) -> String {
    UIDS.with_borrow(|uids| uids[name].clone())
}

fn cd(name: &str) -> ComputeDomainRef {
    ComputeDomainRef { namespace: "team".into(), name: name.into(), uid: uid(name) }
}

fn prepared(claim: &str, cd: &str, channel: u32) -> Prepared {
    Prepared { claim_uid: claim.into(), cd_uid: uid(cd), channel, domain: shared() }
}

/// A cluster with one shared domain.
struct Cluster {
    server: ApiServer,
    client: Client,
    runtime: Runtime,
}

impl Cluster {
    async fn new(nodes: &[&str]) -> Self {
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

    fn compute_domains(&self) -> Api<ComputeDomain> {
        Api::namespaced(self.client.clone(), "team")
    }

    async fn make_compute_domain(&self, name: &str) {
        let channel = json!({"resourceClaimTemplate": {"name": name}});
        let made = json!({"metadata": {"name": name, "finalizers": ["test/hold"]}, "spec": {"channel": channel}});
        let made = serde_json::from_value(made).unwrap();
        let made = self.compute_domains().create(&PostParams::default(), &made).await.unwrap();
        UIDS.with_borrow_mut(|uids| uids.insert(name.into(), made.uid().unwrap()));
    }

    async fn make_domain(&self, name: &str, kind: DomainKind, owner: Option<ComputeDomainRef>, nodes: &[&str]) {
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

    fn domains(&self) -> Api<IMEXDomain> {
        Api::all(self.client.clone())
    }

    fn nodes(&self) -> Api<IMEXNode> {
        Api::all(self.client.clone())
    }

    async fn domain(&self) -> IMEXDomain {
        self.domains().get(&shared()).await.unwrap()
    }

    async fn assign(&self, node: &str, domain: &str) {
        let patch = Patch::Merge(json!({"spec": {"domain": domain}}));
        self.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until the node's object fits.
    async fn until(&self, node: &str, fits: impl Fn(&IMEXNode) -> bool) -> IMEXNode {
        let fits = |node: Option<&IMEXNode>| node.is_some_and(&fits);
        await_condition(self.nodes(), node, fits).await.unwrap().unwrap()
    }

    /// Starts a node's two actors and brings the node to where it can enter.
    async fn node(&self, name: &str) -> Node {
        let node = Node::start(&self.runtime.root(), self.client.clone(), name);
        node.bring_up(self).await;
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        node
    }

    /// How often the channel map of the domain was written, and which nodes' objects how often.
    fn writes(&self) -> (usize, BTreeMap<String, usize>) {
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

struct Node {
    name: String,
    scope: Scope,
    allocator: Addr<Message>,
    link: Addr<node_link::Message>,
    may_switch: Rc<RefCell<Option<Result<(), String>>>>,
}

impl Node {
    fn start(root: &Scope, client: Client, name: &str) -> Self {
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
            restore: Rc::new(|| {}),
        };
        let allocator = scope.supervise(Spec::default(), move || Ok(ChannelAllocator::new(settings.clone())));
        later.set(&allocator);
        Self { name: name.into(), scope, allocator, link, may_switch }
    }

    async fn bring_up(&self, cluster: &Cluster) {
        self.fabric(Fabric::Ready(clique()));
        cluster.until(&self.name, |node| node.status.as_ref().is_some_and(|s| s.clique.is_some())).await;
        cluster.assign(&self.name, &shared()).await;
        self.allocator.tell(Message::Daemon(Ok(shared())));
    }

    fn fabric(&self, fabric: Fabric) {
        let inventory = Inventory { fabric, ..Default::default() };
        self.link.tell(node_link::Message::Inventory(inventory.clone()));
        self.allocator.tell(Message::Inventory(inventory));
    }

    async fn enter_in(&self, claim: &str, name: &str, mode: IsolationMode) -> Result<Grant, Fault> {
        let claim = ClaimKey { namespace: "team".into(), name: claim.into(), uid: claim.into() };
        self.allocator.ask(|reply| Message::Enter { claim, cd: cd(name), mode, reply }).await.unwrap()
    }

    async fn enter(&self, claim: &str, name: &str) -> u32 {
        match self.enter_in(claim, name, IsolationMode::Channel).await {
            Ok(Grant::Channel { channel, domain, channel_count }) => {
                assert_eq!((domain, channel_count), (shared(), CHANNELS));
                channel
            }
            other => panic!("{other:?}"),
        }
    }

    fn leave(&self, claim: &str, cd: &str) {
        self.allocator.tell(Message::Leave { claim_uid: claim.into(), cd_uid: uid(cd) });
    }

    async fn missing(&self, claim: &str) -> Fault {
        self.allocator.ask(|reply| Message::Missing { claim_uid: claim.into(), reply }).await.unwrap()
    }

    /// Waits for the reason for which a claim waits.
    async fn until_missing(&self, claim: &str, reason: &str) -> Fault {
        loop {
            let fault = self.missing(claim).await;
            if fault.reason == reason {
                return fault;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn verify(&self, prepared: Prepared) -> Result<(), Fault> {
        self.allocator.ask(|reply| Message::Verify { prepared, reply }).await.unwrap()
    }
}

fn lists(node: &IMEXNode, cd: &str) -> Option<u32> {
    Some(node.status.as_ref()?.channels.get(&uid(cd))?.channel)
}

fn run(test: impl Future<Output = ()>) {
    block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs") });
}

#[test]
fn all_nodes_of_a_fresh_compute_domain_get_one_number_by_one_allocation() {
    run(async {
        let names = ["n0", "n1", "n2", "n3", "n4", "n5"];
        let cluster = Cluster::new(&names).await;
        let mut nodes = Vec::new();
        for name in names {
            nodes.push(cluster.node(name).await);
        }
        let entered = futures::future::join_all(nodes.iter().map(|node| node.enter("a", "green"))).await;
        assert_eq!(entered, [1; 6]);
        assert_eq!(cluster.writes().0, 1, "one allocation wins");
        for name in names {
            assert_eq!(lists(&cluster.nodes().get(name).await.unwrap(), "green"), Some(1));
        }
    });
}

#[test]
fn compute_domains_that_come_at_once_never_share_a_number() {
    run(async {
        let names = ["n0", "n1", "n2"];
        let cluster = Cluster::new(&names).await;
        let mut nodes = Vec::new();
        for name in names {
            nodes.push(cluster.node(name).await);
        }
        let colours = ["green", "blue", "yellow", "red", "pink"];
        let all = nodes
            .iter()
            .flat_map(|node| colours.map(|colour| async move { (colour, node.enter(colour, colour).await) }));
        let mut numbers = BTreeMap::<&str, BTreeSet<u32>>::new();
        for (colour, channel) in futures::future::join_all(all).await {
            numbers.entry(colour).or_default().insert(channel);
        }
        assert!(numbers.values().all(|of_one| of_one.len() == 1), "{numbers:?}");
        let distinct: BTreeSet<_> = numbers.values().flatten().collect();
        assert_eq!(distinct.len(), colours.len(), "{numbers:?}");
        assert_eq!(cluster.writes().0, colours.len());
    });
}

#[test]
fn the_first_claim_enters_the_last_one_leaves_and_nothing_else_is_written() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        assert_eq!(node.enter("a", "green").await, 1);
        let before = cluster.server.resource_version();
        assert_eq!(node.enter("b", "green").await, 1);
        assert_eq!(node.enter("b", "green").await, 1, "asked again");
        node.leave("a", "green");
        node.leave("never-seen", "green");
        node.leave("b", "blue");
        assert!(node.verify(prepared("b", "green", 1)).await.is_ok());
        assert_eq!(cluster.server.resource_version(), before);
        node.leave("b", "green");
        let left = cluster.until("n0", |node| lists(node, "green").is_none()).await;
        assert!(left.status.unwrap().observed.is_some(), "a leave says on which map it was decided");
        assert_eq!(cluster.server.resource_version(), before + 1);
    });
}

#[test]
fn an_enter_that_is_fenced_on_its_way_is_decided_anew() {
    run(async {
        let cluster = Cluster::new(&["n0", "n1"]).await;
        assert_eq!(cluster.node("n1").await.enter("x", "green").await, 1);

        // The first write of an entry is held up until the controller has drained the number and fenced the node.
        let (direct, armed) = (cluster.client.clone(), Arc::new(AtomicBool::new(true)));
        let held_up = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (direct, armed) = (direct.clone(), armed.clone());
            async move {
                let writes =
                    request.method() == http::Method::PUT && request.uri().path().ends_with("imexnodes/n0/status");
                if writes {
                    let domains = Api::<IMEXDomain>::all(direct.clone());
                    let mut domain = domains.get(&shared()).await.unwrap();
                    let node = Api::<IMEXNode>::all(direct.clone()).get("n0").await.unwrap();
                    let ready = node.spec.domain.is_some() && node.status.is_some_and(|s| s.channel_count > 0);
                    if ready && armed.swap(false, Ordering::Relaxed) {
                        domain.status = protocol::drain(&domain, &[uid("green")].into());
                        let domain = domains.replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
                        let fence = EpochMark { domain: shared(), epoch: domain.status.unwrap().epoch };
                        let patch = Patch::Merge(json!({"spec": {"fence": fence}}));
                        let nodes = Api::<IMEXNode>::all(direct.clone());
                        nodes.patch("n0", &PatchParams::default(), &patch).await.unwrap();
                    }
                }
                direct.send(request).await
            }
        });
        let node = Node::start(&cluster.runtime.root(), Client::new(held_up, "default"), "n0");
        node.bring_up(&cluster).await;
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        let entering = node.enter("a", "green");
        let watching = async {
            node.until_missing("a", reason::CHANNEL_DRAINING).await;
            let fenced = cluster.nodes().get("n0").await.unwrap();
            assert_eq!(lists(&fenced, "green"), None, "the entry was never written");
            // The number comes back, and the ComputeDomain is given another.
            cluster
                .nodes()
                .patch("n1", &PatchParams::default(), &Patch::Merge(json!({"spec": {"fence": fenced.spec.fence}})))
                .await
                .unwrap();
            let mut domain = cluster.domain().await;
            domain.status.as_mut().unwrap().channels.clear();
            domain.status.as_mut().unwrap().epoch += 1;
            cluster.domains().replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
        };
        let (channel, ()) = futures::join!(entering, watching);
        assert_eq!(channel, 2, "a freed number rests while others are free");
    });
}

#[test]
fn a_leave_is_tried_until_it_is_done() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        node.enter("a", "green").await;
        let refused = Arc::new(AtomicU32::new(0));
        let count = refused.clone();
        cluster.server.fail_requests(move |request: &Request| {
            let write = request.verb == Verb::Update && request.plural == "imexnodes";
            (write && count.fetch_add(1, Ordering::Relaxed) < 3)
                .then(|| Status::failure("try later", "ServiceUnavailable").with_code(503))
        });
        node.leave("a", "green");
        cluster.until("n0", |node| lists(node, "green").is_none()).await;
        assert!(refused.load(Ordering::Relaxed) > 3);
    });
}

#[test]
fn a_leave_that_arrives_late_takes_nothing_from_a_claim_that_came_meanwhile() {
    for restarted in [false, true] {
        run(async {
            let cluster = Cluster::new(&["n0"]).await;
            let (armed, held) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
            let (direct, lose, keep) = (cluster.client.clone(), armed.clone(), held.clone());
            let lossy = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let (direct, lose, keep) = (direct.clone(), lose.clone(), keep.clone());
                async move {
                    let writes = request.method() == http::Method::PUT && request.uri().path().contains("imexnodes");
                    if writes && lose.swap(false, Ordering::Relaxed) {
                        *keep.lock().unwrap() = Some(request);
                        return Err(tower::BoxError::from("connection reset by peer"));
                    }
                    Ok(direct.send(request).await?)
                }
            });
            let mut node = Node::start(&cluster.runtime.root(), Client::new(lossy, "default"), "n0");
            node.bring_up(&cluster).await;
            node.allocator.tell(Message::Restore { claims: Vec::new() });
            let channel = node.enter("a", "green").await;
            armed.store(true, Ordering::Relaxed);
            node.leave("a", "green");
            let late = loop {
                if let Some(late) = held.lock().unwrap().take() {
                    break late;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            if restarted {
                node.scope.stop();
                node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
                node.bring_up(&cluster).await;
            }
            assert_eq!(node.enter("b", "green").await, channel);
            let answer = cluster.client.send(late).await.unwrap();
            assert_eq!(answer.status(), http::StatusCode::CONFLICT, "restarted: {restarted}");
            assert_eq!(lists(&cluster.nodes().get("n0").await.unwrap(), "green"), Some(channel));
        });
    }
}

#[test]
fn a_claim_that_has_waited_gets_no_channel_for_a_compute_domain_that_is_going_away() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        let going = async {
            node.until_missing("b", reason::NVML).await;
            let blue = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            cluster.compute_domains().patch("blue", &PatchParams::default(), &blue).await.unwrap();
            for name in ["green", "blue"] {
                cluster.compute_domains().delete(name, &Default::default()).await.unwrap();
            }
            node.bring_up(&cluster).await;
        };
        let enter = |claim, name| node.enter_in(claim, name, IsolationMode::Channel);
        let (green, blue, ()) = futures::join!(enter("a", "green"), enter("b", "blue"), going);
        for (answer, expected) in [(green, reason::COMPUTE_DOMAIN_DELETING), (blue, reason::COMPUTE_DOMAIN_GONE)] {
            let fault = answer.unwrap_err();
            assert_eq!((fault.class, fault.reason), (Class::Permanent, expected), "{fault}");
        }
        assert_eq!(cluster.domain().await.status, None, "nothing was ever allocated");
    });
}

#[test]
fn a_compute_domain_that_is_going_away_is_still_entered_where_it_has_a_channel() {
    run(async {
        let cluster = Cluster::new(&["n0", "n1"]).await;
        let (first, second) = (cluster.node("n0").await, cluster.node("n1").await);
        assert_eq!(first.enter("a", "green").await, 1);
        cluster.compute_domains().delete("green", &Default::default()).await.unwrap();
        assert_eq!(second.enter("b", "green").await, 1, "until the controller drains it");
    });
}

#[test]
fn what_a_claim_waits_for_is_said_at_every_stage() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        let stages = async {
            node.until_missing("a", reason::NVML).await;
            node.fabric(Fabric::Pending("probing".into()));
            node.until_missing("a", reason::FABRIC_UNHEALTHY).await;
            node.fabric(Fabric::Ready(clique()));
            let fault = node.until_missing("a", reason::DOMAIN_PENDING).await;
            assert!(fault.message.contains("team/green") && fault.message.contains("not assigned"), "{fault}");
            cluster.assign("n0", "exclusive-other").await;
            loop {
                if node.missing("a").await.message.contains("still belongs to exclusive-other") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            cluster.assign("n0", &shared()).await;
            node.until_missing("a", reason::DAEMON_NOT_READY).await;
            node.allocator.tell(Message::Daemon(Err("the IMEX daemon is INIT_GPU, not READY".into())));
            let fault = node.until_missing("a", reason::DAEMON_NOT_READY).await;
            assert_eq!(fault.class, Class::Retryable);
            node.allocator.tell(Message::Daemon(Ok(shared())));
        };
        let (channel, ()) = futures::join!(node.enter("a", "green"), stages);
        assert_eq!(channel, 1);
        assert_eq!(node.missing("a").await.reason, reason::SUPERSEDED);
    });
}

#[test]
fn exhaustion_is_said_and_passes_when_a_number_is_freed() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let mut domain = cluster.domain().await;
        let mut status = domain.status.take().unwrap_or_default();
        for channel in 1..CHANNELS {
            let entry =
                heddle_core::api::ChannelEntry { channel, compute_domain: "team/x".into(), ..Default::default() };
            status.channels.insert(format!("uid-{channel}"), entry);
        }
        status.epoch = 1;
        domain.status = Some(status);
        let domain = cluster.domains().replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
        let freed = async {
            let fault = node.until_missing("a", reason::CHANNELS_EXHAUSTED).await;
            assert_eq!(fault.message, format!("no free IMEX channel in domain {} (2047 in use)", shared()));
            let mut domain = domain.clone();
            let status = domain.status.as_mut().unwrap();
            status.channels.remove("uid-77");
            status.epoch += 1;
            cluster.domains().replace_status(&shared(), &PostParams::default(), &domain).await.unwrap();
        };
        let (channel, ()) = futures::join!(node.enter("a", "green"), freed);
        assert_eq!(channel, 77);
    });
}

#[test]
fn a_restarted_agent_keeps_what_is_prepared_and_leaves_the_rest() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let (green, blue) = (node.enter("a", "green").await, node.enter("b", "blue").await);
        node.scope.stop();

        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        node.bring_up(&cluster).await;
        assert_eq!(node.enter("c", "green").await, green, "enters do not wait for the checkpoints");
        assert!(lists(&cluster.nodes().get("n0").await.unwrap(), "blue") == Some(blue), "but leaves do");
        assert!(node.may_switch.borrow().as_ref().is_none_or(Result::is_err));
        node.allocator.tell(Message::Restore { claims: vec![prepared("a", "green", green)] });
        let after = cluster.until("n0", |node| lists(node, "blue").is_none()).await;
        assert_eq!(lists(&after, "green"), Some(green));
        node.leave("c", "green");
        assert!(node.verify(prepared("a", "green", green)).await.is_ok());
        assert!(node.may_switch.borrow().as_ref().is_some_and(Result::is_err));
        node.leave("a", "green");
        cluster.until("n0", |node| lists(node, "green").is_none()).await;
        assert_eq!(*node.may_switch.borrow(), Some(Ok(())));
    });
}

#[test]
fn a_lost_entry_is_put_back_with_its_number() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let channel = node.enter("a", "green").await;
        cluster.nodes().delete("n0", &Default::default()).await.unwrap();
        let back = cluster.until("n0", |node| lists(node, "green").is_some()).await;
        assert_eq!(lists(&back, "green"), Some(channel));
        assert!(node.verify(prepared("a", "green", channel)).await.is_ok());
    });
}

#[test]
fn a_clash_is_said_and_the_compute_domain_gets_no_new_claims() {
    run(async {
        let cluster = Cluster::new(&["n0", "n1"]).await;
        let (other, node) =
            (cluster.node("n1").await, Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0"));
        assert_eq!(other.enter("x", "blue").await, 1);
        node.bring_up(&cluster).await;
        node.allocator.tell(Message::Restore { claims: vec![prepared("a", "green", 1)] });
        let fault = loop {
            // Until the node has read the domain there is nothing that contradicts the checkpoint.
            if let Err(fault) = node.verify(prepared("a", "green", 1)).await {
                break fault;
            }
        };
        assert_eq!(fault.reason, reason::CHANNEL_CLASH);
        let fault = node.enter_in("b", "green", IsolationMode::Channel).await.unwrap_err();
        assert_eq!(fault.reason, reason::CHANNEL_CLASH);
        assert_eq!(node.enter("c", "blue").await, 1, "others are not disturbed");
        node.leave("a", "green");
        assert_eq!(node.enter("b", "green").await, 2, "and it passes with the claim");
    });
}

#[test]
fn an_exclusive_claim_waits_for_its_domain_and_a_suspended_daemon_grants_nothing() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let own = exclusive_domain_name(&clique(), &uid("red"));
        let moving = async {
            node.until_missing("a", reason::DOMAIN_PENDING).await;
            let may = node.allocator.ask(|reply| Message::Suspend { reply }).await.unwrap();
            assert_eq!(may, Ok(()), "a claim that waits for the switch does not hold it up");
            cluster.make_domain(&own, DomainKind::Exclusive, Some(cd("red")), &["n0"]).await;
            cluster.assign("n0", &own).await;
            node.until_missing("a", reason::DAEMON_NOT_READY).await;
            node.allocator.tell(Message::Daemon(Ok(own.clone())));
        };
        let (grant, ()) = futures::join!(node.enter_in("a", "red", IsolationMode::Domain), moving);
        assert_eq!(grant, Ok(Grant::Channel { channel: 1, domain: own.clone(), channel_count: CHANNELS }));
        let may = node.allocator.ask(|reply| Message::Suspend { reply }).await.unwrap();
        assert!(may.unwrap_err().contains("prepared"));
    });
}

#[test]
fn a_node_without_fabric_gives_no_channel_and_one_with_a_sick_one_says_so() {
    run(async {
        let cluster = Cluster::new(&[]).await;
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        node.fabric(Fabric::None);
        assert_eq!(node.enter_in("a", "green", IsolationMode::Channel).await, Ok(Grant::NoFabric));
        node.fabric(Fabric::Unhealthy("degraded bandwidth".into()));
        let fault = node.enter_in("b", "green", IsolationMode::Channel).await.unwrap_err();
        assert!(fault.reason == reason::FABRIC_UNHEALTHY && fault.message.contains("degraded bandwidth"), "{fault}");
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        assert!(node.allocator.ask(|reply| Message::Suspend { reply }).await.unwrap().is_ok(), "nothing is held");
    });
}

#[test]
fn a_cancelled_claim_gives_back_what_was_entered_for_it() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        node.enter("a", "green").await;
        node.allocator.tell(Message::Cancel { claim_uid: "a".into() });
        cluster.until("n0", |node| lists(node, "green").is_none()).await;
    });
}

#[test]
fn the_status_says_everything_and_is_written_only_when_it_changes() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        let node = cluster.node("n0").await;
        let daemon =
            DaemonStatus { state: "READY".into(), domain: Some(shared()), index: Some(0), ..Default::default() };
        node.link.tell(node_link::Message::Daemon(daemon.clone()));
        let seen = cluster.until("n0", |node| node.status.as_ref().is_some_and(|s| s.daemon.state == "READY")).await;
        let status = seen.status.clone().unwrap();
        assert_eq!(status.daemon, daemon);
        assert_eq!((status.clique, status.boot_id.as_str()), (Some(clique().to_string()), "boot"));
        assert_eq!((status.channel_count, status.addresses), (CHANNELS, vec!["127.10.0.1".to_owned()]));
        let version = seen.resource_version();
        node.link.tell(node_link::Message::Daemon(daemon));
        node.fabric(Fabric::Ready(clique()));
        // A fabric that is not well is no other clique.
        node.fabric(Fabric::Unhealthy("x".into()));
        node.fabric(Fabric::Ready(clique()));
        node.enter("a", "green").await;
        let after = cluster.nodes().get("n0").await.unwrap();
        let next = |version: Option<String>| version.unwrap().parse::<u64>().unwrap();
        // The allocation and the entry.
        assert_eq!(next(after.resource_version()), next(version) + 2);
        let _: &NodeChannel = &after.status.unwrap().channels[&uid("green")];
    });
}

#[test]
fn an_api_that_comes_late_or_drops_its_watches_is_waited_for() {
    run(async {
        let cluster = Cluster::new(&["n0"]).await;
        cluster.server.fail_requests(|request: &Request| {
            (request.user_agent != "test").then(|| Status::failure("not yet", "ServiceUnavailable").with_code(503))
        });
        let node = Node::start(&cluster.runtime.root(), cluster.client.clone(), "n0");
        node.fabric(Fabric::Ready(clique()));
        assert!(
            node.verify(prepared("a", "green", 3)).await.is_ok(),
            "the checkpoint is enough while nothing is known"
        );
        node.leave("a", "green");
        cluster.server.heal();
        node.bring_up(&cluster).await;
        node.allocator.tell(Message::Restore { claims: Vec::new() });
        cluster.server.disconnect();
        assert_eq!(node.enter("a", "green").await, 1);
    });
}
