//! Jobs: pods that are to succeed. A failed pod is replaced at once, not after the growing delay of the real
//! controller: whoever plays a manifest here waits for the result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::super::pods;
use super::{Effect, MAX_BURST, pod_template};

/// Label and annotation with the index of an Indexed Job's pod.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";

/// What to do for a Job that owns `pods`.
pub fn plan(job: &Job, pods: &[Arc<Pod>], now: Timestamp) -> Vec<Effect> {
    let Some(spec) = &job.spec else { return Vec::new() };
    let elsewhere = spec.managed_by.as_deref().is_some_and(|by| by != "kubernetes.io/job-controller");
    if elsewhere || job.metadata.deletion_timestamp.is_some() || ended(job) {
        return Vec::new();
    }
    let state = State::of(spec, pods);
    let verdict = state.verdict(spec);
    let mut effects = Vec::new();
    match verdict {
        Verdict::GoOn if spec.suspend == Some(true) => {
            effects.extend(state.active.iter().map(|pod| Effect::DeletePod(Arc::clone(pod))));
        }
        Verdict::GoOn => effects.extend(state.keep(job, spec)),
        Verdict::Complete => {}
        Verdict::Failed => effects.extend(state.active.iter().map(|pod| Effect::DeletePod(Arc::clone(pod)))),
    }
    let status = status(job, spec, &state, verdict, now);
    if job.status.as_ref() != Some(&status) {
        effects.push(Effect::JobStatus(Box::new(Job { status: Some(status), ..job.clone() })));
    }
    effects
}

fn ended(job: &Job) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    GoOn,
    Complete,
    Failed,
}

fn indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

fn number(value: Option<i32>, default: usize) -> usize {
    value.map_or(default, |value| usize::try_from(value).unwrap_or(0))
}

/// Where the pods of a Job stand.
struct State {
    active: Vec<Arc<Pod>>,
    terminating: usize,
    succeeded: usize,
    failed: usize,
    restarts: usize,
    /// Indexes with a pod that succeeded.
    done: BTreeSet<usize>,
    /// Index → active pods.
    running: BTreeMap<usize, Vec<Arc<Pod>>>,
}

impl State {
    fn of(spec: &JobSpec, pods: &[Arc<Pod>]) -> Self {
        let phase = |wanted: &'static str| pods.iter().filter(move |pod| pods::phase(pod) == wanted);
        let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| pods::active(pod)).cloned().collect();
        let completions = number(spec.completions, usize::MAX);
        let done: BTreeSet<usize> = phase("Succeeded").filter_map(|p| index(p)).filter(|&i| i < completions).collect();
        let mut running: BTreeMap<usize, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in &active {
            if let Some(index) = index(pod) {
                running.entry(index).or_default().push(Arc::clone(pod));
            }
        }
        let statuses = active.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
        Self {
            terminating: pods.iter().filter(|p| !pods::finished(p) && p.metadata.deletion_timestamp.is_some()).count(),
            succeeded: if indexed(spec) { done.len() } else { phase("Succeeded").count() },
            failed: phase("Failed").count(),
            restarts: statuses.map(|status| usize::try_from(status.restart_count).unwrap_or(0)).sum(),
            active,
            done,
            running,
        }
    }

    fn verdict(&self, spec: &JobSpec) -> Verdict {
        let complete = match spec.completions {
            Some(_) => self.succeeded >= number(spec.completions, 1),
            // A work queue: the first success says that the work is done, the others may finish.
            None => self.succeeded > 0 && self.active.is_empty(),
        };
        let limit = number(spec.backoff_limit, 6);
        let restarts_count = spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("OnFailure");
        if complete {
            Verdict::Complete
        } else if self.failed > limit || (restarts_count && self.restarts > 0 && self.restarts >= limit) {
            Verdict::Failed
        } else {
            Verdict::GoOn
        }
    }

    /// Pods to make so that enough run, or to delete because too many do.
    fn keep(&self, job: &Job, spec: &JobSpec) -> Vec<Effect> {
        let parallelism = number(spec.parallelism, 1);
        let wanted = match spec.completions {
            Some(_) => parallelism.min(number(spec.completions, 1).saturating_sub(self.succeeded)),
            None if self.succeeded > 0 => self.active.len().min(parallelism),
            None => parallelism,
        };
        if self.active.len() > wanted {
            let mut surplus: Vec<&Arc<Pod>> = self.active.iter().collect();
            surplus.sort_by_key(|pod| (pods::node(pod).is_some(), pods::ready(pod), std::cmp::Reverse(index(pod))));
            let surplus = surplus.into_iter().take(self.active.len() - wanted);
            return surplus.map(|pod| Effect::DeletePod(Arc::clone(pod))).collect();
        }
        let missing = (wanted - self.active.len()).min(MAX_BURST);
        if !indexed(spec) {
            let pod = || a_pod(job, spec, format!("{}-", job.name_any()));
            return (0..missing).map(|_| Effect::CreatePod(Box::new(pod()))).collect();
        }
        (0..number(spec.completions, 0))
            .filter(|index| !self.done.contains(index) && !self.running.contains_key(index))
            .take(missing)
            .map(|index| Effect::CreatePod(Box::new(indexed_pod(job, spec, index))))
            .collect()
    }
}

fn index(pod: &Pod) -> Option<usize> {
    pod.metadata.annotations.as_ref()?.get(COMPLETION_INDEX)?.parse().ok()
}

/// The labels without a prefix are what people select by since before there was one.
fn a_pod(job: &Job, spec: &JobSpec, prefix: String) -> Pod {
    let mut pod = pod_template::pod(job, &spec.template, prefix);
    if spec.manual_selector != Some(true) {
        pod.labels_mut().insert("job-name".into(), job.name_any());
        pod.labels_mut().insert("controller-uid".into(), job.uid().unwrap_or_default());
    }
    pod
}

fn indexed_pod(job: &Job, spec: &JobSpec, index: usize) -> Pod {
    let mut pod = a_pod(job, spec, format!("{}-{index}-", job.name_any()));
    pod.annotations_mut().insert(COMPLETION_INDEX.into(), index.to_string());
    pod.labels_mut().insert(COMPLETION_INDEX.into(), index.to_string());
    if let Some(pod_spec) = &mut pod.spec {
        pod_spec.hostname = Some(format!("{}-{index}", job.name_any()));
        let containers = pod_spec.containers.iter_mut().chain(pod_spec.init_containers.iter_mut().flatten());
        for container in containers {
            let env = container.env.get_or_insert_default();
            if env.iter().any(|variable| variable.name == INDEX_ENV) {
                continue;
            }
            let path = ObjectFieldSelector {
                field_path: format!("metadata.annotations['{COMPLETION_INDEX}']"),
                ..Default::default()
            };
            let source = EnvVarSource { field_ref: Some(path), ..Default::default() };
            env.push(EnvVar { name: INDEX_ENV.into(), value: None, value_from: Some(source) });
        }
    }
    pod
}

fn status(job: &Job, spec: &JobSpec, state: &State, verdict: Verdict, now: Timestamp) -> JobStatus {
    let known = job.status.clone().unwrap_or_default();
    let some = |n: usize| (n > 0).then(|| i32::try_from(n).unwrap_or(i32::MAX));
    let suspended = spec.suspend == Some(true);
    let ends = verdict != Verdict::GoOn;
    let mut conditions = known.conditions.unwrap_or_default();
    let mut add = |kind: &str, reason: &str, message: &str| {
        conditions.push(JobCondition {
            type_: kind.into(),
            status: "True".into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: Some(Time(now)),
            last_transition_time: Some(Time(now)),
        });
    };
    match verdict {
        Verdict::GoOn => {}
        Verdict::Complete => {
            let message = "Reached expected number of succeeded pods";
            add("SuccessCriteriaMet", "CompletionsReached", message);
            add("Complete", "CompletionsReached", message);
        }
        Verdict::Failed => {
            let message = "Job has reached the specified backoff limit";
            add("FailureTarget", "BackoffLimitExceeded", message);
            add("Failed", "BackoffLimitExceeded", message);
        }
    }
    let active = if ends { 0 } else { state.active.len() };
    let ready = if ends { 0 } else { state.active.iter().filter(|pod| pods::ready(pod)).count() };
    JobStatus {
        active: some(active),
        ready: Some(some(ready).unwrap_or(0)),
        terminating: Some(some(state.terminating).unwrap_or(0)),
        succeeded: some(state.succeeded),
        failed: some(state.failed),
        completed_indexes: indexed(spec).then(|| ranges(&state.done)).filter(|text| !text.is_empty()),
        start_time: known.start_time.or((!suspended).then_some(Time(now))),
        completion_time: (verdict == Verdict::Complete).then_some(Time(now)),
        conditions: (!conditions.is_empty()).then_some(conditions),
        failed_indexes: known.failed_indexes,
        uncounted_terminated_pods: known.uncounted_terminated_pods,
    }
}

/// `0-2,5`.
fn ranges(indexes: &BTreeSet<usize>) -> String {
    let mut text = String::new();
    let mut rest = indexes.iter().copied().peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while rest.next_if_eq(&(last + 1)).is_some() {
            last += 1;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = if first == last { write!(text, "{comma}{first}") } else { write!(text, "{comma}{first}-{last}") };
    }
    text
}
