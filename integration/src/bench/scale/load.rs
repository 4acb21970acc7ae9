//! ComputeDomains with claims, from their creation to their end.

use std::time::{Duration, Instant};

use anyhow::Context;
use heddle_core::api::{
    AllocationMode, ChannelSpec, ComputeDomain, ComputeDomainRef, ComputeDomainSpec, IsolationMode, TemplateRef,
};
use heddle_core::names;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

use super::fleet::Fleet;
use crate::bench::figures::Distribution;

/// How long each step took.
#[derive(Debug, Default)]
pub struct Times {
    /// ComputeDomain created to its template exists.
    pub template: Vec<Duration>,
    /// Claim allocated to prepared.
    pub prepared: Vec<Duration>,
    /// ComputeDomain deleted to gone.
    pub gone: Vec<Duration>,
}

impl Times {
    /// Each with what it is.
    pub fn distributions(self) -> [(&'static str, Distribution); 3] {
        [
            ("ComputeDomain created to its template", Distribution::new(self.template)),
            ("claim allocated to prepared", Distribution::new(self.prepared)),
            ("ComputeDomain deleted to gone", Distribution::new(self.gone)),
        ]
    }
}

/// One ComputeDomain on its way.
pub struct Job {
    cd: ComputeDomainRef,
    nodes: Vec<String>,
    /// How long its claims are held; for ever if none.
    hold: Option<Duration>,
    step: Step,
}

enum Step {
    /// Since when it waits for its template.
    Created(Instant),
    /// When the claim of each node was allocated.
    Preparing(Vec<(String, Instant)>),
    /// Since when all are prepared.
    Held(Instant),
    Leaving,
    /// Since when.
    Deleted(Instant),
}

/// What became of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits.
    Waits,
    /// All its claims are prepared, and stay so.
    Holds,
    /// It is gone.
    Done,
}

impl Job {
    /// Creates the ComputeDomain; its claims will be on these nodes.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn start(
        client: &Client,
        namespace: &str,
        name: &str,
        nodes: Vec<String>,
        hold: Option<Duration>,
    ) -> anyhow::Result<Self> {
        let resource_claim_template = TemplateRef { name: name.into() };
        let channel = ChannelSpec { resource_claim_template, allocation_mode: AllocationMode::Single };
        let spec = ComputeDomainSpec { num_nodes: 0, isolation_mode: IsolationMode::Channel, channel };
        let api: Api<ComputeDomain> = Api::namespaced(client.clone(), namespace);
        let made = api.create(&PostParams::default(), &ComputeDomain::new(name, spec)).await;
        let made = made.with_context(|| format!("ComputeDomain {name} was refused"))?;
        let uid = made.uid().unwrap_or_default();
        let cd = ComputeDomainRef { namespace: namespace.into(), name: name.into(), uid };
        Ok(Self { cd, nodes, hold, step: Step::Created(Instant::now()) })
    }

    /// Goes on as far as it can.
    ///
    /// # Errors
    /// When the API server refuses something.
    pub async fn advance(&mut self, fleet: &mut Fleet, times: &mut Times) -> anyhow::Result<Progress> {
        let client = fleet.client();
        match &self.step {
            Step::Created(since) => {
                if let Some(at) = fleet.templates.get(&self.cd.uid) {
                    times.template.push(at.saturating_duration_since(*since));
                    let mut allocated = Vec::new();
                    for node in &self.nodes {
                        self.place(&client, node).await?;
                        allocated.push((node.clone(), Instant::now()));
                        fleet.want(node, &self.cd);
                    }
                    self.step = Step::Preparing(allocated);
                }
            }
            Step::Preparing(allocated) => {
                let at = |node: &str| fleet.prepared(node, &self.cd.uid);
                if allocated.iter().all(|(node, _)| at(node).is_some()) {
                    let took = allocated.iter().filter_map(|(node, since)| Some(at(node)?.duration_since(*since)));
                    times.prepared.extend(took);
                    for node in &self.nodes {
                        self.tell(&client, node).await?;
                    }
                    self.step = Step::Held(Instant::now());
                }
            }
            Step::Held(since) => match self.hold {
                None => return Ok(Progress::Holds),
                Some(hold) if since.elapsed() >= hold => {
                    self.nodes.iter().for_each(|node| fleet.unwant(node, &self.cd.uid));
                    self.step = Step::Leaving;
                }
                Some(_) => {}
            },
            Step::Leaving => {
                if !self.nodes.iter().any(|node| fleet.lists(node, &self.cd.uid)) {
                    for node in &self.nodes {
                        self.claims(&client).delete(&self.claim(node), &DeleteParams::default()).await?;
                    }
                    let api: Api<ComputeDomain> = Api::namespaced(client, &self.cd.namespace);
                    api.delete(&self.cd.name, &DeleteParams::default()).await?;
                    self.step = Step::Deleted(Instant::now());
                }
            }
            Step::Deleted(since) => {
                if let Some(at) = fleet.gone.remove(&self.cd.uid) {
                    times.gone.push(at.saturating_duration_since(*since));
                    return Ok(Progress::Done);
                }
            }
        }
        Ok(Progress::Waits)
    }

    fn claims(&self, client: &Client) -> Api<ResourceClaim> {
        Api::namespaced(client.clone(), &self.cd.namespace)
    }

    fn claim(&self, node: &str) -> String {
        format!("{}-{node}", self.cd.name)
    }

    /// What scheduler and claim controller write for a pod on the node.
    async fn place(&self, client: &Client, node: &str) -> anyhow::Result<()> {
        let name = self.claim(node);
        let exactly = json!({"deviceClassName": names::CHANNEL_DEVICE_CLASS});
        let claim = json!({"metadata": {"name": name, "labels": {names::COMPUTE_DOMAIN_LABEL: self.cd.uid}},
            "spec": {"devices": {"requests": [{"name": "channel", "exactly": exactly}]}}});
        let api = self.claims(client);
        api.create(&PostParams::default(), &serde_json::from_value::<ResourceClaim>(claim)?).await?;
        let result = json!({"driver": names::DRIVER, "pool": node, "device": "slot-0", "request": "channel"});
        let status = json!({"status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": self.cd.uid}]}});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }

    /// What the agent says of a prepared claim.
    async fn tell(&self, client: &Client, node: &str) -> anyhow::Result<()> {
        let device = json!({"driver": names::DRIVER, "pool": node, "device": "slot-0", "conditions": [
            {"type": "Ready", "status": "True", "reason": "Prepared", "message": "channel",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let status = json!({"status": {"devices": [device]}});
        let (api, name) = (self.claims(client), self.claim(node));
        let patched = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await;
        patched.map(drop).context("the status of a claim was refused")
    }
}
