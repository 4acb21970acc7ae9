//! Names, namespaces, dry runs, patches, faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heddle_integration::api::Verb;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::*;

#[tokio::test]
async fn names_are_generated_and_checked() {
    let maps = Api::<ConfigMap>::default_namespaced(server().client());
    let generated: ConfigMap = object(json!({"metadata": {"generateName": "a-"}}));
    let (one, two) = (
        maps.create(&PostParams::default(), &generated).await.unwrap().name_any(),
        maps.create(&PostParams::default(), &generated).await.unwrap().name_any(),
    );
    assert!(one != two && one.starts_with("a-") && one.len() == 7, "{one} {two}");
    assert_eq!(refusal(maps.create(&PostParams::default(), &configmap("A_b", "1")).await).code, 422);
    assert_eq!(refusal(maps.create(&PostParams::default(), &object(json!({"metadata": {}}))).await).code, 422);
}

#[tokio::test]
async fn uids_and_generated_names_repeat_with_the_seed() {
    let mut made = Vec::new();
    for _ in 0..2 {
        let maps = Api::<ConfigMap>::default_namespaced(server().client());
        let map = maps.create(&PostParams::default(), &object(json!({"metadata": {"generateName": "a-"}}))).await;
        let map = map.unwrap();
        made.push((map.name_any(), map.uid()));
    }
    assert_eq!(made[0], made[1]);
}

#[tokio::test]
async fn a_missing_namespace_is_not_found() {
    let maps = Api::<ConfigMap>::namespaced(server().client(), "absent");
    let status = refusal(maps.create(&PostParams::default(), &configmap("a", "1")).await);
    assert_eq!((status.code, status.message.as_str()), (404, "namespaces \"absent\" not found"));
}

#[tokio::test]
async fn a_dry_run_checks_and_keeps_nothing() {
    let server = server();
    let maps = Api::<ConfigMap>::default_namespaced(server.client());
    let before = server.resource_version();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    assert!(maps.create(&params, &configmap("a", "1")).await.unwrap().uid().is_some());
    assert_eq!(refusal(maps.create(&params, &configmap("A", "1")).await).code, 422);
    assert_eq!(server.resource_version(), before);
}

#[tokio::test]
async fn only_one_of_two_writes_from_the_same_version_is_taken() {
    let maps = Api::<ConfigMap>::default_namespaced(server().client());
    let made = maps.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    let version = made.resource_version();
    let guarded = |value: &str| Patch::Merge(json!({"metadata": {"resourceVersion": version}, "data": {"k": value}}));
    maps.patch("a", &PatchParams::default(), &guarded("2")).await.unwrap();
    assert_eq!(refusal(maps.patch("a", &PatchParams::default(), &guarded("3")).await).reason, "Conflict");
}

#[tokio::test]
async fn the_generation_counts_changes_of_the_spec() {
    let api = Api::<Deployment>::default_namespaced(server().client());
    let made = json!({
        "metadata": {"name": "d"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        }},
    });
    let made = api.create(&PostParams::default(), &object(made)).await.unwrap();
    assert_eq!((made.metadata.generation, made.spec.unwrap().replicas), (Some(1), Some(1)));
    let merge = |value: Value| Patch::Merge(value);
    let labelled = merge(json!({"metadata": {"labels": {"x": "y"}}, "status": {"replicas": 3}}));
    let labelled = api.patch("d", &PatchParams::default(), &labelled).await.unwrap();
    assert_eq!(labelled.metadata.generation, Some(1));
    assert_eq!(labelled.status, None);
    let scaled = api.patch_scale("d", &PatchParams::default(), &merge(json!({"spec": {"replicas": 5}}))).await;
    assert_eq!(scaled.unwrap().spec.unwrap().replicas, Some(5));
    assert_eq!(api.get("d").await.unwrap().metadata.generation, Some(2));
}

#[tokio::test]
async fn objects_of_the_wrong_shape_are_refused() {
    let client = server().client();
    let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": "text"}).to_string();
    let request = http::Request::post("/api/v1/namespaces/default/pods").body(body.into_bytes()).unwrap();
    assert_eq!(refusal(client.request::<Value>(request).await).code, 400);
    let request = http::Request::post("/api/v1/namespaces/default/pods").body(b"[".to_vec()).unwrap();
    assert_eq!(refusal(client.request::<Value>(request).await).code, 400);
}

#[tokio::test]
async fn a_claim_keeps_its_spec_and_forgets_its_devices_with_the_allocation() {
    let api = Api::<ResourceClaim>::default_namespaced(server().client());
    let claim = json!({
        "metadata": {"name": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "k"}}]}},
    });
    let made = api.create(&PostParams::default(), &object(claim)).await.unwrap();
    let exactly = made.spec.devices.unwrap().requests.unwrap().remove(0).exactly.unwrap();
    assert_eq!((exactly.allocation_mode.as_deref(), exactly.count), (Some("ExactCount"), Some(1)));
    let other = Patch::Merge(json!({"spec": {"devices": {"requests": []}}}));
    assert_eq!(refusal(api.patch("c", &PatchParams::default(), &other).await).code, 422);

    let device = json!({"driver": "d.x", "pool": "p", "device": "slot-0"});
    let mut result = device.clone();
    result["request"] = "r".into();
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}, "devices": [device]}});
    api.patch_status("c", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    let freed = Patch::Merge(json!({"status": {"allocation": null}}));
    let freed = api.patch_status("c", &PatchParams::default(), &freed).await.unwrap();
    assert_eq!(freed.status.unwrap().devices, None);
}

#[tokio::test]
async fn requests_fail_as_told() {
    let server = server();
    let counted = Arc::new(AtomicUsize::new(0));
    let (agent, other) = (server.client_as("agent"), server.client());
    server.fail_requests({
        let counted = counted.clone();
        move |request| {
            let hit = request.user_agent == "agent" && request.verb == Verb::Create && request.plural == "configmaps";
            hit.then(|| {
                counted.fetch_add(1, Ordering::Relaxed);
                Status::failure("the server is down", "ServiceUnavailable").with_code(503)
            })
        }
    });
    let maps = |client: &Client| Api::<ConfigMap>::default_namespaced(client.clone());
    let refused = refusal(maps(&agent).create(&PostParams::default(), &configmap("a", "1")).await);
    assert_eq!((refused.code, counted.load(Ordering::Relaxed)), (503, 1));
    maps(&other).create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    server.heal();
    maps(&agent).create(&PostParams::default(), &configmap("b", "1")).await.unwrap();
}
