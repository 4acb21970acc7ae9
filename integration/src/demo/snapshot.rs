//! What the cluster's objects say at one moment, in the terms of the picture.

use std::collections::{BTreeMap, BTreeSet};

use heddle_core::api::{ComputeDomain, IMEXDomain, IMEXNode, IsolationMode, ReadyState};
use heddle_core::names;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerState, Event, Pod};
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// All ComputeDomains that it is in, the one above first.
    #[serde(skip)]
    pub memberships: Vec<Membership>,
}

/// A ComputeDomain that a pod is in: one, unless it has claims of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// `namespace/name`.
    pub compute_domain: String,
    /// Its channel, if a container can open it.
    pub channel: Option<u32>,
}

impl PodView {
    /// Whether it runs as it should, or has come to a good end.
    pub fn is_settled(&self) -> bool {
        self.phase == "Succeeded" || self.phase == "Running" && self.reason.is_none()
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A ComputeDomain, as the report shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CliqueView {
    /// The NVLink partition.
    pub clique: String,
    /// The IMEX domain.
    pub imex_domain: String,
    /// The number in it.
    pub channel: u32,
}

/// All by which one look differs from the next if there is progress. An attempt that fails as the one before it is
/// none: its Event is only counted up.
#[derive(Debug, PartialEq, Eq)]
pub struct Progress {
    pods: Vec<PodView>,
    compute_domains: Vec<ComputeDomainView>,
    versions: BTreeSet<(Option<String>, Option<String>)>,
    events: BTreeSet<Option<String>>,
    missing_pods: i32,
}

impl Snapshot {
    /// How far things are. `pods` are those of this look.
    pub fn progress(&self, pods: &[PodView]) -> Progress {
        let versions = [
            versions(&self.claims),
            versions(&self.slices),
            versions(&self.domains),
            versions(&self.nodes),
            versions(&self.jobs),
            versions(&self.deployments),
        ];
        Progress {
            pods: pods.to_vec(),
            compute_domains: self.compute_domains(),
            versions: versions.into_iter().flatten().collect(),
            events: self.events.iter().map(|event| event.uid()).collect(),
            missing_pods: self.missing_pods(),
        }
    }

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
                let uids = claims.iter().filter_map(|claim| claim.labels().get(names::COMPUTE_DOMAIN_LABEL));
                let mut cds = Vec::new();
                for cd in uids.filter_map(|uid| by_uid.get(uid)) {
                    if cds.iter().all(|other| cd.uid() != ComputeDomain::uid(other)) {
                        cds.push((*cd).clone());
                    }
                }
                let memberships = self.memberships(pod, &cds, channels);
                let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or("Pending".into());
                let phase = if pod.metadata.deletion_timestamp.is_some() { "Terminating".into() } else { phase };
                let reason = match phase.as_str() {
                    "Succeeded" => None,
                    "Running" | "Failed" => container_trouble(pod),
                    _ => Some(self.reason(pod, &claims)),
                };
                PodView {
                    namespace: pod.namespace().unwrap_or_default(),
                    name: pod.name_any(),
                    compute_domain: memberships.first().map(|first| first.compute_domain.clone()),
                    node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
                    phase,
                    reason,
                    gpus: claims.iter().flat_map(|claim| gpus_of(claim)).collect(),
                    channel: memberships.first().and_then(|first| first.channel),
                    memberships,
                }
            })
            .collect();
        views.sort_by_key(PodView::key);
        views
    }

    /// The pod's ComputeDomains, each with the channel that a container can open.
    fn memberships(&self, pod: &Pod, cds: &[ComputeDomain], channels: &BTreeMap<String, Vec<u32>>) -> Vec<Membership> {
        let open = pod.uid().and_then(|uid| channels.get(&uid)).map_or(&[][..], Vec::as_slice);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let status =
            self.nodes.iter().find(|other| Some(other.name_any()) == node).and_then(|node| node.status.as_ref());
        let channel = |cd: &ComputeDomain| match cds {
            [_] => open.first().copied(),
            // Whose channel is whose, the node knows.
            _ => status?.channels.get(&cd.uid()?).map(|entry| entry.channel).filter(|number| open.contains(number)),
        };
        let key = |cd: &ComputeDomain| format!("{}/{}", cd.namespace().unwrap_or_default(), cd.name_any());
        cds.iter().map(|cd| Membership { compute_domain: key(cd), channel: channel(cd) }).collect()
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
    fn reason(&self, pod: &Pod, claims: &[&ResourceClaim]) -> String {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let unscheduled =
            conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
        let unscheduled = unscheduled.filter_map(|condition| condition.message.clone()).next();
        let concerns = |event: &&Event| {
            let about = &event.involved_object;
            about.uid.is_some() && (about.uid == pod.uid() || claims.iter().any(|claim| about.uid == claim.uid()))
        };
        // What held it up before it was bound is over.
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let current = |event: &&Event| {
            node.is_none()
                || !matches!(event.reason.as_deref(), Some("FailedScheduling" | "FailedResourceClaimCreation"))
        };
        let newest = self.events.iter().filter(concerns).filter(current).max_by_key(|event| {
            let when = event.last_timestamp.as_ref().map(|time| time.0);
            (when, event.resource_version())
        });
        let found = unscheduled.or_else(|| container_trouble(pod)).or_else(|| newest.and_then(|e| e.message.clone()));
        found.unwrap_or_else(|| {
            let wanted = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref()).map_or(0, Vec::len);
            match node {
                Some(node) if wanted > 0 => format!("its claims are being prepared on {node}"),
                Some(node) => format!("its containers are being started on {node}"),
                None if claims.len() < wanted => {
                    format!("{} of its {wanted} resource claims do not exist yet", wanted - claims.len())
                }
                None => "the scheduler has not looked at it yet".into(),
            }
        })
    }
}

/// The name of a ComputeDomain `namespace/name` among others: with its namespace only where the name is not enough.
pub fn short<'a>(key: &'a str, mut others: impl Iterator<Item = &'a str>) -> &'a str {
    let name = |key: &'a str| key.rsplit('/').next().unwrap_or(key);
    if others.any(|other| other != key && name(other) == name(key)) { key } else { name(key) }
}

fn versions<K: Resource>(objects: &[K]) -> Vec<(Option<String>, Option<String>)> {
    objects.iter().map(|object| (object.uid(), object.resource_version())).collect()
}

/// What keeps a pod's containers from running, where they have been created or are about to be.
fn container_trouble(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let statuses = || {
        let containers = status.container_statuses.iter().flatten();
        status.init_container_statuses.iter().flatten().chain(containers)
    };
    let code = |state: &Option<ContainerState>| state.as_ref()?.terminated.as_ref().map(|end| end.exit_code);
    if status.phase.as_deref() == Some("Failed") {
        let failed = statuses().find_map(|status| Some((&status.name, code(&status.state).filter(|code| *code != 0)?)));
        return Some(match failed {
            Some((name, code)) => format!("failed: its container {name} ended with exit code {code}"),
            None => "failed".into(),
        });
    }
    let waiting = statuses().find_map(|status| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let message = waiting.message.as_deref()?;
        let ended = code(&status.last_state).map(|code| format!(" (it ended with exit code {code})"));
        Some(format!("{reason}: {message}{}", ended.unwrap_or_default()))
    });
    let init = || {
        let running = status
            .init_container_statuses
            .iter()
            .flatten()
            .find(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))?;
        Some(format!("its init container {} has not ended", running.name))
    };
    waiting.or_else(|| (status.phase.as_deref() != Some("Running")).then(init).flatten())
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of<T: DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn pod(spec: Value, status: Value) -> Pod {
        let metadata = json!({"name": "p", "namespace": "ns", "uid": "u"});
        of(json!({"metadata": metadata, "spec": spec, "status": status}))
    }

    fn failed(reason: &str, message: &str, count: i32) -> Event {
        of(json!({
            "metadata": {"name": reason, "uid": reason, "resourceVersion": count.to_string()},
            "involvedObject": {"uid": "u"},
            "type": "Warning", "reason": reason, "message": message, "count": count,
        }))
    }

    fn view(pod: Pod, events: Vec<Event>) -> PodView {
        Snapshot { pods: vec![pod], events, ..Default::default() }.pods(&BTreeMap::new()).remove(0)
    }

    #[test]
    fn an_attempt_that_fails_again_is_no_progress() {
        let bound = pod(json!({"containers": [], "nodeName": "n"}), json!({"phase": "Pending"}));
        let look = |events| {
            let snapshot = Snapshot { pods: vec![bound.clone()], events, ..Default::default() };
            snapshot.progress(&snapshot.pods(&BTreeMap::new()))
        };
        let first = look(vec![failed("FailedPrepareDynamicResources", "no channel", 1)]);
        assert_eq!(first, look(vec![failed("FailedPrepareDynamicResources", "no channel", 2)]));
        assert_ne!(first, look(Vec::new()));
    }

    #[test]
    fn a_pod_of_two_compute_domains_has_two_channels() {
        let cd = |name: &str| {
            let spec = json!({"channel": {"resourceClaimTemplate": {"name": name}}});
            of::<ComputeDomain>(json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": spec}))
        };
        let claim = |name: &str| {
            let labels = json!({names::COMPUTE_DOMAIN_LABEL: name});
            of::<ResourceClaim>(json!({"metadata": {"name": name, "namespace": "ns", "labels": labels}, "spec": {}}))
        };
        let mut node: IMEXNode = of(json!({"metadata": {"name": "n"}, "spec": {}, "status": {"channels": {
            "a": {"channel": 1, "domain": "d"}, "b": {"channel": 2, "domain": "d"},
        }}}));
        let claims = json!([{"name": "a", "resourceClaimName": "a"}, {"name": "b", "resourceClaimName": "b"}]);
        let spec = json!({"containers": [], "nodeName": "n", "resourceClaims": claims});
        let mut snapshot = Snapshot {
            compute_domains: vec![cd("a"), cd("b")],
            claims: vec![claim("a"), claim("b")],
            pods: vec![pod(spec, json!({"phase": "Running"}))],
            nodes: vec![node.clone()],
            ..Default::default()
        };
        let open = BTreeMap::from([("u".to_owned(), vec![2, 1])]);
        let found = |snapshot: &Snapshot| {
            let pod = snapshot.pods(&open).remove(0);
            pod.memberships.into_iter().map(|m| (m.compute_domain, m.channel)).collect::<Vec<_>>()
        };
        assert_eq!(found(&snapshot), [("ns/a".into(), Some(1)), ("ns/b".into(), Some(2))]);
        node.status.as_mut().unwrap().channels.get_mut("b").unwrap().channel = 7;
        snapshot.nodes = vec![node];
        assert_eq!(found(&snapshot)[1].1, None);
    }

    #[test]
    fn a_name_that_two_namespaces_have_is_shown_in_full() {
        let all = ["x/d", "y/d", "y/e"];
        assert_eq!(all.map(|key| short(key, all.into_iter())), ["x/d", "y/d", "e"]);
    }

    #[test]
    fn a_crash_loop_and_a_failure_have_a_reason() {
        let crash = json!({"phase": "Running", "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container c"}},
            "lastState": {"terminated": {"exitCode": 3}},
        }]});
        let view_of = |status| view(pod(json!({"containers": []}), status), Vec::new());
        let looping = view_of(crash);
        let text = "CrashLoopBackOff: back-off restarting failed container c (it ended with exit code 3)";
        assert_eq!((looping.is_settled(), looping.reason.as_deref()), (false, Some(text)));
        let ended = view_of(json!({"phase": "Failed", "containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1}},
        }]}));
        assert_eq!(ended.reason.as_deref(), Some("failed: its container c ended with exit code 1"));
    }

    #[test]
    fn a_bound_pod_does_not_blame_the_scheduler() {
        let spec = json!({"containers": [], "nodeName": "n", "resourceClaims": [{"name": "a"}]});
        let bound = pod(spec, json!({"phase": "Pending"}));
        let view = view(bound, vec![failed("FailedScheduling", "0/5 nodes", 1)]);
        assert_eq!(view.reason.as_deref(), Some("its claims are being prepared on n"));
    }
}
