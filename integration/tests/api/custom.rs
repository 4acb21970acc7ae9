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
