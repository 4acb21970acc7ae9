//! The workloads' decisions, played through on plain objects: effects are applied, pods become ready, until nothing
//! is left to do.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{Effect, deployment, job, owned, replica_set};

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[derive(Default)]
struct Sim {
    deployment: Option<Deployment>,
    job: Option<Job>,
    replica_sets: Vec<Arc<ReplicaSet>>,
    pods: Vec<Arc<Pod>>,
    named: usize,
    fewest_ready: usize,
    most: usize,
}

fn ready(pod: &mut Pod) {
    pod.status = Some(of(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})));
}

impl Sim {
    fn plan(&self) -> Vec<Effect> {
        let mut effects = Vec::new();
        let now = Timestamp::UNIX_EPOCH;
        if let Some(deployment) = &self.deployment {
            effects.extend(deployment::plan(deployment, &self.replica_sets, &self.pods, now));
        }
        for rs in &self.replica_sets {
            effects.extend(replica_set::plan(rs, &owned(&self.pods, rs.metadata.uid.as_ref())));
        }
        if let Some(job) = &self.job {
            effects.extend(job::plan(job, &self.pods, now));
        }
        effects
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::CreatePod(mut pod) => {
                self.named += 1;
                pod.metadata.name = Some(format!("{}{}", pod.metadata.generate_name.take().unwrap(), self.named));
                pod.metadata.uid = Some(format!("pod-{}", self.named));
                self.pods.push(Arc::new(*pod));
            }
            Effect::DeletePod(pod) => self.pods.retain(|other| other.metadata.uid != pod.metadata.uid),
            Effect::CreateReplicaSet(mut rs) => {
                rs.metadata.uid = rs.metadata.name.clone();
                self.replica_sets.push(Arc::new(*rs));
            }
            Effect::Scale { replica_set, replicas } => {
                let rs = self.replica_sets.iter_mut().find(|rs| rs.metadata.uid == replica_set.metadata.uid).unwrap();
                Arc::make_mut(rs).spec.as_mut().unwrap().replicas = Some(replicas);
            }
            Effect::DeleteReplicaSet(rs) => self.replica_sets.retain(|other| other.metadata.uid != rs.metadata.uid),
            Effect::DeploymentStatus(deployment) => self.deployment = Some(*deployment),
            Effect::ReplicaSetStatus(written) => {
                let rs = self.replica_sets.iter_mut().find(|rs| rs.metadata.uid == written.metadata.uid).unwrap();
                Arc::make_mut(rs).status = written.status;
            }
            Effect::JobStatus(job) => self.job = Some(*job),
        }
    }

    /// One round; pods that were there before it become ready. False when there was nothing to do.
    fn round(&mut self) -> bool {
        let effects = self.plan();
        let busy = !effects.is_empty();
        let mut changed = false;
        for pod in &mut self.pods {
            if pod.status.is_none() {
                ready(Arc::make_mut(pod));
                changed = true;
            }
        }
        effects.into_iter().for_each(|effect| self.apply(effect));
        self.fewest_ready =
            self.fewest_ready.min(self.pods.iter().filter(|pod| super::super::pods::ready(pod)).count());
        self.most = self.most.max(self.pods.len());
        busy || changed
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            if !self.round() {
                return;
            }
        }
        panic!("still busy after 100 rounds: {:#?}", self.plan());
    }

    fn finish(&mut self, name: &str, phase: &str) {
        let pod = self.pods.iter_mut().find(|pod| pod.name_any() == name).unwrap();
        Arc::make_mut(pod).status = Some(of(json!({"phase": phase})));
    }

    fn names(&self) -> Vec<String> {
        self.pods.iter().map(|pod| pod.name_any()).collect()
    }

    fn sizes(&self) -> Vec<i32> {
        self.replica_sets.iter().map(|rs| rs.spec.as_ref().unwrap().replicas.unwrap()).collect()
    }
}

fn a_deployment(replicas: i32, image: &str) -> Deployment {
    of(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "d", "generation": 1},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    }))
}

fn deployed(replicas: i32) -> Sim {
    let mut sim = Sim { deployment: Some(a_deployment(replicas, "one")), ..Default::default() };
    sim.settle();
    sim.fewest_ready = sim.pods.len();
    sim.most = 0;
    sim
}

fn change(sim: &mut Sim, how: impl FnOnce(&mut Deployment)) {
    how(sim.deployment.as_mut().unwrap());
}

#[test]
fn a_deployment_makes_one_replica_set_and_its_pods() {
    let sim = deployed(3);
    assert_eq!(sim.sizes(), [3]);
    let pod = &sim.pods[0];
    let hash = &pod.labels()["pod-template-hash"];
    let rs = &sim.replica_sets[0];
    assert_eq!(rs.name_any(), format!("web-{hash}"));
    assert!(pod.name_any().starts_with(&format!("web-{hash}-")));
    assert_eq!(pod.owner_references()[0].kind, "ReplicaSet");
    assert_eq!(rs.owner_references()[0].uid, "d");
    let status = sim.deployment.as_ref().unwrap().status.as_ref().unwrap();
    assert_eq!((status.replicas, status.available_replicas, status.unavailable_replicas), (Some(3), Some(3), None));
    assert!(status.conditions.as_ref().unwrap().iter().all(|condition| condition.status == "True"));
}

#[test]
fn it_is_scaled_up_and_down() {
    let mut sim = deployed(2);
    change(&mut sim, |d| d.spec.as_mut().unwrap().replicas = Some(5));
    sim.settle();
    assert_eq!(sim.pods.len(), 5);
    let kept = sim.names();
    change(&mut sim, |d| d.spec.as_mut().unwrap().replicas = Some(0));
    sim.settle();
    assert!(sim.pods.is_empty() && kept.len() == 5);
}

#[test]
fn a_new_template_rolls_without_leaving_the_limits() {
    let mut sim = deployed(4);
    change(&mut sim, |d| d.spec = a_deployment(4, "two").spec);
    sim.settle();
    assert_eq!(sim.sizes(), [0, 4]);
    assert!(sim.pods.iter().all(|pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("two")));
    assert!(sim.fewest_ready >= 3, "{} were ready at the worst", sim.fewest_ready);
    assert!(sim.most <= 5, "{} at the most", sim.most);
    change(&mut sim, |d| d.spec = a_deployment(4, "one").spec);
    sim.settle();
    assert_eq!(sim.sizes(), [4, 0], "going back takes the old ReplicaSet up again");
}

#[test]
fn recreate_ends_the_old_pods_first() {
    let mut sim = deployed(3);
    change(&mut sim, |d| {
        d.spec = a_deployment(3, "two").spec;
        d.spec.as_mut().unwrap().strategy = Some(of(json!({"type": "Recreate"})));
    });
    sim.settle();
    assert_eq!((sim.sizes(), sim.fewest_ready, sim.most), (vec![0, 3], 0, 3));
}

#[test]
fn history_is_cut() {
    let mut sim = deployed(1);
    for image in ["two", "three", "four"] {
        change(&mut sim, |d| {
            d.spec = a_deployment(1, image).spec;
            d.spec.as_mut().unwrap().revision_history_limit = Some(1);
        });
        sim.settle();
    }
    assert_eq!(sim.sizes(), [0, 1]);
}

#[test]
fn lost_and_failed_pods_are_replaced() {
    let mut sim = deployed(3);
    let (lost, failed) = (sim.pods[0].clone(), sim.pods[1].name_any());
    sim.apply(Effect::DeletePod(lost));
    sim.finish(&failed, "Failed");
    sim.settle();
    assert_eq!(sim.pods.iter().filter(|pod| super::super::pods::ready(pod)).count(), 3);
    assert_eq!(sim.pods.len(), 4, "the failed one is left to be looked at");
}

#[test]
fn the_least_useful_pods_go_first() {
    let mut sim = deployed(3);
    let pending = Arc::make_mut(&mut sim.pods[1]);
    pending.status = Some(of(json!({"phase": "Pending"})));
    let name = pending.name_any();
    change(&mut sim, |d| d.spec.as_mut().unwrap().replicas = Some(2));
    sim.settle();
    assert!(!sim.names().contains(&name));
}

fn a_job(spec: Value) -> Sim {
    let mut job: Job = of(json!({
        "metadata": {"name": "train", "namespace": "ns", "uid": "j"},
        "spec": {"template": {
            "metadata": {"labels": {"app": "train"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
        }},
    }));
    let mut merged = serde_json::to_value(job.spec.as_ref().unwrap()).unwrap();
    merged.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    job.spec = of(merged);
    let mut sim = Sim { job: Some(job), ..Default::default() };
    sim.settle();
    sim
}

fn job_state(sim: &Sim) -> (i32, i32, Vec<String>) {
    let status = sim.job.as_ref().unwrap().status.as_ref().unwrap();
    let conditions = status.conditions.iter().flatten().map(|condition| condition.type_.clone());
    (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0), conditions.collect())
}

#[test]
fn a_job_runs_so_many_at_a_time_until_enough_succeeded() {
    let mut sim = a_job(json!({"parallelism": 2, "completions": 3}));
    assert_eq!(sim.pods.len(), 2);
    sim.finish("train-1", "Succeeded");
    sim.settle();
    assert_eq!(sim.names(), ["train-1", "train-2", "train-3"]);
    sim.finish("train-2", "Succeeded");
    sim.settle();
    assert_eq!(sim.pods.len(), 3);
    sim.finish("train-3", "Succeeded");
    sim.settle();
    assert_eq!(job_state(&sim), (3, 0, vec!["SuccessCriteriaMet".into(), "Complete".into()]));
    assert!(sim.job.as_ref().unwrap().status.as_ref().unwrap().completion_time.is_some());
}

#[test]
fn failed_pods_of_a_job_are_replaced_until_it_gives_up() {
    let mut sim = a_job(json!({"parallelism": 2, "completions": 2, "backoffLimit": 1}));
    sim.finish("train-1", "Failed");
    sim.settle();
    assert_eq!(sim.names(), ["train-1", "train-2", "train-3"]);
    sim.finish("train-3", "Failed");
    sim.settle();
    assert_eq!(job_state(&sim), (0, 2, vec!["FailureTarget".into(), "Failed".into()]));
    assert_eq!(sim.names(), ["train-1", "train-3"], "what still ran was ended");
}

#[test]
fn an_indexed_job_gives_each_index_one_pod() {
    let mut sim = a_job(json!({"parallelism": 3, "completions": 4, "completionMode": "Indexed"}));
    assert_eq!(sim.names(), ["train-0-1", "train-1-2", "train-2-3"]);
    let pod = serde_json::to_value(sim.pods[2].as_ref()).unwrap();
    assert_eq!(pod["metadata"]["annotations"], json!({"batch.kubernetes.io/job-completion-index": "2"}));
    assert_eq!(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"], "2");
    assert_eq!(pod["spec"]["hostname"], "train-2");
    assert_eq!(pod["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
    let path = &pod["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["fieldPath"];
    assert_eq!(path, "metadata.annotations['batch.kubernetes.io/job-completion-index']");
    sim.finish("train-1-2", "Failed");
    sim.finish("train-2-3", "Succeeded");
    sim.settle();
    assert_eq!(sim.names()[3..], ["train-1-4", "train-3-5"]);
    for pod in ["train-0-1", "train-1-4"] {
        sim.finish(pod, "Succeeded");
    }
    sim.settle();
    assert_eq!(sim.job.as_ref().unwrap().status.as_ref().unwrap().completed_indexes.as_deref(), Some("0-2"));
    sim.finish("train-3-5", "Succeeded");
    sim.settle();
    assert_eq!(job_state(&sim).2, ["SuccessCriteriaMet", "Complete"]);
}

#[test]
fn a_suspended_job_has_no_pods_until_it_is_resumed() {
    let mut sim = a_job(json!({"parallelism": 2, "completions": 2, "suspend": true}));
    assert!(sim.pods.is_empty());
    sim.job.as_mut().unwrap().spec.as_mut().unwrap().suspend = Some(false);
    sim.settle();
    assert_eq!(sim.pods.len(), 2);
}

#[test]
fn a_work_queue_ends_with_the_first_success_and_the_last_pod() {
    let mut sim = a_job(json!({"parallelism": 3}));
    sim.finish("train-1", "Succeeded");
    sim.settle();
    assert_eq!(sim.pods.len(), 3, "nothing new is started");
    sim.finish("train-2", "Succeeded");
    sim.finish("train-3", "Succeeded");
    sim.settle();
    assert_eq!(job_state(&sim).2, ["SuccessCriteriaMet", "Complete"]);
}
