//! Lists, selectors, pages, views of one object in two groups, tables.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::events::v1::Event as GroupEvent;
use kube::core::PartialObjectMeta;

use super::*;

#[tokio::test]
async fn pages_add_up_to_the_list() {
    let server = server();
    let maps = Api::<ConfigMap>::default_namespaced(server.client());
    for at in 0..7 {
        maps.create(&PostParams::default(), &configmap(&format!("m{at}"), "1")).await.unwrap();
    }
    let mut names = Vec::new();
    let mut params = ListParams::default().limit(3);
    let mut versions = Vec::new();
    loop {
        let page = maps.list(&params).await.unwrap();
        names.extend(page.items.iter().map(ResourceExt::name_any));
        versions.push(page.metadata.resource_version.clone().unwrap());
        // What happens between the pages does not move the version that a watch begins at.
        maps.patch("m0", &PatchParams::default(), &Patch::Merge(json!({"data": {"k": names.len().to_string()}})))
            .await
            .unwrap();
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4", "m5", "m6"]);
    versions.dedup();
    assert_eq!(versions.len(), 1);

    let first = maps.list(&ListParams::default().limit(1)).await.unwrap();
    server.compact();
    let late = ListParams::default().limit(1).continue_token(&first.metadata.continue_.unwrap());
    maps.create(&PostParams::default(), &configmap("n", "1")).await.unwrap();
    server.compact();
    assert_eq!(refusal(maps.list(&late).await).code, 410);
}

#[tokio::test]
async fn events_are_the_same_in_both_groups() {
    let client = server().client();
    let new = Api::<GroupEvent>::default_namespaced(client.clone());
    let about = json!({"kind": "Pod", "namespace": "default", "name": "p", "uid": "u"});
    let event = json!({
        "metadata": {"name": "e"}, "regarding": about, "note": "text", "reason": "R", "type": "Normal",
        "action": "A", "reportingController": "c", "reportingInstance": "i", "eventTime": "2026-01-01T00:00:00.000000Z",
    });
    new.create(&PostParams::default(), &object(event)).await.unwrap();
    let old = Api::<Event>::default_namespaced(client);
    let params = ListParams::default().fields("involvedObject.name=p,involvedObject.uid=u");
    let found = old.list(&params).await.unwrap().items;
    assert_eq!(found[0].message.as_deref(), Some("text"));
    let found = new.list(&ListParams::default().fields("regarding.name=p")).await.unwrap().items;
    assert_eq!(found[0].note.as_deref(), Some("text"));
}

#[tokio::test]
async fn metadata_can_be_watched_alone() {
    let client = server().client();
    let maps = Api::<ConfigMap>::default_namespaced(client.clone());
    maps.create(&PostParams::default(), &configmap("a", "1")).await.unwrap();
    let alone = Api::<PartialObjectMeta<ConfigMap>>::default_namespaced(client);
    let mut events = watcher(alone, watcher::Config::default()).boxed();
    assert!(matches!(events.try_next().await.unwrap().unwrap(), watcher::Event::Init));
    let watcher::Event::InitApply(partial) = events.try_next().await.unwrap().unwrap() else { panic!() };
    assert_eq!(partial.name_any(), "a");
}

#[tokio::test]
async fn kubectl_gets_tables() {
    let client = server().client();
    with_crds(&client).await;
    let api = Api::<heddle_core::api::ComputeDomain>::default_namespaced(client.clone());
    let spec = json!({"channel": {"resourceClaimTemplate": {"name": "t"}}});
    api.create(&PostParams::default(), &object(json!({
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "green"}, "spec": spec,
    })))
    .await
    .unwrap();
    let request = http::Request::get("/apis/resource.nvidia.com/v1beta1/namespaces/default/computedomains")
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
        .body(Vec::new())
        .unwrap();
    let table = client.request::<Value>(request).await.unwrap();
    let headings = table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap());
    assert_eq!(headings.collect::<Vec<_>>(), ["Name", "Mode", "Channel", "Nodes", "Ready", "Status", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..3], [json!("green"), json!("Channel"), Value::Null]);
}

#[tokio::test]
async fn quiet_watchers_get_bookmarks_before_their_version_is_forgotten() {
    let server = ApiServer::new(Options { history: 16, ..Options::default() });
    let client = server.client();
    let nodes = Api::<k8s_openapi::api::core::v1::Node>::all(client.clone());
    let start = server.resource_version().to_string();
    let mut events = nodes.watch(&WatchParams::default(), &start).await.unwrap().boxed();
    let maps = Api::<ConfigMap>::default_namespaced(client);
    for at in 0..40 {
        maps.create(&PostParams::default(), &configmap(&format!("m{at}"), "1")).await.unwrap();
    }
    let mut last = String::new();
    while last.parse::<u64>().unwrap_or(0) + 16 < server.resource_version() {
        let WatchEvent::Bookmark(bookmark) = events.try_next().await.unwrap().unwrap() else { panic!() };
        last = bookmark.metadata.resource_version;
    }
    let mut events = nodes.watch(&WatchParams::default(), &last).await.unwrap().boxed();
    nodes.create(&PostParams::default(), &object(json!({"metadata": {"name": "n"}}))).await.unwrap();
    let added = events.try_next().await.unwrap().unwrap();
    assert!(matches!(added, WatchEvent::Added(_)), "{added:?}");
}
