//! Deployments: one ReplicaSet per version of the template, and the way from one to the next.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use super::{Effect, owned_by, pod_template};

const HASH: &str = "pod-template-hash";
const REVISION: &str = "deployment.kubernetes.io/revision";

/// What to do for a Deployment that owns `replica_sets`.
pub fn plan(
    deployment: &Deployment,
    replica_sets: &[Arc<ReplicaSet>],
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> Vec<Effect> {
    let Some(spec) = &deployment.spec else { return Vec::new() };
    let hash = pod_template::hash(&spec.template);
    let (new, old): (Vec<_>, Vec<_>) =
        replica_sets.iter().cloned().partition(|replica_set| replica_set.labels().get(HASH) == Some(&hash));
    let new = new.first();
    let mut effects = Vec::new();
    if deployment.metadata.deletion_timestamp.is_none() && spec.paused != Some(true) {
        let rollout = Rollout { deployment, desired: spec.replicas.unwrap_or(1).max(0), hash: &hash, new, old: &old };
        let recreate = spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate");
        effects.extend(if recreate { rollout.recreate(pods) } else { rollout.roll() });
        effects.extend(history(spec.revision_history_limit.unwrap_or(10), &old));
    }
    let status = status(deployment, new, replica_sets, now);
    if deployment.status.as_ref() != Some(&status) {
        effects.push(Effect::DeploymentStatus(Box::new(Deployment { status: Some(status), ..deployment.clone() })));
    }
    effects
}

struct Rollout<'a> {
    deployment: &'a Deployment,
    desired: i32,
    hash: &'a str,
    new: Option<&'a Arc<ReplicaSet>>,
    old: &'a [Arc<ReplicaSet>],
}

fn replicas(replica_set: &ReplicaSet) -> i32 {
    replica_set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

fn available(replica_set: &ReplicaSet) -> i32 {
    replica_set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

fn scale(replica_set: &Arc<ReplicaSet>, to: i32) -> Option<Effect> {
    (replicas(replica_set) != to).then(|| Effect::Scale { replica_set: Arc::clone(replica_set), replicas: to })
}

impl Rollout<'_> {
    /// The old pods end before the new ones begin.
    fn recreate(&self, pods: &[Arc<Pod>]) -> Vec<Effect> {
        let down: Vec<Effect> = self.old.iter().filter_map(|replica_set| scale(replica_set, 0)).collect();
        let of_old = |pod: &Arc<Pod>| self.old.iter().any(|rs| owned_by(pod.as_ref(), rs.metadata.uid.as_ref()));
        let running = pods.iter().any(|pod| of_old(pod) && !super::super::pods::finished(pod));
        if !down.is_empty() || running {
            return down;
        }
        match self.new {
            Some(new) => scale(new, self.desired).into_iter().collect(),
            None => vec![self.create(self.desired)],
        }
    }

    /// New pods come and old ones go side by side, inside the limits.
    fn roll(&self) -> Vec<Effect> {
        let (surge, unavailable) = self.limits();
        let total: i32 = self.old.iter().chain(self.new).map(|rs| replicas(rs)).sum();
        let current = self.new.map_or(0, |new| replicas(new));
        let target = if self.old.iter().all(|rs| replicas(rs) == 0) || current >= self.desired {
            self.desired
        } else {
            let room = (self.desired + surge - total).max(0);
            self.desired.min(current + room)
        };
        let mut effects: Vec<Effect> = match self.new {
            Some(new) => scale(new, target).into_iter().collect(),
            None => vec![self.create(target)],
        };
        effects.extend(self.shrink_old(total, unavailable));
        effects
    }

    /// Old pods that are of no use go first; of the others as many as the new ones replace.
    fn shrink_old(&self, total: i32, unavailable: i32) -> Vec<Effect> {
        let least = self.desired - unavailable;
        let new_unavailable = self.new.map_or(0, |new| (replicas(new) - available(new)).max(0));
        let mut useless_budget = (total - least - new_unavailable).max(0);
        let mut sizes: Vec<i32> = self.old.iter().map(|rs| replicas(rs)).collect();
        for (size, rs) in sizes.iter_mut().zip(self.old) {
            let cut = (*size - available(rs)).clamp(0, useless_budget);
            *size -= cut;
            useless_budget -= cut;
        }
        let all_available: i32 = self.old.iter().chain(self.new).map(|rs| available(rs)).sum();
        let mut budget = (all_available - least).max(0).min(useless_budget);
        for size in &mut sizes {
            let cut = (*size).clamp(0, budget);
            *size -= cut;
            budget -= cut;
        }
        self.old.iter().zip(sizes).filter_map(|(rs, size)| scale(rs, size)).collect()
    }

    /// `maxSurge` and `maxUnavailable` in pods.
    fn limits(&self) -> (i32, i32) {
        let rolling = self.deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref()?.rolling_update.as_ref());
        let quarter = IntOrString::String("25%".into());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref()).unwrap_or(&quarter);
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()).unwrap_or(&quarter);
        let surge = part(surge, self.desired, true);
        let unavailable = part(unavailable, self.desired, false);
        if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable.min(self.desired)) }
    }

    fn create(&self, replicas: i32) -> Effect {
        let spec = self.deployment.spec.clone().unwrap_or_default();
        let with_hash = |labels: Option<std::collections::BTreeMap<String, String>>| {
            let mut labels = labels.unwrap_or_default();
            labels.insert(HASH.into(), self.hash.into());
            Some(labels)
        };
        let mut meta = spec.template.metadata.unwrap_or_default();
        meta.labels = with_hash(meta.labels);
        let mut selector = spec.selector;
        selector.match_labels = with_hash(selector.match_labels);
        let revision = self.old.iter().map(|rs| revision(rs)).max().unwrap_or(0) + 1;
        Effect::CreateReplicaSet(Box::new(ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{}-{}", self.deployment.name_any(), self.hash)),
                namespace: self.deployment.namespace(),
                labels: meta.labels.clone(),
                annotations: Some([(REVISION.to_owned(), revision.to_string())].into()),
                owner_references: Some(vec![pod_template::controller_of(self.deployment)]),
                ..Default::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(replicas),
                selector,
                template: Some(PodTemplateSpec { metadata: Some(meta), spec: spec.template.spec }),
                min_ready_seconds: spec.min_ready_seconds,
            }),
            status: None,
        }))
    }
}

fn revision(replica_set: &ReplicaSet) -> u64 {
    replica_set.annotations().get(REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

fn part(value: &IntOrString, of: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(pods) => (*pods).max(0),
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = i64::from(of) * percent.max(0);
            let pods = if up { (product + 99) / 100 } else { product / 100 };
            i32::try_from(pods).unwrap_or(i32::MAX)
        }
    }
}

/// The oldest versions go once there are more than `limit` that keep no pods.
fn history(limit: i32, old: &[Arc<ReplicaSet>]) -> Vec<Effect> {
    let kept = |rs: &&Arc<ReplicaSet>| {
        replicas(rs) == 0
            && rs.status.as_ref().is_none_or(|s| s.replicas == 0)
            && rs.metadata.deletion_timestamp.is_none()
    };
    let mut idle: Vec<&Arc<ReplicaSet>> = old.iter().filter(kept).collect();
    idle.sort_by_key(|rs| revision(rs));
    let surplus = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    idle.into_iter().take(surplus).map(|rs| Effect::DeleteReplicaSet(Arc::clone(rs))).collect()
}

fn status(
    deployment: &Deployment,
    new: Option<&Arc<ReplicaSet>>,
    all: &[Arc<ReplicaSet>],
    now: Timestamp,
) -> DeploymentStatus {
    let sum = |of: &dyn Fn(&ReplicaSet) -> i32| all.iter().map(|rs| of(rs)).sum::<i32>();
    let count = |rs: &ReplicaSet| rs.status.as_ref().map_or(0, |status| status.replicas);
    let ready = sum(&|rs| rs.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0));
    let (total, up) = (sum(&count), sum(&available));
    let desired = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let updated = new.map_or(0, |rs| count(rs));
    let some = |n: i32| (n > 0).then_some(n);
    let (_, unavailable) = Rollout { deployment, desired, hash: "", new, old: &[] }.limits();
    let enough = up >= desired - unavailable;
    let complete = updated == desired && up == desired && total == desired;
    let known = deployment.status.as_ref();
    let condition = |kind: &str, value: bool, reason: &str, message: String| {
        let value = if value { "True" } else { "False" };
        let old = known.and_then(|s| s.conditions.as_ref()?.iter().find(|c| c.type_ == kind));
        match old {
            Some(old) if old.status == value && old.reason.as_deref() == Some(reason) => old.clone(),
            _ => DeploymentCondition {
                type_: kind.into(),
                status: value.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_update_time: Some(Time(now)),
                last_transition_time: Some(
                    old.filter(|c| c.status == value).and_then(|c| c.last_transition_time.clone()).unwrap_or(Time(now)),
                ),
            },
        }
    };
    let name = deployment.name_any();
    let available = if enough {
        condition("Available", true, "MinimumReplicasAvailable", "Deployment has minimum availability.".into())
    } else {
        let message = "Deployment does not have minimum availability.";
        condition("Available", false, "MinimumReplicasUnavailable", message.into())
    };
    let progressing = if complete {
        let message = format!("Deployment {name:?} has successfully progressed.");
        condition("Progressing", true, "NewReplicaSetAvailable", message)
    } else {
        condition("Progressing", true, "ReplicaSetUpdated", format!("Deployment {name:?} is progressing."))
    };
    DeploymentStatus {
        replicas: some(total),
        updated_replicas: some(updated),
        ready_replicas: some(ready),
        available_replicas: some(up),
        unavailable_replicas: some(total.max(desired) - up),
        observed_generation: deployment.metadata.generation,
        conditions: Some(vec![available, progressing]),
        collision_count: known.and_then(|status| status.collision_count),
        terminating_replicas: None,
    }
}
