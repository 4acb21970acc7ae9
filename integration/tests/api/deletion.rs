//! What goes when, and what goes with it.

use heddle_integration::api::EventType;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::api::{Preconditions, PropagationPolicy};

use super::*;

#[tokio::test]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    let server = server();
    let api = Api::<ConfigMap>::default_namespaced(server.client());
    let mut held = configmap("a", "1");
    held.metadata.finalizers = Some(vec!["x/y".into()]);
    api.create(&PostParams::default(), &held).await.unwrap();
    let left = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(left.metadata.deletion_timestamp.is_some());
    let more = Patch::Merge(json!({"metadata": {"finalizers": ["x/y", "z/z"]}}));
    assert!(refusal(api.patch("a", &PatchParams::default(), &more).await).message.contains("no new finalizers"));
    let none = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    let before = server.resource_version();
    api.patch("a", &PatchParams::default(), &none).await.unwrap();
    assert_eq!(refusal(api.get("a").await).code, 404);
    assert_eq!(server.resource_version(), before + 1, "the deletion is the only change");
}

#[tokio::test]
async fn what_an_owner_leaves_behind_goes_with_it() {
    let server = server();
    let client = server.client();
    let nodes = Api::<Node>::all(client.clone());
    let node = nodes.create(&PostParams::default(), &object(json!({"metadata": {"name": "n"}}))).await.unwrap();
    let maps = Api::<ConfigMap>::default_namespaced(client);
    let mut owned = configmap("a", "1");
    owned.metadata.owner_references =
        Some(vec![object(json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": node.uid().unwrap()}))]);
    maps.create(&PostParams::default(), &owned).await.unwrap();
    nodes.delete("n", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(maps.get("a").await).code, 404);

    let mut history = server.history();
    let mut gone = Vec::new();
    while let Some(change) = history.try_next().unwrap() {
        if change.event == EventType::Deleted {
            gone.push(change.kind().to_owned());
        }
    }
    assert_eq!(gone, ["Node", "ConfigMap"]);
}

async fn owned(client: &Client) -> (Api<ConfigMap>, ConfigMap) {
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    let owner = maps.create(&PostParams::default(), &configmap("owner", "1")).await.unwrap();
    let mut owned = configmap("owned", "1");
    owned.metadata.owner_references = Some(vec![object(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid().unwrap(),
        "blockOwnerDeletion": true,
    }))]);
    owned.metadata.finalizers = Some(vec!["x/y".into()]);
    maps.create(&PostParams::default(), &owned).await.unwrap();
    (maps, owner)
}

fn policy(policy: PropagationPolicy) -> DeleteParams {
    DeleteParams { propagation_policy: Some(policy), ..DeleteParams::default() }
}

#[tokio::test]
async fn orphans_stay_without_their_owner() {
    let (maps, _) = owned(&server().client()).await;
    maps.delete("owner", &policy(PropagationPolicy::Orphan)).await.unwrap();
    let orphan = maps.get("owned").await.unwrap();
    assert!(orphan.owner_references().is_empty() && orphan.metadata.deletion_timestamp.is_none());
}

#[tokio::test]
async fn in_the_foreground_the_owner_goes_last() {
    let (maps, _) = owned(&server().client()).await;
    maps.delete("owner", &policy(PropagationPolicy::Foreground)).await.unwrap();
    assert_eq!(maps.get("owner").await.unwrap().finalizers(), ["foregroundDeletion"]);
    assert!(maps.get("owned").await.unwrap().metadata.deletion_timestamp.is_some());
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("owned", &PatchParams::default(), &none).await.unwrap();
    assert_eq!(refusal(maps.get("owned").await).code, 404);
    assert_eq!(refusal(maps.get("owner").await).code, 404);
}

#[tokio::test]
async fn an_object_whose_owner_never_was_does_not_stay() {
    let maps = Api::<ConfigMap>::default_namespaced(server().client());
    let mut stray = configmap("stray", "1");
    stray.metadata.owner_references =
        Some(vec![object(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "gone"}))]);
    maps.create(&PostParams::default(), &stray).await.unwrap();
    assert_eq!(refusal(maps.get("stray").await).code, 404);
}

#[tokio::test]
async fn preconditions_are_kept() {
    let maps = Api::<ConfigMap>::default_namespaced(server().client());
    let made = maps.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    let with = |uid: Option<String>, resource_version: Option<String>| DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version }),
        ..DeleteParams::default()
    };
    assert_eq!(refusal(maps.delete("a", &with(Some("other".into()), None)).await).reason, "Conflict");
    assert_eq!(refusal(maps.delete("a", &with(None, Some("1".into()))).await).reason, "Conflict");
    maps.delete("a", &with(made.uid(), made.resource_version())).await.unwrap();
}

#[tokio::test]
async fn a_bound_pod_stays_until_its_kubelet_lets_it_go() {
    let client = server().client();
    let pods = Api::<Pod>::default_namespaced(client);
    let pod = |name: &str, node: Option<&str>| -> Pod {
        object(json!({
            "metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        }))
    };
    pods.create(&PostParams::default(), &pod("free", None)).await.unwrap();
    pods.delete("free", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(pods.get("free").await).code, 404);

    pods.create(&PostParams::default(), &pod("bound", Some("n"))).await.unwrap();
    pods.delete("bound", &DeleteParams::default()).await.unwrap();
    let going = pods.get("bound").await.unwrap().metadata;
    assert_eq!((going.deletion_grace_period_seconds, going.deletion_timestamp.is_some()), (Some(30), true));
    pods.delete("bound", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(refusal(pods.get("bound").await).code, 404);
}

#[tokio::test]
async fn a_namespace_takes_its_contents_along() {
    let client = server().client();
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &object(json!({"metadata": {"name": "team"}}))).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), "team");
    let mut held = configmap("held", "1");
    held.metadata.finalizers = Some(vec!["x/y".into()]);
    maps.create(&PostParams::default(), &held).await.unwrap();
    maps.create(&PostParams::default(), &configmap("free", "1")).await.unwrap();
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    assert_eq!(namespaces.get("team").await.unwrap().status.unwrap().phase.as_deref(), Some("Terminating"));
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert_eq!(refusal(maps.create(&PostParams::default(), &configmap("new", "1")).await).code, 403);
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    maps.patch("held", &PatchParams::default(), &none).await.unwrap();
    assert_eq!(refusal(namespaces.get("team").await).code, 404);
    assert_eq!(refusal(maps.create(&PostParams::default(), &configmap("new", "1")).await).code, 404);
    assert_eq!(refusal(namespaces.delete("kube-system", &DeleteParams::default()).await).code, 403);
}

#[tokio::test]
async fn many_are_deleted_by_a_selector() {
    let maps = Api::<ConfigMap>::default_namespaced(server().client());
    for (name, label) in [("a", "x"), ("b", "x"), ("c", "y")] {
        let mut map = configmap(name, "1");
        map.labels_mut().insert("l".into(), label.into());
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("l=x")).await.unwrap();
    let left = maps.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(left.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["c"]);
}
