//! The kubelet double against a plugin double, on the embedded API: what the real kubelet does, facts §5.

mod plugin;
mod registration;
mod world;

use std::time::Duration;

use heddle_integration::kubelet::Errno;
use heddle_proto::health::v1::HealthStatus;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;

use plugin::{DRIVER, Plugin};
use world::{NODE, World, phase, waiting};

#[tokio::test]
async fn a_pod_with_a_claim_runs_and_holds_exactly_its_device() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    let claim = world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let container = world.running("p1").await;
    assert_eq!(container.env["CLAIM"], claim.metadata.uid.unwrap());
    assert_eq!(container.channels().len(), 1);
    assert_eq!(container.open("/dev/nvidia-caps-imex-channels/channel1").unwrap().major, 505);
    assert_eq!(container.open("/dev/nvidia-caps-imex-channels/channel2"), Err(Errno::NOENT));
    assert_eq!(container.open_made_node(505, 2), Err(Errno::PERM));
    let pod = world.pods().get("p1").await.unwrap().status.unwrap();
    assert!(pod.pod_ip.unwrap().starts_with("10.0.1."));
    assert_eq!(pod.host_ip.as_deref(), Some("127.10.0.1"));
    assert!(pod.start_time.is_some());
    let conditions = pod.conditions.unwrap();
    for kind in ["PodScheduled", "Initialized", "Ready", "ContainersReady"] {
        assert!(conditions.iter().any(|other| other.type_ == kind && other.status == "True"), "{kind}");
    }
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 1);
}

#[tokio::test]
async fn the_node_shows_its_address_and_boot() {
    let world = World::new();
    let nodes: Api<Node> = Api::all(world.client.clone());
    let ready =
        |node: Option<&Node>| node.is_some_and(|node| node.status.as_ref().is_some_and(|s| s.node_info.is_some()));
    let node = await_condition(nodes, NODE, ready).await.unwrap().unwrap();
    assert_eq!(node.metadata.labels.as_ref().unwrap()["kubernetes.io/hostname"], NODE);
    let status = node.status.unwrap();
    assert_eq!(status.node_info.unwrap().boot_id, "boot-1");
    assert!(status.addresses.unwrap().iter().any(|a| a.type_ == "InternalIP" && a.address == "127.10.0.1"));
}

#[tokio::test]
async fn a_second_pod_on_a_prepared_claim_needs_no_call_and_the_last_one_unprepares() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let first = world.running("p1").await;
    world.pod("p2", &["c1"], json!({})).await;
    let second = world.running("p2").await;
    assert_eq!(first.devices, second.devices);
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 1);
    world.delete("p1").await;
    world.gone("p1").await;
    assert_eq!(plugin.double.get(|script| script.unprepares.len()), 0);
    world.delete("p2").await;
    world.gone("p2").await;
    assert_eq!(plugin.double.get(|script| script.unprepares.clone()), [["c1"]]);
    assert!(world.kubelet.containers().is_empty());
}

#[tokio::test]
async fn all_claims_of_a_pod_come_in_one_call() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.claim("c2").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    world.claim("c3").await;
    world.pod("p2", &["c1", "c2", "c3"], json!({})).await;
    world.running("p2").await;
    let prepares = plugin.double.get(|script| script.prepares.clone());
    assert_eq!(prepares, [vec!["c1"], vec!["c2", "c3"]]);
}

#[tokio::test]
async fn a_failed_prepare_is_told_in_the_kubelets_words_and_tried_again() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.set(|script| script.errors = [("c1".to_owned(), "no free channel".to_owned())].into());
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let text = world.event("p1", "FailedPrepareDynamicResources", "failed for ResourceClaim").await;
    let expected = "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for \
                    ResourceClaim c1: no free channel";
    assert_eq!(text, expected);
    let pod = world.pods().get("p1").await.unwrap();
    assert!(pod.status.unwrap().pod_ip.is_none());
    plugin.double.until(|script| script.prepares.len() >= 2).await;
    plugin.double.set(|script| script.errors.clear());
    let container = world.running("p1").await;
    assert_eq!(container.devices.len(), 1);
}

#[tokio::test]
async fn an_answer_must_have_one_entry_per_claim() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.set(|script| script.skip = ["c2".to_owned()].into());
    world.claim("c1").await;
    world.claim("c2").await;
    world.pod("p1", &["c1", "c2"], json!({})).await;
    let text = world.event("p1", "FailedPrepareDynamicResources", "skipped").await;
    assert!(text.ends_with("NodePrepareResources skipped 1 ResourceClaims"), "{text}");
    plugin.double.set(|script| script.surplus = Some("stranger".into()));
    world.pod("p2", &["c1", "c2"], json!({})).await;
    let text = world.event("p2", "FailedPrepareDynamicResources", "unknown claim").await;
    assert!(text.ends_with("NodePrepareResources returned result for unknown claim UID stranger"), "{text}");
}

#[tokio::test]
async fn a_claim_that_is_not_reserved_for_the_pod_is_not_prepared() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    let pod =
        world.pod("p1", &[], json!({"spec": {"resourceClaims": [{"name": "c1", "resourceClaimName": "c1"}]}})).await;
    let text = world.event("p1", "FailedPrepareDynamicResources", "not allowed").await;
    let uid = pod.metadata.uid.unwrap();
    assert!(text.contains(&format!("pod p1 ({uid}) is not allowed to use ResourceClaim c1")), "{text}");
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 0);
}

#[tokio::test]
async fn without_its_driver_a_pod_waits_and_can_be_deleted() {
    let world = World::new();
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let text = world.event("p1", "FailedPrepareDynamicResources", "not registered").await;
    assert!(text.ends_with(&format!("DRA driver {DRIVER} is not registered")), "{text}");
    world.pod("p2", &["c1"], json!({})).await;
    world.event("p2", "FailedPrepareDynamicResources", "").await;
    world.delete("p2").await;
    world.gone("p2").await;
    let _plugin = Plugin::start(&world.paths, "a");
    world.running("p1").await;
}

#[tokio::test]
async fn a_container_never_starts_without_its_cdi_device() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.set(|script| script.no_cdi = true);
    let claim = world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let text = world.event("p1", "Failed", "unresolvable").await;
    let uid = claim.metadata.uid.unwrap();
    assert!(text.contains(&format!("unresolvable CDI devices {DRIVER}/claim={uid}")), "{text}");
    let pod = world.until("p1", |pod: Option<&Pod>| pod.is_some_and(|pod| waiting(pod).is_some())).await.unwrap();
    assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));
    assert!(world.kubelet.containers().is_empty());
    // The file appears: the next attempt finds it, without another Prepare.
    let spec = format!(
        r#"{{"cdiVersion":"0.5.0","kind":"{DRIVER}/claim","devices":[{{"name":"{uid}","containerEdits":{{"env":["A=b"]}}}}]}}"#
    );
    std::fs::write(world.paths.cdi().join("late.json"), spec).unwrap();
    world.running("p1").await;
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 1);
}

#[tokio::test]
async fn a_restarted_kubelet_leaves_running_pods_alone_and_prepares_again_for_new_ones() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    world.kubelet.restart().await;
    plugin.double.until(|script| script.notices.len() == 2).await;
    assert_eq!(world.kubelet.containers().len(), 1);
    // A crash does not prepare, a further pod does: the memory is gone.
    world.kubelet.crash("default", "p1", "main", 1);
    let restarted = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref()?.first());
        status.is_some_and(|status| status.restart_count == 1 && status.ready)
    };
    world.until("p1", restarted).await;
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 1);
    world.pod("p2", &["c1"], json!({})).await;
    world.running("p2").await;
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 2);
}

#[tokio::test]
async fn a_reboot_prepares_surviving_pods_again() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    std::fs::write(world.paths.os().join("proc/sys/kernel/random/boot_id"), "boot-2\n").unwrap();
    world.kubelet.reboot().await;
    plugin.double.until(|script| script.prepares.len() == 2).await;
    let restarted = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref()?.first());
        status.is_some_and(|status| status.restart_count == 1 && status.ready)
    };
    world.until("p1", restarted).await;
    let minor = world.container("p1").unwrap().devices[0].minor;
    assert_eq!(minor, 2, "the CDI file of the second Prepare");
    let nodes: Api<Node> = Api::all(world.client.clone());
    let rebooted = |node: Option<&Node>| {
        let info = node.and_then(|node| node.status.as_ref()?.node_info.as_ref());
        info.is_some_and(|info| info.boot_id == "boot-2")
    };
    await_condition(nodes, NODE, rebooted).await.unwrap();
}

#[tokio::test]
async fn a_failing_unprepare_holds_the_pod_until_it_succeeds() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    plugin.double.set(|script| script.keep = true);
    world.delete("p1").await;
    plugin.double.until(|script| script.unprepares.len() >= 2).await;
    assert!(world.kubelet.containers().is_empty());
    assert!(world.pods().get_opt("p1").await.unwrap().is_some());
    plugin.double.set(|script| script.keep = false);
    world.gone("p1").await;
}

#[tokio::test]
async fn a_pod_deleted_during_prepare_is_unprepared() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.set(|script| script.hang = true);
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    plugin.double.until(|script| script.prepares.len() == 1).await;
    world.delete("p1").await;
    world.gone("p1").await;
    assert_eq!(plugin.double.get(|script| script.unprepares.clone()), [["c1"]]);
}

#[tokio::test]
async fn a_hanging_prepare_ends_at_the_limit() {
    let limits = heddle_integration::kubelet::Limits {
        call: Duration::from_millis(100),
        ..heddle_integration::kubelet::Limits::brisk()
    };
    let world = World::with(limits);
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.set(|script| script.hang = true);
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let text = world.event("p1", "FailedPrepareDynamicResources", "rpc error").await;
    assert!(text.contains("NodePrepareResources: rpc error: code = "), "{text}");
    plugin.double.set(|script| script.hang = false);
    world.running("p1").await;
}

#[tokio::test]
async fn a_pod_deleted_by_force_is_cleaned_up() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    world.pods().delete("p1", &DeleteParams::default().grace_period(0)).await.unwrap();
    plugin.double.until(|script| script.unprepares.len() == 1).await;
    assert!(world.kubelet.containers().is_empty());
}

#[tokio::test]
async fn pods_that_vanished_while_the_kubelet_was_down_are_unprepared() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    world.kubelet.stop().await;
    assert_eq!(world.kubelet.containers().len(), 1);
    world.pods().delete("p1", &DeleteParams::default().grace_period(0)).await.unwrap();
    world.kubelet.restart().await;
    plugin.double.until(|script| script.unprepares.len() == 1).await;
    assert!(world.kubelet.containers().is_empty());
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 1);
}

#[tokio::test]
async fn a_completed_pod_unprepares_and_keeps_its_object() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    let job =
        json!({"spec": {"restartPolicy": "Never"}, "metadata": {"annotations": {"heddle.dev/run-seconds": "0.05"}}});
    world.pod("p1", &["c1"], job).await;
    let pod = world.until("p1", phase("Succeeded")).await.unwrap();
    let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
    assert_eq!(status.state.unwrap().terminated.unwrap().exit_code, 0);
    assert_eq!(plugin.double.get(|script| script.unprepares.clone()), [["c1"]]);
    world.delete("p1").await;
    world.gone("p1").await;
    assert_eq!(plugin.double.get(|script| script.unprepares.len()), 1);
}

#[tokio::test]
async fn a_failing_job_pod_fails() {
    let world = World::new();
    let spec = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i", "command": ["false"]}]}});
    world.pod("p1", &[], spec).await;
    let pod = world.until("p1", phase("Failed")).await.unwrap();
    let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
    assert_eq!(status.state.unwrap().terminated.unwrap().exit_code, 1);
}

#[tokio::test]
async fn containers_get_the_devices_that_they_name_and_init_containers_go_first() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.set(|script| script.request_names = vec!["channel".into()]);
    world.claim("c1").await;
    let uses = |request: &str| json!({"claims": [{"name": "c1", "request": request}]});
    let spec = json!({"spec": {
        "initContainers": [{"name": "init", "image": "i", "resources": uses("channel")}],
        "containers": [
            {"name": "named", "image": "i", "resources": uses("channel")},
            {"name": "other", "image": "i", "resources": uses("channel/sub")},
            {"name": "bare", "image": "i"},
        ],
    }});
    world.pod("p1", &["c1"], spec).await;
    world.until("p1", phase("Running")).await;
    let devices = |name: &str| {
        let containers = world.kubelet.containers();
        containers.into_iter().find(|container| container.name == name).map(|container| container.devices.len())
    };
    assert_eq!((devices("named"), devices("other"), devices("bare")), (Some(1), Some(0), Some(0)));
    assert_eq!(devices("init"), None);
    let status = world.pods().get("p1").await.unwrap().status.unwrap();
    let init = status.init_container_statuses.unwrap().remove(0);
    assert_eq!(init.state.unwrap().terminated.unwrap().exit_code, 0);
    assert_eq!(world.kubelet.counts().container_starts, 4);
}

#[tokio::test]
async fn health_reaches_the_pods_status() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.report("slot-0", HealthStatus::Healthy);
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    let health = |wanted: &'static str| {
        move |pod: Option<&Pod>| {
            let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
            let status = statuses.and_then(|all| all.first()?.allocated_resources_status.as_ref()?.first());
            let resource = status.and_then(|status| status.resources.as_ref()?.first());
            resource.and_then(|resource| resource.health.as_deref()) == Some(wanted)
        }
    };
    let pod = world.until("p1", health("Healthy")).await.unwrap();
    let status = pod.status.unwrap().container_statuses.unwrap().remove(0).allocated_resources_status.unwrap();
    assert_eq!(status[0].name, "claim:c1");
    plugin.double.report("slot-0", HealthStatus::Unhealthy);
    world.until("p1", health("Unhealthy")).await;
    plugin.stop(true);
    world.until("p1", health("Unknown")).await;
}

#[tokio::test]
async fn a_new_pod_of_the_same_name_is_another_pod() {
    let world = World::new();
    let plugin = Plugin::start(&world.paths, "a");
    world.claim("c1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    world.delete("p1").await;
    world.gone("p1").await;
    world.pod("p1", &["c1"], json!({})).await;
    world.running("p1").await;
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 2);
}

#[tokio::test]
async fn a_pod_that_waits_is_started_when_it_is_bound() {
    let world = World::new();
    let pod = json!({"metadata": {"name": "elsewhere"}, "spec": {"nodeName": "n2", "containers": [{"name": "main", "image": "i"}]}});
    world.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    world.pod("here", &[], json!({})).await;
    world.running("here").await;
    assert_eq!(world.kubelet.containers().len(), 1);
}

#[tokio::test]
async fn a_job_with_a_claim_template_runs_through_with_the_control_plane() {
    use k8s_openapi::api::batch::v1::Job;
    let world = World::new();
    world.wiped().await;
    let _control = heddle_integration::control::start(world.client.clone());
    let plugin = Plugin::start(&world.paths, "a");
    plugin.double.until(|script| script.notices.len() == 1).await;
    world
        .apply(
            "/apis/resource.k8s.io/v1/deviceclasses",
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "threads"},
                "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}]},
            }),
        )
        .await;
    world.apply("/apis/resource.k8s.io/v1/resourceslices", json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n1-slots"},
        "spec": {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "slot-0"}, {"name": "slot-1"}]},
    })).await;
    world
        .apply(
            "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates",
            json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"},
                "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "threads"}}]}}},
            }),
        )
        .await;
    world
        .apply(
            "/apis/batch/v1/namespaces/default/jobs",
            json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
                "spec": {"parallelism": 2, "completions": 2, "template": {"spec": {
                    "restartPolicy": "Never",
                    "resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}],
                    "containers": [{"name": "main", "image": "i", "command": ["sleep", "0.1"],
                        "resources": {"claims": [{"name": "c"}]}}],
                }}},
            }),
        )
        .await;
    let jobs: Api<Job> = Api::default_namespaced(world.client.clone());
    let done = |job: Option<&Job>| job.is_some_and(|job| job.status.as_ref().and_then(|s| s.succeeded) == Some(2));
    tokio::time::timeout(Duration::from_secs(30), await_condition(jobs, "j", done)).await.expect("never done").unwrap();
    plugin.double.until(|script| script.unprepares.len() == 2).await;
    assert_eq!(plugin.double.get(|script| script.prepares.len()), 2);
}
