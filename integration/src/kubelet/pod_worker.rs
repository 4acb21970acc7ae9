//! Takes one pod from its appearance on the node to its end.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container as Spec, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use tracing::{debug, info, warn};

use super::{
    backoff::{jittered, sleep_until},
    create,
    events::Severity,
    life::Life,
    plan::{self, Step},
    prepare::{prepare, unprepare},
    runtime::Sandbox,
    status::{Ended, Facts},
    workload::Run,
};

/// A pod as the API last showed it.
#[derive(Clone)]
pub struct Seen {
    /// The object.
    pub pod: Arc<Pod>,
    /// It is there no more.
    pub gone: bool,
}

impl Seen {
    fn is_ending(&self) -> bool {
        self.gone || self.pod.metadata.deletion_timestamp.is_some()
    }
}

/// Works on the pod until it is over. Nothing that is awaited in here is lost if the kubelet's life ends meanwhile: the
/// next one begins with the pod, the runtime's sandbox and the checkpoint of claims.
pub async fn run(life: Life, uid: String, seen: watch::Receiver<Seen>) {
    let api = api(&life, &seen.borrow().pod);
    let mut worker = Worker { life, uid, api, seen, answered: None, written: None };
    let mut ended = worker.past_end();
    if ended == Ended::No {
        let mut seen = worker.seen.clone();
        // A deletion breaks off what is under way, a running Prepare included; it will be unprepared.
        tokio::select! {
            biased;
            _ = seen.wait_for(Seen::is_ending) => {}
            succeeded = worker.live() => ended = Ended::Finished { succeeded },
        }
    }
    worker.stop(ended).await;
    let mut seen = worker.seen.clone();
    let _ = seen.wait_for(Seen::is_ending).await;
    worker.finalize().await;
}

fn api(life: &Life, pod: &Pod) -> Api<Pod> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    Api::namespaced(life.machine.options.client.clone(), namespace)
}

struct Worker {
    life: Life,
    uid: String,
    api: Api<Pod>,
    seen: watch::Receiver<Seen>,
    /// The answer to our last write, which may be newer than what the watch has shown.
    answered: Option<Arc<Pod>>,
    /// The last status written.
    written: Option<Value>,
}

impl Worker {
    /// The newest copy of the pod.
    fn pod(&self) -> Arc<Pod> {
        let seen = self.seen.borrow().pod.clone();
        match &self.answered {
            Some(answered) if version(answered) > version(&seen) => answered.clone(),
            _ => seen,
        }
    }

    /// Whether the pod had ended before this life of the kubelet.
    fn past_end(&self) -> Ended {
        let pod = self.pod();
        match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
            Some("Succeeded") => Ended::Finished { succeeded: true },
            Some("Failed") => Ended::Finished { succeeded: false },
            _ => Ended::No,
        }
    }

    /// Prepares the pod and runs its containers until all have ended for good; says whether well.
    async fn live(&mut self) -> bool {
        let mut runtime = self.life.machine.runtime.changes();
        let mut health = self.life.health.changes();
        let backoff = self.life.machine.options.limits.crash_backoff;
        loop {
            runtime.borrow_and_update();
            health.borrow_and_update();
            let pod = self.pod();
            let sandbox = self.life.machine.runtime.sandbox(&self.uid);
            let step = sandbox.as_ref().map(|sandbox| plan::next(&pod, sandbox, backoff, Instant::now()));
            match (sandbox, step) {
                (_, Some(Step::Finished { succeeded })) => return succeeded,
                (Some(sandbox), Some(Step::Start(name))) if sandbox.ready => {
                    self.start(&pod, &sandbox, &name).await;
                }
                (Some(sandbox), Some(Step::Wait(until))) if sandbox.ready => {
                    let written = self.write_status(Ended::No).await;
                    let retry = jittered(self.life.machine.options.limits.api_retry.0);
                    let until = if written { until } else { Some(Instant::now() + retry) };
                    tokio::select! {
                        () = sleep_until(until) => {}
                        _ = runtime.changed() => {}
                        _ = health.changed() => {}
                    }
                }
                _ => self.create_sandbox(pod).await,
            }
        }
    }

    /// Prepares the pod's claims and makes its sandbox, or waits for the next attempt. The status says meanwhile that
    /// the pod has arrived: a Prepare may take long.
    async fn create_sandbox(&mut self, pod: Arc<Pod>) {
        let life = self.life.clone();
        let (prepared, _) = tokio::join!(prepare(&life, &pod), self.write_status(Ended::No));
        match prepared {
            Ok(()) => {
                let host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
                let machine = &self.life.machine;
                let ip = if host { machine.options.node_address.clone() } else { machine.next_pod_ip() };
                machine.runtime.create_sandbox(&self.uid, pod, ip);
            }
            Err(err) => {
                let (node, name) = (&self.life.machine.options.node_name, &pod.metadata.name);
                warn!(node, pod = name, err, "could not prepare a pod's claims");
                let text = format!("Failed to prepare dynamic resources: prepare dynamic resources: {err}");
                let reason = "FailedPrepareDynamicResources";
                self.life.events.tell(&pod, Severity::Warning, reason, &text).await;
                self.write_status(Ended::No).await;
                time::sleep(jittered(self.life.machine.options.limits.pod_retry)).await;
            }
        }
    }

    async fn start(&mut self, pod: &Arc<Pod>, sandbox: &Sandbox, name: &str) {
        let Some((spec, init)) = container(pod, name) else { return };
        let machine = &self.life.machine;
        let ids = create::cdi_ids(pod, spec, &self.life.claims());
        let container = ids.and_then(|ids| create::create(&machine.options, pod, spec, init, &sandbox.ip, &ids));
        match container {
            Ok(container) => {
                machine.counters.container_starts.one();
                let run = Run::of(pod, spec, init && !plan::is_sidecar(spec));
                machine.runtime.start(&self.uid, container, run);
                info!(node = machine.options.node_name, pod = pod.metadata.name, name, "started container");
                let text = format!("Started container {name}");
                self.life.events.tell(pod, Severity::Normal, "Started", &text).await;
            }
            Err(err) => {
                machine.counters.container_refusals.one();
                warn!(
                    node = machine.options.node_name,
                    pod = pod.metadata.name,
                    name,
                    err,
                    "could not create container"
                );
                let retry = Instant::now() + jittered(machine.options.limits.pod_retry);
                machine.runtime.refuse(&self.uid, name, "CreateContainerError", err.clone(), retry);
                self.life.events.tell(pod, Severity::Warning, "Failed", &format!("Error: {err}")).await;
            }
        }
    }

    /// Stops the containers, then unprepares the claims, then says that the pod has ended.
    async fn stop(&mut self, ended: Ended) {
        let runtime = &self.life.machine.runtime;
        runtime.stop_pod(&self.uid);
        while let Err(err) = unprepare(&self.life, &self.uid).await {
            let (node, pod) = (&self.life.machine.options.node_name, self.pod());
            warn!(node, pod = pod.metadata.name, err, "could not unprepare a pod's claims, trying again");
            let text = format!("error killing pod: unprepare dynamic resources: {err}");
            self.life.events.tell(&pod, Severity::Warning, "FailedKillPod", &text).await;
            time::sleep(jittered(self.life.machine.options.limits.pod_retry)).await;
        }
        let ended = match ended {
            Ended::No => Ended::Finished { succeeded: false },
            ended => ended,
        };
        while self.past_end() == Ended::No && !self.write_status(ended).await {
            time::sleep(jittered(self.life.machine.options.limits.api_retry.0)).await;
        }
        self.life.machine.runtime.remove(&self.uid);
    }

    /// Removes the object, now that nothing of the pod is left on the node.
    async fn finalize(&mut self) {
        let pod = self.pod();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some(self.uid.clone()), resource_version: None }),
            ..DeleteParams::default()
        };
        while !self.seen.borrow().gone {
            match self.api.delete(name, &params).await {
                Ok(_) => return,
                // Gone, or another pod of the same name.
                Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => return,
                Err(err) => debug!(pod = name, %err, "could not remove a pod's object, trying again"),
            }
            time::sleep(jittered(self.life.machine.options.limits.api_retry.0)).await;
        }
    }

    /// Writes the pod's status if it changed. False if that failed and is worth another try.
    async fn write_status(&mut self, ended: Ended) -> bool {
        if self.seen.borrow().gone {
            return true;
        }
        let pod = self.pod();
        let sandbox = self.life.machine.runtime.sandbox(&self.uid);
        let status = {
            let claims = self.life.claims();
            let facts = Facts {
                pod: &pod,
                sandbox: sandbox.as_ref(),
                ended,
                host_ip: &self.life.machine.options.node_address,
                claims: &claims,
                health: &self.life.health,
            };
            facts.status(Time(Timestamp::now()))
        };
        if self.written.as_ref() == Some(&status) {
            return true;
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let patch = json!({"metadata": {"uid": self.uid}, "status": status});
        match self.api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(pod) => {
                self.answered = Some(Arc::new(pod));
                self.written = Some(status);
                true
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => {
                debug!(pod = name, status.message, "the pod is another one by now");
                true
            }
            Err(err) => {
                debug!(pod = name, %err, "could not write a pod's status");
                false
            }
        }
    }
}

/// Versions are numbers that grow (KEP-5504).
fn version(pod: &Pod) -> u64 {
    pod.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

fn container<'a>(pod: &'a Pod, name: &str) -> Option<(&'a Spec, bool)> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten().map(|container| (container, true));
    init.chain(spec.containers.iter().map(|container| (container, false))).find(|(spec, _)| spec.name == name)
}
