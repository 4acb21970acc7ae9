//! The embedded API server through the client that everything else uses.

mod certificates;
mod custom;
mod deletion;
mod kubectl;
mod reading;
mod writing;

use futures::{StreamExt, TryStreamExt};
use heddle_core::api::crds;
use heddle_integration::api::{ApiServer, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::Status;
use kube::runtime::watcher;
use kube::{Client, Error, ResourceExt};
use serde_json::{Value, json};

fn server() -> ApiServer {
    ApiServer::new(Options { seed: Some(1), ..Options::default() })
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    match result {
        Err(Error::Api(status)) => *status,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn configmap(name: &str, data: &str) -> ConfigMap {
    object(json!({"metadata": {"name": name}, "data": {"k": data}}))
}

async fn with_crds(client: &Client) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds() {
        api.create(&PostParams::default(), &crd).await.unwrap();
    }
}

#[tokio::test]
async fn objects_are_created_read_changed_and_deleted() {
    let api = Api::<ConfigMap>::default_namespaced(server().client());
    let made = api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    assert!(made.uid().is_some() && made.creation_timestamp().is_some());
    assert_eq!(refusal(api.create(&PostParams::default(), &made).await).reason, "AlreadyExists");

    let patch = Patch::Merge(json!({"data": {"k": "2"}}));
    let changed = api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_ne!(changed.resource_version(), made.resource_version());
    let same = api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(same.resource_version(), changed.resource_version(), "a write without a change is none");

    assert_eq!(refusal(api.replace("a", &PostParams::default(), &made).await).reason, "Conflict");
    api.replace("a", &PostParams::default(), &changed).await.unwrap();

    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(refusal(api.get("a").await).code, 404);
}

#[tokio::test]
async fn a_watch_tells_of_everything_in_order() {
    let server = server();
    let api = Api::<ConfigMap>::default_namespaced(server.client());
    api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    let listed = api.list(&ListParams::default()).await.unwrap();
    let version = listed.metadata.resource_version.unwrap();
    let mut events = api.watch(&WatchParams::default(), &version).await.unwrap().boxed();

    api.create(&PostParams::default(), &configmap("b", "1")).await.unwrap();
    api.patch("a", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": "2"}}))).await.unwrap();
    api.delete("b", &DeleteParams::default()).await.unwrap();

    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Added(o) => ("added", o.name_any()),
            WatchEvent::Modified(o) => ("modified", o.name_any()),
            WatchEvent::Deleted(o) => ("deleted", o.name_any()),
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(seen, [("added", "b".into()), ("modified", "a".into()), ("deleted", "b".into())]);
}

#[tokio::test]
async fn watchers_of_both_kinds_see_what_is_there_and_what_comes() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let api = Api::<ConfigMap>::default_namespaced(server().client());
        api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
        let mut events = watcher(api.clone(), config).boxed();
        assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::Init));
        assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::InitApply(_)));
        assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::InitDone));
        api.create(&PostParams::default(), &configmap("b", "1")).await.unwrap();
        let watcher::Event::Apply(b) = events.try_next().await.unwrap().unwrap() else { panic!() };
        assert_eq!(b.name_any(), "b");
    }
}

#[tokio::test]
async fn an_object_that_ends_to_match_is_deleted_for_the_watcher() {
    let api = Api::<Pod>::default_namespaced(server().client());
    let params = WatchParams::default().fields("spec.nodeName=n").timeout(60);
    let mut events = api.watch(&params, "1").await.unwrap().boxed();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    api.create(&PostParams::default(), &object(pod)).await.unwrap();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    api.create_subresource::<_, Value>("binding", "p", &PostParams::default(), &binding).await.unwrap();
    let WatchEvent::Added(bound) = events.try_next().await.unwrap().unwrap() else { panic!() };
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n"));
    let WatchEvent::Modified(_) = events.try_next().await.unwrap().unwrap() else { panic!() };
}

#[tokio::test]
async fn who_asks_for_logs_learns_that_nothing_runs() {
    let api = Api::<Pod>::default_namespaced(server().client());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    api.create(&PostParams::default(), &object(pod)).await.unwrap();
    let Err(kube::Error::Api(status)) = api.logs("p", &Default::default()).await else { panic!() };
    assert!(status.code == 400 && status.message.contains("run no program"), "{status:?}");
}

#[tokio::test]
async fn who_watches_from_a_forgotten_version_must_list_again() {
    let server = server();
    let api = Api::<ConfigMap>::default_namespaced(server.client());
    api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    server.compact();
    let mut events = api.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    let WatchEvent::Error(status) = events.try_next().await.unwrap().unwrap() else { panic!() };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn the_same_over_http() {
    let server = server();
    let listening = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let config = kube::Config::from_custom_kubeconfig(server.kubeconfig(&listening), &Default::default()).await;
    let client = Client::try_from(config.unwrap()).unwrap();
    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
    let api = Api::<ConfigMap>::default_namespaced(client);
    let mut events = watcher(api.clone(), watcher::Config::default()).boxed();
    assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::Init));
    assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::InitDone));
    api.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::Apply(_)));
    server.disconnect();
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::Delete(_)), "picked up again");
}
