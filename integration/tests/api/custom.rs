//! Kinds that CRDs define.

use heddle_core::api::{ComputeDomain, crds};
use heddle_integration::api::validate;
use kube::core::{ApiResource, DynamicObject};

use super::*;

fn dynamic(client: Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client, &ApiResource::erase::<ComputeDomain>(&()))
}

fn cd(name: &str, spec: Value) -> DynamicObject {
    object(json!({
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": name}, "spec": spec,
    }))
}

#[tokio::test]
async fn compute_domains_are_defaulted_and_guarded() {
    let client = server().client();
    let api = Api::<ComputeDomain>::default_namespaced(client.clone());
    assert_eq!(refusal(api.list(&ListParams::default()).await).code, 404, "not before its CRD");
    with_crds(&client).await;
    let dynamic = Api::<kube::core::DynamicObject>::default_namespaced_with(
        client,
        &kube::core::ApiResource::erase::<ComputeDomain>(&()),
    );
    let cd = |name: &str, spec: Value| -> kube::core::DynamicObject {
        object(json!({
            "apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain",
            "metadata": {"name": name}, "spec": spec,
        }))
    };
    let template = json!({"name": "t"});
    let made = dynamic
        .create(&PostParams::default(), &cd("a", json!({"channel": {"resourceClaimTemplate": template}, "odd": 1})))
        .await
        .unwrap();
    assert_eq!(
        made.data["spec"],
        json!({
            "numNodes": 0,
            "isolationMode": "Channel",
            "channel": {"allocationMode": "Single", "resourceClaimTemplate": {"name": "t"}},
        })
    );

    let wrong = json!({"channel": {"allocationMode": "All", "resourceClaimTemplate": template}});
    let status = refusal(dynamic.create(&PostParams::default(), &cd("b", wrong)).await);
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    let cause = &status.details.unwrap().causes[0];
    assert_eq!((cause.field.as_str(), cause.reason.as_str()), ("spec", "FieldValueInvalid"));
    assert!(cause.message.contains("needs isolationMode Domain"), "{}", cause.message);

    let wrong = json!({"numNodes": -1, "isolationMode": "X", "channel": {"resourceClaimTemplate": {"name": ""}}});
    let status = refusal(dynamic.create(&PostParams::default(), &cd("b", wrong)).await);
    let fields = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect::<Vec<_>>();
    assert_eq!(fields, ["spec.channel.resourceClaimTemplate.name", "spec.isolationMode", "spec.numNodes"]);

    let patch = Patch::Merge(json!({"spec": {"numNodes": 2}}));
    let status = refusal(dynamic.patch("a", &PatchParams::default(), &patch).await);
    assert!(status.message.contains("spec is immutable"), "{}", status.message);

    let patch = Patch::Merge(json!({"status": {"status": "Ready"}, "metadata": {"labels": {"x": "y"}}}));
    let changed = dynamic.patch_status("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(changed.data["status"]["status"], "Ready");
    assert!(changed.labels().is_empty(), "a write to the status leaves the rest");
    let changed = dynamic.patch("a", &PatchParams::default(), &Patch::Merge(json!({"status": null}))).await.unwrap();
    assert_eq!(changed.data["status"]["status"], "Ready", "and the other way round");
}

#[tokio::test]
async fn unknown_fields_are_an_error_where_that_is_asked_for() {
    let client = server().client();
    with_crds(&client).await;
    let spec = json!({"channel": {"resourceClaimTemplate": {"name": "t"}}, "odd": 1});
    let params = PatchParams::apply("test").validation_strict();
    let status = refusal(dynamic(client).patch("a", &params, &Patch::Apply(cd("a", spec))).await);
    assert_eq!(status.code, 400);
    assert!(status.message.contains("unknown field \"spec.odd\""), "{}", status.message);
}

#[tokio::test]
async fn a_file_is_checked_without_a_server() {
    let crd = serde_json::to_value(&crds()[0]).unwrap();
    let check = |spec: Value| {
        let errors = validate(&crd, &serde_json::to_value(cd("a", spec)).unwrap(), None).unwrap();
        errors.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(check(json!({"channel": {"resourceClaimTemplate": {"name": "t"}}})), [""; 0]);
    assert_eq!(
        check(json!({"numNodes": "two", "mode": 1})),
        [
            "spec.mode: Unknown field",
            "spec.channel: Required value",
            "spec.numNodes: Invalid value: \"string\": spec.numNodes in body must be of type integer: \"string\"",
        ]
    );
}

#[tokio::test]
async fn a_crd_goes_after_its_objects() {
    let client = server().client();
    with_crds(&client).await;
    let api = dynamic(client.clone());
    let spec = json!({"channel": {"resourceClaimTemplate": {"name": "t"}}});
    let mut held = cd("a", spec);
    held.metadata.finalizers = Some(vec!["x/y".into()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    let crds = Api::<CustomResourceDefinition>::all(client);
    let left = crds.delete("computedomains.resource.nvidia.com", &DeleteParams::default()).await.unwrap();
    assert!(left.is_left(), "it waits for the object, which waits for its finalizer");
    assert!(api.get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("a", &PatchParams::default(), &none).await.unwrap();
    assert_eq!(refusal(crds.get("computedomains.resource.nvidia.com").await).code, 404);
    assert_eq!(refusal(api.list(&ListParams::default()).await).code, 404);
}

/// The real server decodes what is stored by the schema that it serves: a field that this one does not have is not
/// shown, and lost with the next write.
#[tokio::test]
async fn what_is_stored_is_read_by_the_schema_that_is_served() {
    let server = server();
    let client = server.client();
    with_crds(&client).await;
    let (api, crds_api) = (dynamic(client.clone()), Api::<CustomResourceDefinition>::all(client));
    let exclusive = json!({"isolationMode": "Domain", "channel": {"resourceClaimTemplate": {"name": "t"}}});
    for name in ["kept", "written"] {
        api.create(&PostParams::default(), &cd(name, exclusive.clone())).await.unwrap();
    }
    let listed = api.list(&ListParams::default()).await.unwrap();
    let before = listed.metadata.resource_version.unwrap();
    let mut watch = api.watch(&WatchParams::default(), &before).await.unwrap().boxed();

    let foreign: CustomResourceDefinition =
        serde_json::from_str(include_str!("../../../core/tests/samples/crd/foreign.json")).unwrap();
    let params = PatchParams::apply("another").force();
    crds_api.patch("computedomains.resource.nvidia.com", &params, &Patch::Apply(&foreign)).await.unwrap();
    assert!(watch.next().await.is_none(), "watches of the old schema end");
    let mut again = api.watch(&WatchParams::default(), &before).await.unwrap().boxed();
    let WatchEvent::Error(status) = again.try_next().await.unwrap().unwrap() else { panic!() };
    assert_eq!(status.code, 410, "and begin anew with a list");
    for name in ["kept", "written"] {
        let shown = api.get(name).await.unwrap();
        let known = listed.items.iter().find(|item| item.name_any() == name).unwrap();
        assert_eq!(shown.data["spec"].get("isolationMode"), None);
        assert_eq!(shown.resource_version(), known.resource_version(), "it was not written");
    }
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    api.patch("written", &PatchParams::default(), &label).await.unwrap();

    let params = PatchParams::apply("heddle").force();
    crds_api.patch("computedomains.resource.nvidia.com", &params, &Patch::Apply(&crds()[0])).await.unwrap();
    assert_eq!(api.get("kept").await.unwrap().data["spec"]["isolationMode"], "Domain");
    assert_eq!(api.get("written").await.unwrap().data["spec"]["isolationMode"], "Channel", "the default of ours");
}

/// Known failures 732, 822, 1107: a server that is asked too much is given the time that it asks for.
#[tokio::test]
async fn a_client_waits_as_long_as_the_server_asks_for() {
    let server = server();
    let listening = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = asked.clone();
    server.fail_requests(move |request| {
        let mut seen = seen.lock().unwrap();
        if request.plural != "configmaps" || seen.len() == 2 {
            return None;
        }
        seen.push(std::time::Instant::now());
        let details = serde_json::from_value(json!({"retryAfterSeconds": 1})).unwrap();
        Some(Status::failure("too many requests", "TooManyRequests").with_code(429).with_details(details))
    });
    let config = kube::Config::from_custom_kubeconfig(server.kubeconfig(&listening), &Default::default()).await;
    let api = Api::<ConfigMap>::default_namespaced(Client::try_from(config.unwrap()).unwrap());
    api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    let (asked, done) = (asked.lock().unwrap().clone(), std::time::Instant::now());
    let second = std::time::Duration::from_secs(1);
    assert!(asked[1] - asked[0] >= second && done - asked[1] >= second, "sent anew before it was asked for: {asked:?}");
}
