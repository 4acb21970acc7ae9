//! What the cluster's objects say at one moment, in the terms of the picture.

use std::collections::BTreeMap;

use heddle_core::api::{ComputeDomain, IMEXDomain, IMEXNode, IsolationMode, ReadyState};
use heddle_core::names;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// All objects that the demo looks at.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// ComputeDomains.
    pub compute_domains: Vec<ComputeDomain>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// Claims.
    pub claims: Vec<ResourceClaim>,
    /// Slices.
    pub slices: Vec<ResourceSlice>,
    /// IMEX domains.
    pub domains: Vec<IMEXDomain>,
    /// What each node serves and has entered.
    pub nodes: Vec<IMEXNode>,
    /// Deployments.
    pub deployments: Vec<Deployment>,
    /// ReplicaSets.
    pub replica_sets: Vec<ReplicaSet>,
    /// Jobs.
    pub jobs: Vec<Job>,
    /// Warnings.
    pub events: Vec<Event>,
}

/// A pod, as the report shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `namespace/name` of its ComputeDomain.
    pub compute_domain: Option<String>,
    /// The node it is bound to.
    pub node: Option<String>,
    /// `Pending`, `Running`, …
    pub phase: String,
    /// Why it does not run.
    pub reason: Option<String>,
    /// Indexes of its GPUs on the node.
    pub gpus: Vec<u32>,
    /// The channel that its containers can open.
    pub channel: Option<u32>,
}

impl PodView {
    /// Whether it runs or has come to its end.
    pub fn is_settled(&self) -> bool {
        self.phase == "Running" || self.phase == "Succeeded"
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A ComputeDomain, as the report shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ComputeDomainView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// `Channel` or `Domain`.
    pub isolation_mode: IsolationMode,
    /// Whether its status says so.
    pub ready: bool,
    /// Its channels.
    pub cliques: Vec<CliqueView>,
    /// Names of the nodes that use it.
    pub nodes: Vec<String>,
}

/// A channel of a ComputeDomain.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CliqueView {
    /// The NVLink partition.
    pub clique: String,
    /// The IMEX domain.
    pub imex_domain: String,
    /// The number in it.
    pub channel: u32,
}

impl Snapshot {
    /// Lists everything.
    ///
    /// # Errors
    /// When the API does not answer.
    pub async fn take(client: &Client) -> kube::Result<Self> {
        Ok(Self {
            compute_domains: all(client).await?,
            pods: all(client).await?,
            claims: all(client).await?,
            slices: all(client).await?,
            domains: all(client).await?,
            nodes: all(client).await?,
            deployments: all(client).await?,
            replica_sets: all(client).await?,
            jobs: all(client).await?,
            events: (all::<Event>(client).await?.into_iter())
                .filter(|event| event.type_.as_deref() == Some("Warning"))
                .collect(),
        })
    }

    /// The ComputeDomains by name.
    pub fn compute_domains(&self) -> Vec<ComputeDomainView> {
        (self.compute_domains.iter())
            .map(|cd| {
                let uid = cd.uid().unwrap_or_default();
                let channels = self.domains.iter().filter_map(|domain| {
                    let entry = domain.status.as_ref()?.channels.get(&uid)?;
                    Some(CliqueView {
                        clique: domain.spec.clique.clone(),
                        imex_domain: domain.name_any(),
                        channel: entry.channel,
                    })
                });
                let status = cd.status.as_ref();
                let users = self
                    .nodes
                    .iter()
                    .filter(|node| node.status.as_ref().is_some_and(|status| status.channels.contains_key(&uid)));
                ComputeDomainView {
                    namespace: cd.namespace().unwrap_or_default(),
                    name: cd.name_any(),
                    isolation_mode: cd.spec.isolation_mode,
                    ready: status.and_then(|status| status.status) == Some(ReadyState::Ready),
                    cliques: channels.collect(),
                    nodes: users.map(ResourceExt::name_any).collect(),
                }
            })
            .collect()
    }

    /// The pods by namespace and name. `channels` are those that containers can really open, by pod UID.
    pub fn pods(&self, channels: &BTreeMap<String, Vec<u32>>) -> Vec<PodView> {
        let by_uid: BTreeMap<_, _> = self.compute_domains.iter().filter_map(|cd| Some((cd.uid()?, cd))).collect();
        let mut views: Vec<_> = (self.pods.iter())
            .map(|pod| {
                let claims = self.claims_of(pod);
                let cd = claims.iter().find_map(|claim| by_uid.get(claim.labels().get(names::COMPUTE_DOMAIN_LABEL)?));
                let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or("Pending".into());
                let phase = if pod.metadata.deletion_timestamp.is_some() { "Terminating".into() } else { phase };
                let reason = (phase != "Running" && phase != "Succeeded").then(|| self.reason(pod, &claims)).flatten();
                PodView {
                    namespace: pod.namespace().unwrap_or_default(),
                    name: pod.name_any(),
                    compute_domain: cd.map(|cd| format!("{}/{}", cd.namespace().unwrap_or_default(), cd.name_any())),
                    node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
                    phase,
                    reason,
                    gpus: claims.iter().flat_map(|claim| gpus_of(claim)).collect(),
                    channel: channels.get(&pod.uid().unwrap_or_default()).and_then(|open| open.first().copied()),
                }
            })
            .collect();
        views.sort_by_key(PodView::key);
        views
    }

    /// Pods that Deployments, ReplicaSets and Jobs ask for and that do not exist yet.
    pub fn missing_pods(&self) -> i32 {
        let deployments = self.deployments.iter().map(|deployment| {
            let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            wanted - deployment.status.as_ref().and_then(|status| status.replicas).unwrap_or_default()
        });
        let replica_sets = self.replica_sets.iter().map(|set| {
            let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            wanted - set.status.as_ref().map(|status| status.replicas).unwrap_or_default()
        });
        let jobs = self.jobs.iter().map(|job| {
            let spec = job.spec.clone().unwrap_or_default();
            let status = job.status.clone().unwrap_or_default();
            let parallelism = spec.parallelism.unwrap_or(1);
            let left = spec.completions.map(|completions| completions - status.succeeded.unwrap_or_default());
            let ended = status.completion_time.is_some() || status.failed.unwrap_or_default() > 0;
            if ended {
                0
            } else {
                left.map_or(parallelism, |left| left.min(parallelism)) - status.active.unwrap_or_default()
            }
        });
        deployments.chain(replica_sets).chain(jobs).map(|missing| missing.max(0)).sum()
    }

    fn claims_of(&self, pod: &Pod) -> Vec<&ResourceClaim> {
        let spec = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
        let made = |entry: &str| {
            let statuses = pod.status.as_ref()?.resource_claim_statuses.as_ref()?;
            statuses.iter().find(|status| status.name == entry)?.resource_claim_name.clone()
        };
        spec.filter_map(|entry| entry.resource_claim_name.clone().or_else(|| made(&entry.name)))
            .filter_map(|name| {
                self.claims.iter().find(|claim| claim.name_any() == name && claim.namespace() == pod.namespace())
            })
            .collect()
    }

    /// Why a pod does not run, in the words of whoever holds it up.
    fn reason(&self, pod: &Pod, claims: &[&ResourceClaim]) -> Option<String> {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let unscheduled =
            conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        let unscheduled = unscheduled.filter_map(|condition| condition.message.clone()).next();
        let concerns = |event: &&Event| {
            let about = &event.involved_object;
            about.uid.is_some() && (about.uid == pod.uid() || claims.iter().any(|claim| about.uid == claim.uid()))
        };
        let newest = self.events.iter().filter(concerns).max_by_key(|event| {
            let when = event.last_timestamp.as_ref().map(|time| time.0);
            (when, event.resource_version())
        });
        unscheduled.or_else(|| newest.and_then(|event| event.message.clone())).or_else(|| {
            let made = claims.len();
            let wanted = pod.spec.as_ref()?.resource_claims.as_ref()?.len();
            (made < wanted).then(|| format!("{} of its {wanted} resource claims do not exist", wanted - made))
        })
    }
}

/// Indexes of the GPUs that a claim holds: the published device names end with them.
fn gpus_of(claim: &ResourceClaim) -> Vec<u32> {
    let results = (claim.status.iter())
        .flat_map(|status| status.allocation.iter())
        .flat_map(|allocation| allocation.devices.iter())
        .flat_map(|devices| devices.results.iter().flatten());
    results
        .filter(|result| result.driver == names::GPU_DRIVER)
        .filter_map(|result| result.device.rsplit_once('-')?.1.parse().ok())
        .collect()
}

async fn all<K>(client: &Client) -> kube::Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    Ok(Api::<K>::all(client.clone()).list(&ListParams::default()).await?.items)
}
