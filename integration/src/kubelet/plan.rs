//! What a pod's containers need next: init containers in order, then the others, each by the pod's restart policy.

use k8s_openapi::api::core::v1::{Container as Spec, Pod, PodSpec};
use tokio::time::{Duration, Instant};

use super::runtime::{Record, Sandbox, State};

/// What a pod's containers need next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Start this one.
    Start(String),
    /// Nothing until then, or until something happens.
    Wait(Option<Instant>),
    /// All that should run has ended.
    Finished {
        /// Every container ended well.
        succeeded: bool,
    },
}

/// What one container needs.
enum Need {
    Start,
    Wait(Option<Instant>),
    Up(Option<Instant>),
    Done(i32),
}

/// Whether an init container runs beside the others.
pub fn is_sidecar(spec: &Spec) -> bool {
    spec.restart_policy.as_deref() == Some("Always")
}

/// The pod's restart policy.
fn restart_policy(spec: &PodSpec) -> &str {
    spec.restart_policy.as_deref().unwrap_or("Always")
}

/// Whether a container that ended with `code` is started again.
pub fn restarts(spec: &PodSpec, container: &Spec, init: bool, code: i32) -> bool {
    match (init, restart_policy(spec)) {
        (true, _) if is_sidecar(container) => true,
        (_, "Never") => false,
        (false, "Always") => true,
        _ => code != 0,
    }
}

/// Decides the next step.
pub fn next(pod: &Pod, sandbox: &Sandbox, backoff: (Duration, Duration), now: Instant) -> Step {
    let Some(spec) = &pod.spec else { return Step::Finished { succeeded: false } };
    let mut wake = None;
    for init in spec.init_containers.iter().flatten() {
        let completes = !is_sidecar(init);
        let restarts = |code| restarts(spec, init, true, code);
        match need(sandbox.containers.get(&init.name), restarts, backoff, now) {
            Need::Start => return Step::Start(init.name.clone()),
            Need::Up(end) if completes => return Step::Wait(end),
            Need::Up(end) => wake = earliest(wake, end),
            // A sidecar that waits holds up the others only until it ran once.
            Need::Wait(until) if completes || !ran(sandbox, &init.name) => return Step::Wait(until),
            Need::Wait(until) => wake = earliest(wake, until),
            Need::Done(0) => {}
            Need::Done(_) => return Step::Finished { succeeded: false },
        }
    }
    let mut succeeded = true;
    let mut all_done = true;
    for container in &spec.containers {
        let restarts = |code| restarts(spec, container, false, code);
        match need(sandbox.containers.get(&container.name), restarts, backoff, now) {
            Need::Start => return Step::Start(container.name.clone()),
            Need::Wait(until) | Need::Up(until) => {
                all_done = false;
                wake = earliest(wake, until);
            }
            Need::Done(code) => succeeded &= code == 0,
        }
    }
    if all_done { Step::Finished { succeeded } } else { Step::Wait(wake) }
}

fn ran(sandbox: &Sandbox, name: &str) -> bool {
    sandbox.containers.get(name).is_some_and(|record| record.exit().is_some())
}

fn need(record: Option<&Record>, restarts: impl Fn(i32) -> bool, backoff: (Duration, Duration), now: Instant) -> Need {
    let Some(record) = record else { return Need::Start };
    match &record.state {
        State::Waiting { retry, .. } if *retry <= now => Need::Start,
        State::Waiting { retry, .. } => Need::Wait(Some(*retry)),
        State::Running { ends, .. } => Need::Up(ends.map(|(end, _)| end)),
        State::Exited(exit) => {
            if !restarts(exit.code) {
                return Need::Done(exit.code);
            }
            let at = exit.at + pause(record.restarts, backoff);
            if at <= now { Need::Start } else { Need::Wait(Some(at)) }
        }
    }
}

/// The first restart is immediate, later ones wait twice as long each time.
fn pause(restarts: u32, (first, most): (Duration, Duration)) -> Duration {
    match restarts {
        0 => Duration::ZERO,
        n => first.saturating_mul(1 << (n - 1).min(16)).min(most),
    }
}

fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::kubelet::runtime::Exit;

    const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

    fn pod(policy: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"restartPolicy": policy,
                "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init"}],
                "containers": [{"name": "main"}]},
        }))
        .unwrap()
    }

    fn running() -> Record {
        let container = crate::kubelet::Container {
            namespace: String::new(),
            pod: String::new(),
            pod_uid: String::new(),
            name: String::new(),
            init: false,
            devices: Vec::new(),
            env: BTreeMap::new(),
        };
        let state = State::Running { container, id: String::new(), since: Timestamp::now(), ends: None };
        Record { restarts: 0, state, last: None }
    }

    fn exited(code: i32, restarts: u32) -> Record {
        let (started, finished) = (Timestamp::now(), Timestamp::now());
        let exit = Exit { id: String::new(), code, started, finished, at: Instant::now() };
        Record { restarts, state: State::Exited(exit), last: None }
    }

    fn step(policy: &str, records: Vec<(&str, Record)>) -> Step {
        let pod = pod(policy);
        let containers = records.into_iter().map(|(name, record)| (name.to_owned(), record)).collect();
        let sandbox = Sandbox { pod: pod.clone().into(), ip: String::new(), ready: true, containers };
        next(&pod, &sandbox, BACKOFF, Instant::now())
    }

    #[test]
    fn init_containers_go_first_and_in_order() {
        assert_eq!(step("Always", vec![]), Step::Start("side".into()));
        assert_eq!(step("Always", vec![("side", running())]), Step::Start("init".into()));
        assert_eq!(step("Always", vec![("side", running()), ("init", running())]), Step::Wait(None));
        assert_eq!(step("Always", vec![("side", running()), ("init", exited(0, 0))]), Step::Start("main".into()));
    }

    #[test]
    fn a_failed_init_container_ends_a_pod_that_never_restarts() {
        let records = || vec![("side", running()), ("init", exited(1, 0))];
        assert_eq!(step("Never", records()), Step::Finished { succeeded: false });
        assert_eq!(step("OnFailure", records()), Step::Start("init".into()));
    }

    #[test]
    fn the_restart_policy_decides_what_an_exit_means() {
        let records =
            |code, restarts| vec![("side", running()), ("init", exited(0, 0)), ("main", exited(code, restarts))];
        assert_eq!(step("Always", records(0, 0)), Step::Start("main".into()));
        assert!(matches!(step("Always", records(0, 1)), Step::Wait(Some(_))));
        assert_eq!(step("OnFailure", records(0, 0)), Step::Finished { succeeded: true });
        assert_eq!(step("OnFailure", records(1, 0)), Step::Start("main".into()));
        assert_eq!(step("Never", records(1, 0)), Step::Finished { succeeded: false });
    }

    #[test]
    fn pauses_double_up_to_the_most() {
        let seconds: Vec<_> = [0, 1, 2, 3, 40].map(|n| pause(n, BACKOFF).as_secs()).into();
        assert_eq!(seconds, [0, 10, 20, 40, 300]);
    }
}
