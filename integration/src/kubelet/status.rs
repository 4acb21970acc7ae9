//! A pod's status, as the kubelet writes it.

use k8s_openapi::{
    api::core::v1::{
        Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus, ResourceHealth, ResourceStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};

use super::{
    claims::Claims,
    health::Health,
    plan::{is_sidecar, restarts},
    pod_claims,
    runtime::{Exit, Record, Sandbox, State},
};

/// Conditions that the kubelet owns; those of others are left as they are.
const OWN: &[&str] = &["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"];

/// How a pod ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has not.
    No,
    /// By itself.
    Finished {
        /// Well.
        succeeded: bool,
    },
}

/// All that a pod's status is made of.
pub struct Facts<'a> {
    /// The pod as last seen.
    pub pod: &'a Pod,
    /// Its sandbox, if there is one.
    pub sandbox: Option<&'a Sandbox>,
    /// Whether its workload has ended.
    pub ended: Ended,
    /// The node's address.
    pub host_ip: &'a str,
    /// Its claims.
    pub claims: &'a Claims,
    /// Their devices' health.
    pub health: &'a Health,
}

impl Facts<'_> {
    /// The fields that the kubelet writes, as a merge patch of the pod's status.
    pub fn status(&self, now: Time) -> Value {
        let default = PodStatus::default();
        let old = self.pod.status.as_ref().unwrap_or(&default);
        let spec = self.pod.spec.clone().unwrap_or_default();
        let init: Vec<_> =
            spec.init_containers.iter().flatten().map(|container| self.container(container, true)).collect();
        let main: Vec<_> = spec.containers.iter().map(|container| self.container(container, false)).collect();
        let initialized = spec.init_containers.iter().flatten().zip(&init).all(|(spec, status)| {
            let completed = terminated(status).is_some_and(|end| end.exit_code == 0);
            if is_sidecar(spec) { status.started == Some(true) || completed } else { completed }
        });
        let ready = initialized && !main.is_empty() && main.iter().all(|status| status.ready);
        let phase = self.phase(initialized, &main);
        let ip = self.sandbox.map(|sandbox| sandbox.ip.clone()).or_else(|| old.pod_ip.clone());
        let completed = phase == "Succeeded";
        let reason = if completed { Some("PodCompleted") } else { None };
        let not_ready = reason.or(Some("ContainersNotReady"));
        let conditions = [
            ("PodReadyToStartContainers", self.sandbox.is_some_and(|sandbox| sandbox.ready && self.alive()), None),
            (
                "Initialized",
                initialized || completed,
                if completed { reason } else { Some("ContainersNotInitialized") },
            ),
            ("Ready", ready, not_ready),
            ("ContainersReady", ready, not_ready),
        ];
        let unready: Vec<_> = main.iter().filter(|status| !status.ready).map(|status| status.name.as_str()).collect();
        let unready = format!("containers with unready status: [{}]", unready.join(" "));
        let conditions = conditions.map(|(kind, status, reason)| {
            let mut condition = condition(old, kind, status, reason, &now);
            if condition.reason.as_deref() == Some("ContainersNotReady") {
                condition.message = Some(unready.clone());
            }
            condition
        });
        let others = old.conditions.iter().flatten().filter(|other| !OWN.contains(&other.type_.as_str())).cloned();
        json!({
            "phase": phase,
            "conditions": conditions.into_iter().chain(others).collect::<Vec<_>>(),
            "hostIP": self.host_ip,
            "hostIPs": [HostIP { ip: self.host_ip.to_owned() }],
            "podIP": ip,
            "podIPs": ip.iter().map(|ip| PodIP { ip: ip.clone() }).collect::<Vec<_>>(),
            "startTime": old.start_time.clone().unwrap_or(now),
            "qosClass": old.qos_class.clone().unwrap_or_else(|| qos(&spec.containers).to_owned()),
            "containerStatuses": main,
            "initContainerStatuses": init,
        })
    }

    fn alive(&self) -> bool {
        self.ended == Ended::No && self.pod.metadata.deletion_timestamp.is_none()
    }

    fn phase(&self, initialized: bool, main: &[ContainerStatus]) -> &'static str {
        let old = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        match (old, self.ended) {
            (Some("Succeeded"), _) | (_, Ended::Finished { succeeded: true }) => "Succeeded",
            (Some("Failed"), _) | (_, Ended::Finished { succeeded: false }) => "Failed",
            (Some("Running"), _) => "Running",
            _ if initialized && main.iter().all(has_started) => "Running",
            _ => "Pending",
        }
    }

    fn container(&self, spec: &Spec, init: bool) -> ContainerStatus {
        let record = self.sandbox.and_then(|sandbox| sandbox.containers.get(&spec.name));
        let old = self.old_status(&spec.name, init).filter(|_| record.is_none() && self.sandbox.is_none());
        let image = spec.image.clone().unwrap_or_default();
        let mut status = ContainerStatus {
            name: spec.name.clone(),
            image_id: image.clone(),
            image,
            started: Some(false),
            ..Default::default()
        };
        match record {
            Some(record) => {
                fill(&mut status, record, init && !is_sidecar(spec));
                self.back_off(&mut status, spec, init);
            }
            None => match old.filter(|old| terminated(old).is_some()) {
                Some(old) => return old.clone(),
                None => status.state = Some(waiting(if init { "PodInitializing" } else { self.waiting_for() }, "")),
            },
        }
        status.allocated_resources_status = self.resources(spec);
        status
    }

    /// A container that will be started again is shown as waiting for that.
    fn back_off(&self, status: &mut ContainerStatus, spec: &Spec, init: bool) {
        let Some(end) = terminated(status) else { return };
        let again = self.pod.spec.as_ref().is_some_and(|pod| restarts(pod, spec, init, end.exit_code));
        if again && self.alive() {
            let text = format!("back-off restarting failed container {}", spec.name);
            status.last_state = status.state.replace(waiting("CrashLoopBackOff", &text));
        }
    }

    /// Why a container has not been created yet.
    fn waiting_for(&self) -> &'static str {
        let has_init = self.pod.spec.as_ref().is_some_and(|spec| spec.init_containers.iter().flatten().count() > 0);
        if has_init { "PodInitializing" } else { "ContainerCreating" }
    }

    fn old_status(&self, name: &str, init: bool) -> Option<&ContainerStatus> {
        let status = self.pod.status.as_ref()?;
        let statuses = if init { &status.init_container_statuses } else { &status.container_statuses };
        statuses.iter().flatten().find(|status| status.name == name)
    }

    /// The health of the devices that the container has by its claims.
    fn resources(&self, spec: &Spec) -> Option<Vec<ResourceStatus>> {
        let pod_claims = pod_claims::of(self.pod).ok()?;
        let namespace = self.pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut statuses: Vec<ResourceStatus> = Vec::new();
        for used in spec.resources.iter().flat_map(|resources| resources.claims.iter().flatten()) {
            let Some(claim) = pod_claims.iter().find(|claim| claim.entry == used.name) else { continue };
            let Some(devices) = self.claims.devices(namespace, &claim.name, used.request.as_deref()) else {
                continue;
            };
            let mut resources: Vec<ResourceHealth> = Vec::new();
            for entry in devices {
                let (driver, device) = (entry.driver, entry.device);
                let (pool, name) = (&device.pool_name, &device.device_name);
                let by_name = || format!("{driver}/{pool}/{name}");
                let resource_id = device.cdi_device_ids.first().cloned().unwrap_or_else(by_name);
                if resources.iter().all(|other| other.resource_id != resource_id) {
                    let health = Some(self.health.of(driver, pool, name).to_owned());
                    resources.push(ResourceHealth { health, resource_id });
                }
            }
            let name = match &used.request {
                Some(request) => format!("claim:{}/{request}", used.name),
                None => format!("claim:{}", used.name),
            };
            if !resources.is_empty() && statuses.iter().all(|other| other.name != name) {
                statuses.push(ResourceStatus { name, resources: Some(resources) });
            }
        }
        (!statuses.is_empty()).then_some(statuses)
    }
}

fn fill(status: &mut ContainerStatus, record: &Record, completes: bool) {
    status.restart_count = i32::try_from(record.restarts).unwrap_or(i32::MAX);
    status.last_state = record.last.as_ref().map(ended);
    match &record.state {
        State::Waiting { reason, message, .. } => status.state = Some(waiting(reason, message)),
        State::Running { id, since, .. } => {
            status.container_id = Some(id.clone());
            status.started = Some(true);
            status.ready = !completes;
            let running = Some(ContainerStateRunning { started_at: Some(Time(*since)) });
            status.state = Some(ContainerState { running, ..Default::default() });
        }
        State::Exited(exit) => {
            status.container_id = Some(exit.id.clone());
            status.ready = completes && exit.code == 0;
            status.state = Some(ended(exit));
        }
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let message = (!message.is_empty()).then(|| message.to_owned());
    let waiting = Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message });
    ContainerState { waiting, ..Default::default() }
}

fn ended(exit: &Exit) -> ContainerState {
    let terminated = Some(ContainerStateTerminated {
        exit_code: exit.code,
        reason: Some(exit.reason().to_owned()),
        started_at: Some(Time(exit.started)),
        finished_at: Some(Time(exit.finished)),
        container_id: Some(exit.id.clone()),
        ..Default::default()
    });
    ContainerState { terminated, ..Default::default() }
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

/// Whether a container runs, or has run before.
fn has_started(status: &ContainerStatus) -> bool {
    status.started == Some(true)
        || terminated(status).is_some()
        || status.last_state.as_ref().is_some_and(|last| last.terminated.is_some())
}

/// The condition with its time of change kept while it stays the same.
fn condition(old: &PodStatus, kind: &str, holds: bool, reason: Option<&str>, now: &Time) -> PodCondition {
    let status = if holds { "True" } else { "False" };
    let before = old.conditions.iter().flatten().find(|other| other.type_ == kind && other.status == status);
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.filter(|_| !holds || reason == Some("PodCompleted")).map(str::to_owned),
        last_transition_time: before.map_or_else(|| Some(now.clone()), |before| before.last_transition_time.clone()),
        ..Default::default()
    }
}

fn qos(containers: &[Spec]) -> &'static str {
    let resources = || containers.iter().filter_map(|container| container.resources.as_ref());
    let names = |map: &Option<std::collections::BTreeMap<String, _>>| map.as_ref().is_some_and(|map| !map.is_empty());
    if !resources().any(|resources| names(&resources.requests) || names(&resources.limits)) {
        return "BestEffort";
    }
    let guaranteed = resources().count() == containers.len()
        && resources().all(|resources| {
            let limits = resources.limits.clone().unwrap_or_default();
            let equal = resources.requests.as_ref().is_none_or(|requests| *requests == limits);
            limits.contains_key("cpu") && limits.contains_key("memory") && equal
        });
    if guaranteed { "Guaranteed" } else { "Burstable" }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::kubelet::{Container, runtime::Runtime, workload::Run};

    fn pod(extra: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]},
        });
        json_patch::merge(&mut pod, &extra);
        serde_json::from_value(pod).unwrap()
    }

    fn status(pod: &Pod, sandbox: Option<&Sandbox>, ended: Ended) -> PodStatus {
        let (claims, health) = (Claims::default(), Health::new());
        let facts = Facts { pod, sandbox, ended, host_ip: "127.10.0.1", claims: &claims, health: &health };
        serde_json::from_value(facts.status(Time(Timestamp::UNIX_EPOCH))).unwrap()
    }

    fn holds(status: &PodStatus, kind: &str) -> bool {
        status.conditions.iter().flatten().any(|other| other.type_ == kind && other.status == "True")
    }

    fn sandbox(pod: &Pod) -> Runtime {
        let runtime = Runtime::default();
        runtime.create_sandbox("u", Arc::new(pod.clone()), "10.0.1.2".into());
        let container = Container {
            namespace: "ns".into(),
            pod: "p".into(),
            pod_uid: "u".into(),
            name: "main".into(),
            init: false,
            devices: Vec::new(),
            env: std::collections::BTreeMap::new(),
        };
        runtime.start("u", container, Run::Forever);
        runtime
    }

    #[test]
    fn a_pod_without_sandbox_is_pending_and_keeps_the_schedulers_condition() {
        let status = status(&pod(json!({})), None, Ended::No);
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        assert!(holds(&status, "PodScheduled") && !holds(&status, "Ready"));
        assert!(holds(&status, "Initialized"));
        let container = &status.container_statuses.as_ref().unwrap()[0];
        let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("ContainerCreating"));
    }

    #[test]
    fn a_running_pod_is_ready_and_has_its_address() {
        let pod = pod(json!({}));
        let status = status(&pod, sandbox(&pod).sandbox("u").as_ref(), Ended::No);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status.pod_ip.as_deref(), Some("10.0.1.2"));
        assert!(holds(&status, "Ready") && holds(&status, "PodReadyToStartContainers"));
        assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    }

    #[test]
    fn a_crashed_container_waits_for_its_restart() {
        let pod = pod(json!({}));
        let runtime = sandbox(&pod);
        runtime.crash("ns", "p", "main", 3);
        let status = status(&pod, runtime.sandbox("u").as_ref(), Ended::No);
        let container = &status.container_statuses.as_ref().unwrap()[0];
        let reason = container.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.clone();
        assert_eq!(reason.as_deref(), Some("CrashLoopBackOff"));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(container.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 3);
    }

    #[test]
    fn a_condition_keeps_its_time_while_it_stays_the_same() {
        let then = "2020-01-01T00:00:00Z";
        let ready = json!([{"type": "Ready", "status": "False", "lastTransitionTime": then},
            {"type": "Initialized", "status": "False", "lastTransitionTime": then}]);
        let status = status(&pod(json!({"status": {"conditions": ready}})), None, Ended::No);
        let time = |kind: &str| {
            let condition = status.conditions.iter().flatten().find(|other| other.type_ == kind).unwrap();
            condition.last_transition_time.clone().unwrap().0
        };
        assert_eq!(time("Ready"), then.parse().unwrap());
        assert_eq!(time("Initialized"), Timestamp::UNIX_EPOCH);
    }

    #[test]
    fn a_finished_pod_is_complete() {
        let pod = pod(json!({"spec": {"restartPolicy": "Never"}}));
        let runtime = sandbox(&pod);
        runtime.crash("ns", "p", "main", 0);
        let status = status(&pod, runtime.sandbox("u").as_ref(), Ended::Finished { succeeded: true });
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        let ready = status.conditions.iter().flatten().find(|other| other.type_ == "Ready").unwrap();
        assert_eq!(ready.reason.as_deref(), Some("PodCompleted"));
    }
}
