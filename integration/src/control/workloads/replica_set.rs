//! ReplicaSets: so many pods, no more and no less.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::super::pods;
use super::{Effect, MAX_BURST, pod_template};

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// What to do for a ReplicaSet that owns `pods`.
pub fn plan(replica_set: &ReplicaSet, pods: &[Arc<Pod>]) -> Vec<Effect> {
    let Some(spec) = &replica_set.spec else { return Vec::new() };
    let mut effects = Vec::new();
    let mut active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pods::active(pod)).collect();
    let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or(0);
    if replica_set.metadata.deletion_timestamp.is_none() {
        let template = spec.template.clone().unwrap_or_default();
        for _ in active.len()..wanted.min(active.len() + MAX_BURST) {
            let pod = pod_template::pod(replica_set, &template, format!("{}-", replica_set.name_any()));
            effects.push(Effect::CreatePod(Box::new(pod)));
        }
        if active.len() > wanted {
            active.sort_by_key(|pod| least_useful_first(pod));
            let surplus = active.drain(..active.len() - wanted).take(MAX_BURST);
            effects.extend(surplus.map(|pod| Effect::DeletePod(Arc::clone(pod))));
        }
    }
    let status = status(replica_set, pods);
    if replica_set.status.as_ref() != Some(&status) {
        effects.push(Effect::ReplicaSetStatus(Box::new(ReplicaSet { status: Some(status), ..replica_set.clone() })));
    }
    effects
}

/// Pods without a node go first, then those that do not run, then those that are not ready, then the youngest.
fn least_useful_first(pod: &Pod) -> (bool, u8, bool, Reverse<Option<jiff::Timestamp>>, String) {
    let phase = match pods::phase(pod) {
        "" | "Pending" => 0,
        "Unknown" => 1,
        _ => 2,
    };
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (pods::node(pod).is_some(), phase, pods::ready(pod), Reverse(created), pod.name_any())
}

fn status(replica_set: &ReplicaSet, pods: &[Arc<Pod>]) -> ReplicaSetStatus {
    let active = pods.iter().filter(|pod| pods::active(pod));
    let ready = count(active.clone().filter(|pod| pods::ready(pod)).count());
    let active = count(active.count());
    ReplicaSetStatus {
        replicas: active,
        fully_labeled_replicas: (active > 0).then_some(active),
        ready_replicas: (ready > 0).then_some(ready),
        available_replicas: (ready > 0).then_some(ready),
        observed_generation: replica_set.metadata.generation,
        conditions: replica_set.status.as_ref().and_then(|status| status.conditions.clone()),
        terminating_replicas: None,
    }
}
