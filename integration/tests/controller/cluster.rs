use std::future::Future;
use std::time::Duration;

use heddle_actors::controller;
use heddle_core::api::{
    ChannelSpec, ComputeDomain, ComputeDomainRef, ComputeDomainSpec, IMEXDomain, IMEXNode, IsolationMode, TemplateRef,
    crds,
};
use heddle_core::clique::CliqueId;
use heddle_core::identity::Agents;
use heddle_core::imex::{exclusive_domain_name, shared_domain_name};
use heddle_core::invariants::{Report, World};
use heddle_core::names;
use heddle_integration::api::{ApiServer, Options};
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use crate::agent::Agent;

pub fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

pub fn home() -> String {
    shared_domain_name(&clique())
}

pub fn exclusive(uid: &str) -> String {
    exclusive_domain_name(&clique(), uid)
}

/// An API with our CRDs, nodes with light agents, and a controller. The test plays scheduler and kubelet.
pub struct Cluster {
    pub server: ApiServer,
    pub client: Client,
    pub agents: Vec<Agent>,
    controller: Option<tokio::task::JoinHandle<()>>,
}

/// Runs a test on a System of its own, and no longer than it could ever need.
pub fn test(nodes: usize, scene: impl AsyncFnOnce(&mut Cluster)) {
    test_alone(nodes, async |cluster: &mut Cluster| {
        cluster.start_controller();
        scene(cluster).await;
    });
}

/// The same, without a controller.
pub fn test_alone(nodes: usize, scene: impl AsyncFnOnce(&mut Cluster)) {
    heddle_actors::runtime::block_on(async {
        let mut cluster = Cluster::start(nodes).await;
        let limit = Duration::from_secs(180);
        tokio::time::timeout(limit, scene(&mut cluster)).await.expect("the scene has not ended in time");
        cluster.check().await;
    });
}

impl Cluster {
    async fn start(nodes: usize) -> Self {
        let server = ApiServer::new(Options { seed: Some(1), ..Options::default() });
        let client = server.client();
        for crd in crds() {
            Api::<CustomResourceDefinition>::all(client.clone()).create(&PostParams::default(), &crd).await.unwrap();
        }
        for name in ["team", "other", "heddle"] {
            let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        }
        let mut cluster = Self { server, client, agents: Vec::new(), controller: None };
        for n in 0..nodes {
            cluster.add_node(&format!("n{n}")).await;
        }
        cluster
    }

    pub fn start_controller(&mut self) {
        let signer = controller::Signer {
            namespace: "heddle".into(),
            agents: Agents { namespace: "heddle".into(), service_account: "heddle-agent".into() },
            longest: 3600,
        };
        let settings = controller::Settings {
            client: self.client.clone(),
            requests: Default::default(),
            metrics: None,
            driver_match: Default::default(),
            signer: Some(signer),
            election: None,
        };
        let run = async move { controller::run(settings, std::future::pending()).await.unwrap() };
        self.controller = Some(tokio::task::spawn_local(run));
    }

    /// As `kill -9` would.
    pub fn kill_controller(&mut self) {
        self.controller.take().unwrap().abort();
    }

    pub async fn add_node(&mut self, name: &str) {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &node).await.unwrap();
        self.agents.push(Agent::new(name, self.client.clone()));
    }

    /// Lets the agents work until `seen` gives something, anew after each change.
    pub async fn until<T, F: Future<Output = Option<T>>>(&self, what: &str, seen: impl Fn() -> F) -> T {
        let wait = async {
            let mut changes = self.server.changes();
            loop {
                changes.mark_unchanged();
                for agent in &self.agents {
                    agent.work().await;
                }
                if let Some(found) = seen().await {
                    return found;
                }
                if !changes.has_changed().unwrap() {
                    changes.changed().await.unwrap();
                }
            }
        };
        match tokio::time::timeout(Duration::from_secs(20), wait).await {
            Ok(found) => found,
            Err(_) => {
                for kind in [
                    ("imex.heddle.dev", "imexdomains"),
                    ("imex.heddle.dev", "imexnodes"),
                    ("resource.nvidia.com", "computedomains"),
                ] {
                    for object in self.server.objects(kind.0, kind.1) {
                        eprintln!("{object}");
                    }
                }
                panic!("{what}: it has not come to that");
            }
        }
    }

    /// Waits until nothing has changed for a while: what idles writes nothing.
    pub async fn until_quiet(&self) -> u64 {
        let mut changes = self.server.changes();
        loop {
            for agent in &self.agents {
                agent.work().await;
            }
            changes.mark_unchanged();
            if tokio::time::timeout(Duration::from_millis(1500), changes.changed()).await.is_err() {
                return self.server.resource_version();
            }
        }
    }

    /// The same, where leaders renew their lease.
    pub async fn until_quiet_but_for_leases(&self) {
        let mut history = self.server.history();
        loop {
            for agent in &self.agents {
                agent.work().await;
            }
            let mut changed = false;
            while let Some(change) = history.try_next().unwrap() {
                changed |= change.kind() != "Lease";
            }
            if !changed {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
    }

    pub fn cds(&self) -> Api<ComputeDomain> {
        Api::namespaced(self.client.clone(), "team")
    }

    pub fn templates(&self) -> Api<ResourceClaimTemplate> {
        Api::namespaced(self.client.clone(), "team")
    }

    pub fn claims(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), "team")
    }

    pub fn domains(&self) -> Api<IMEXDomain> {
        Api::all(self.client.clone())
    }

    pub fn nodes(&self) -> Api<IMEXNode> {
        Api::all(self.client.clone())
    }

    pub fn agent(&self, name: &str) -> &Agent {
        self.agents.iter().find(|agent| agent.name == name).unwrap()
    }

    pub async fn create(&self, name: &str, mode: IsolationMode) -> ComputeDomainRef {
        self.create_with_template(name, mode, &format!("{name}-channel")).await
    }

    pub async fn create_with_template(&self, name: &str, mode: IsolationMode, template: &str) -> ComputeDomainRef {
        let channel =
            ChannelSpec { resource_claim_template: TemplateRef { name: template.into() }, ..Default::default() };
        let cd = ComputeDomain::new(name, ComputeDomainSpec { num_nodes: 0, isolation_mode: mode, channel });
        let cd = self.cds().create(&PostParams::default(), &cd).await.unwrap();
        ComputeDomainRef { namespace: "team".into(), name: name.into(), uid: cd.uid().unwrap() }
    }

    pub async fn delete(&self, name: &str) {
        self.cds().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// The pod comes to the node: its claim is made and allocated there, and the kubelet prepares it.
    pub async fn place(&self, cd: &ComputeDomainRef, mode: IsolationMode, node: &str) {
        let name = format!("{}-{node}", cd.name);
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {names::COMPUTE_DOMAIN_LABEL: cd.uid}},
            "spec": {"devices": {"requests": [{"name": "channel", "exactly": {"deviceClassName": names::CHANNEL_DEVICE_CLASS}}]}},
        }))
        .unwrap();
        self.claims().create(&PostParams::default(), &claim).await.unwrap();
        let result = json!({"driver": names::DRIVER, "pool": node, "device": "slot-0", "request": "channel"});
        let patch = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
        self.claims().patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        self.agent(node).want(cd.clone(), mode);
    }

    /// The pod ends: the kubelet unprepares its claim, which goes then.
    pub async fn end(&self, cd: &ComputeDomainRef, node: &str) {
        self.agent(node).unwant(&cd.uid);
        self.claims().delete(&format!("{}-{node}", cd.name), &DeleteParams::default()).await.unwrap();
    }

    /// Waits until the node has the ComputeDomain's channel; its domain and number.
    pub async fn prepared(&self, cd: &ComputeDomainRef, node: &str) -> (String, u32) {
        let seen = || async { self.agent(node).prepared(&cd.uid) };
        self.until(&format!("{} prepared on {node}", cd.name), seen).await
    }

    /// Waits until the condition has this status and reason; its message.
    pub async fn condition(&self, cd: &str, type_: &str, status: &str, reason: &str) -> String {
        let seen = || async {
            let found = self.cds().get_opt(cd).await.unwrap()?.status?;
            let condition = found.conditions.into_iter().find(|condition| condition.type_ == type_)?;
            (condition.status == status && condition.reason == reason).then_some(condition.message)
        };
        self.until(&format!("{cd} {type_}={status} {reason}"), seen).await
    }

    pub async fn served(&self, node: &str, domain: &str) {
        let seen = || async {
            let status = self.nodes().get_opt(node).await.unwrap()?.status?;
            (status.daemon.domain.as_deref() == Some(domain)).then_some(())
        };
        self.until(&format!("{node} serves {domain}"), seen).await;
    }

    pub async fn gone(&self, cd: &str) {
        let seen = || async { self.cds().get_opt(cd).await.unwrap().is_none().then_some(()) };
        self.until(&format!("{cd} is gone"), seen).await;
    }

    pub async fn freed(&self, domain: &str, uid: &str) {
        let seen = || async {
            let domain = self.domains().get_opt(domain).await.unwrap();
            let listed = domain.and_then(|domain| domain.status).is_some_and(|s| s.channels.contains_key(uid));
            (!listed).then_some(())
        };
        self.until(&format!("the channel of {uid} in {domain} is freed"), seen).await;
    }

    pub async fn events(&self, reason: &str) -> Vec<Event> {
        let api: Api<Event> = Api::all(self.client.clone());
        let all = api.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
    }

    /// The invariants hold after every change that there has been.
    pub async fn check(&self) {
        let mut world = World::default();
        let mut history = self.server.history();
        while let Some(change) = history.try_next().unwrap() {
            let object = change.object().clone();
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_string();
            let gone = change.event == heddle_integration::api::EventType::Deleted;
            match change.kind() {
                "IMEXDomain" if gone => drop(world.domains.remove(&name)),
                "IMEXDomain" => drop(world.domains.insert(name, serde_json::from_value(object).unwrap())),
                "IMEXNode" if gone => drop(world.nodes.remove(&name)),
                // One that cannot be read is what it was before.
                "IMEXNode" => drop(serde_json::from_value(object).map(|node| world.nodes.insert(name, node))),
                _ => continue,
            }
            let report = Report::of(&world);
            assert!(report.holds(), "after version {}: {report:?}", change.resource_version);
        }
    }
}
