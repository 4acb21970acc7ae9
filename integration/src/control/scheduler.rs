//! The scheduler: binds pods to nodes and gives their claims devices. One pod after the other, so that no two in
//! flight can get one device.

mod filter;
mod place;
mod snapshot;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, Node, ObjectReference, Pod, PodCondition};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;

pub use place::{Decision, place};
pub use snapshot::{NodeInfo, Objects, Snapshot};

use super::component::{Component, unless_moot};
use super::device_selector::Selectors;
use super::events::Recorder;
use super::pods;
use super::watched::Watched;

/// Keeps a claim that holds devices from vanishing before they are given back.
pub const DELETE_PROTECTION: &str = "resource.kubernetes.io/delete-protection";

const NAME: &str = "default-scheduler";

/// The kinds that the scheduler watches.
#[derive(Clone)]
pub struct Views {
    pub pods: Watched<Pod>,
    pub nodes: Watched<Node>,
    pub claims: Watched<ResourceClaim>,
    pub templates: Watched<ResourceClaimTemplate>,
    pub classes: Watched<DeviceClass>,
    pub slices: Watched<ResourceSlice>,
}

/// See the module.
pub struct Scheduler {
    client: Client,
    views: Views,
    recorder: Recorder,
    selectors: Selectors,
    /// Pods that were bound and don't show it yet: UID → node.
    bound: BTreeMap<String, String>,
    /// Pods whose writes failed last time: they come last, so that one of them cannot hold up the others.
    failed: BTreeSet<String>,
    /// Pods that were refused, and in which state of the cluster: UID → fingerprint.
    refused: BTreeMap<String, u64>,
}

impl Scheduler {
    /// A scheduler that has seen nothing yet.
    pub fn new(client: Client, views: Views) -> Self {
        let recorder = Recorder::new(client.clone(), NAME);
        let (selectors, bound, failed, refused) = Default::default();
        Self { client, views, recorder, selectors, bound, failed, refused }
    }

    fn pods(&self, pod: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), pod.metadata.namespace.as_deref().unwrap_or("default"))
    }

    fn claims(&self, claim: &ResourceClaim) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), claim.metadata.namespace.as_deref().unwrap_or("default"))
    }

    fn snapshot(&mut self) -> (Snapshot, Vec<Arc<Pod>>) {
        let pods = self.views.pods.list();
        self.bound.retain(|uid, _| {
            let pod = pods.iter().find(|pod| pod.metadata.uid.as_ref() == Some(uid));
            pod.is_some_and(|pod| pods::node(pod).is_none())
        });
        let mut waiting: Vec<Arc<Pod>> = pods.iter().filter(|pod| self.waits(pod)).cloned().collect();
        waiting.sort_by_key(|pod| {
            let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            let failed = pod.metadata.uid.as_ref().is_some_and(|uid| self.failed.contains(uid));
            (failed, -i64::from(priority), pod.metadata.creation_timestamp.clone())
        });
        let objects = Objects {
            nodes: self.views.nodes.list(),
            pods,
            claims: self.views.claims.list(),
            templates: self.views.templates.list(),
            classes: self.views.classes.list(),
            slices: self.views.slices.list(),
        };
        (Snapshot::new(objects, &self.bound), waiting)
    }

    fn waits(&self, pod: &Pod) -> bool {
        let spec = pod.spec.as_ref();
        let ours = spec.and_then(|spec| spec.scheduler_name.as_deref()).is_none_or(|name| name == NAME);
        let gated = spec.and_then(|spec| spec.scheduling_gates.as_ref()).is_some_and(|gates| !gates.is_empty());
        let bound = pod.metadata.uid.as_ref().is_some_and(|uid| self.bound.contains_key(uid));
        ours && !gated && !bound && pods::node(pod).is_none() && pods::active(pod)
    }

    /// Equal while nothing changed that could make room for a pod that was refused.
    fn fingerprint(&self, snapshot: &Snapshot) -> u64 {
        let mut hasher = DefaultHasher::new();
        let views = &self.views;
        let events = [
            views.nodes.events(),
            views.claims.events(),
            views.templates.events(),
            views.classes.events(),
            views.slices.events(),
        ];
        events.hash(&mut hasher);
        for info in snapshot.nodes.values() {
            info.name().hash(&mut hasher);
            info.pods.iter().for_each(|pod| pod.metadata.uid.hash(&mut hasher));
        }
        hasher.finish()
    }

    async fn carry_out(
        &mut self,
        decision: Decision,
        snapshot: &mut Snapshot,
        pod: &Arc<Pod>,
    ) -> Result<(), kube::Error> {
        match decision {
            Decision::Bind { node, claims } => self.bind(snapshot, pod, &node, claims).await,
            Decision::Deallocate(claim) => {
                let written = self.write_claim(*claim).await?;
                snapshot.claim_written(written);
                Ok(())
            }
            Decision::Refuse { reason, message } => self.refuse(pod, reason, &message).await,
            Decision::Wait => Ok(()),
        }
    }

    /// Writes the claims' allocations and binds the pod.
    async fn bind(
        &mut self,
        snapshot: &mut Snapshot,
        pod: &Arc<Pod>,
        node: &str,
        claims: Vec<ResourceClaim>,
    ) -> Result<(), kube::Error> {
        for claim in claims {
            let written = self.write_claim(claim).await?;
            snapshot.claim_written(written);
        }
        let binding = Binding {
            metadata: ObjectMeta {
                name: pod.metadata.name.clone(),
                namespace: pod.metadata.namespace.clone(),
                uid: pod.metadata.uid.clone(),
                ..Default::default()
            },
            target: ObjectReference { kind: Some("Node".into()), name: Some(node.into()), ..Default::default() },
        };
        let pods = self.pods(pod);
        pods.create_subresource::<_, serde_json::Value>("binding", &pod.name_any(), &PostParams::default(), &binding)
            .await?;
        self.bound.insert(pod.metadata.uid.clone().unwrap_or_default(), node.to_owned());
        self.refused.remove(pod.metadata.uid.as_deref().unwrap_or_default());
        snapshot.pod_bound(Arc::clone(pod), node);
        tracing::debug!(pod = %pods::full_name(pod.as_ref()), node, "bound");
        let message = format!("Successfully assigned {} to {node}", pods::full_name(pod.as_ref()));
        self.recorder.normal(pod.as_ref(), "Scheduled", message).await;
        Ok(())
    }

    /// The finalizer goes first: an allocation must never be without it.
    async fn write_claim(&mut self, mut claim: ResourceClaim) -> Result<ResourceClaim, kube::Error> {
        let claims = self.claims(&claim);
        let name = claim.name_any();
        let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        if allocated && !claim.finalizers().iter().any(|finalizer| finalizer == DELETE_PROTECTION) {
            claim.finalizers_mut().push(DELETE_PROTECTION.into());
            let written = claims.replace(&name, &PostParams::default(), &claim).await?;
            self.views.claims.wrote(&written);
            claim.metadata = written.metadata;
        }
        let written = claims.replace_status(&name, &PostParams::default(), &claim).await?;
        self.views.claims.wrote(&written);
        Ok(written)
    }

    /// Says in the pod's condition and in an Event why it waits, if that is news.
    async fn refuse(&mut self, pod: &Pod, reason: &str, message: &str) -> Result<(), kube::Error> {
        let mut conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let known = conditions.iter().find(|condition| condition.type_ == "PodScheduled");
        let said = |c: &&PodCondition| c.reason.as_deref() == Some(reason) && c.message.as_deref() == Some(message);
        if known.is_some_and(|c| c.status == "False" && said(&c)) {
            return Ok(());
        }
        let since = known.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
        conditions.retain(|condition| condition.type_ != "PodScheduled");
        conditions.push(PodCondition {
            type_: "PodScheduled".into(),
            status: "False".into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_transition_time: Some(since.unwrap_or_else(|| Time(Timestamp::now()))),
            ..Default::default()
        });
        let patch = json!({
            "metadata": {"resourceVersion": pod.metadata.resource_version},
            "status": {"phase": "Pending", "conditions": conditions},
        });
        let pods = self.pods(pod);
        let patched = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
        if let Some(written) = unless_moot(patched)? {
            self.views.pods.wrote(&written);
            tracing::debug!(pod = %pods::full_name(pod), message, "unschedulable");
            self.recorder.warning(pod, "FailedScheduling", message.to_owned()).await;
        }
        Ok(())
    }
}

impl Component for Scheduler {
    const NAME: &'static str = NAME;

    fn caught_up(&self) -> bool {
        let views = &self.views;
        views.pods.caught_up()
            && views.nodes.caught_up()
            && views.claims.caught_up()
            && views.templates.caught_up()
            && views.classes.caught_up()
            && views.slices.caught_up()
    }

    async fn pass(&mut self) -> Result<(), kube::Error> {
        let (mut snapshot, waiting) = self.snapshot();
        self.refused.retain(|uid, _| waiting.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid)));
        for pod in waiting {
            let uid = pod.metadata.uid.clone().unwrap_or_default();
            if self.refused.get(&uid).is_some_and(|&then| then == self.fingerprint(&snapshot)) {
                continue;
            }
            let decision = place(&snapshot, &pod, &mut self.selectors, Timestamp::now());
            let refused = matches!(decision, Decision::Refuse { .. });
            // After a failed write the snapshot may be wrong about what is taken, so the pass ends.
            if let Err(error) = self.carry_out(decision, &mut snapshot, &pod).await {
                self.failed.insert(uid);
                return Err(error);
            }
            self.failed.remove(&uid);
            if refused {
                self.refused.insert(uid, self.fingerprint(&snapshot));
            }
        }
        self.failed.clear();
        Ok(())
    }
}
