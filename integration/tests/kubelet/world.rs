//! One node with a kubelet double on an embedded API, and what tests do to it.

use std::time::Duration;

use heddle_integration::{
    api::{ApiServer, Options},
    kubelet::{Container, Kubelet, KubeletOptions, Limits},
    node::NodePaths,
};
use k8s_openapi::api::{
    core::v1::{Event, Pod},
    resource::v1::{ResourceClaim, ResourceSlice},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::wait::{Condition, await_condition},
};
use serde_json::{Value, json};

use crate::plugin::DRIVER;

/// The node's name.
pub const NODE: &str = "n1";

pub struct World {
    pub client: Client,
    pub paths: NodePaths,
    pub kubelet: Kubelet,
    _dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        Self::with(Limits::brisk())
    }

    pub fn with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = NodePaths::new(dir.path());
        let boot = paths.os().join("proc/sys/kernel/random");
        std::fs::create_dir_all(&boot).unwrap();
        std::fs::write(boot.join("boot_id"), "boot-1\n").unwrap();
        let client = ApiServer::new(Options::default()).client();
        let options = KubeletOptions::new(client.clone(), NODE, paths.clone(), "127.10.0.1").with_limits(limits);
        Self { client, paths, kubelet: Kubelet::start(options), _dir: dir }
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub fn claims(&self) -> Api<ResourceClaim> {
        Api::default_namespaced(self.client.clone())
    }

    /// A claim that the scheduler has allocated on the node.
    pub async fn claim(&self, name: &str) -> ResourceClaim {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "channel", "exactly": {"deviceClassName": "threads"}}]}},
        });
        let claim = serde_json::from_value(claim).unwrap();
        self.claims().create(&PostParams::default(), &claim).await.unwrap();
        let status = json!({"status": {"allocation": {"devices": {"results": [
            {"request": "channel", "driver": DRIVER, "pool": NODE, "device": "slot-0"}]}}}});
        self.patch_claim(name, status).await
    }

    pub async fn patch_claim(&self, name: &str, patch: Value) -> ResourceClaim {
        self.claims().patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    /// A pod on the node with these claims, each reserved for it, and one container that uses them all.
    pub async fn pod(&self, name: &str, claims: &[&str], more: Value) -> Pod {
        let entries: Vec<_> = claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim})).collect();
        let uses: Vec<_> = claims.iter().map(|claim| json!({"name": claim})).collect();
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "nodeName": NODE,
                "resourceClaims": entries,
                "containers": [{"name": "main", "image": "i", "resources": {"claims": uses}}],
            },
        });
        json_patch::merge(&mut pod, &more);
        // Reserved before the kubelet may see the pod, as the scheduler does it: create without a node, bind later.
        let node = pod["spec"].as_object_mut().unwrap().remove("nodeName");
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pod = self.pods().create(&PostParams::default(), &pod).await.unwrap();
        for claim in claims {
            self.reserve(claim, &pod).await;
        }
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"kind": "Node", "name": node}});
        self.apply(&format!("/api/v1/namespaces/default/pods/{name}/binding"), binding).await;
        pod
    }

    /// Creates any object at this collection.
    pub async fn apply(&self, path: &str, object: Value) {
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object).unwrap())
            .unwrap();
        self.client.request::<Value>(request).await.unwrap();
    }

    pub async fn reserve(&self, claim: &str, pod: &Pod) {
        let old = self.claims().get(claim).await.unwrap();
        let mut reserved = old.status.and_then(|status| status.reserved_for).unwrap_or_default();
        let consumer = json!({"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid});
        reserved.push(serde_json::from_value(consumer).unwrap());
        self.patch_claim(claim, json!({"status": {"reservedFor": reserved}})).await;
    }

    pub async fn until(&self, pod: &str, what: impl Condition<Pod>) -> Option<Pod> {
        let waiting = await_condition(self.pods(), pod, what);
        tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("the pod never gets there").unwrap()
    }

    pub async fn running(&self, pod: &str) -> Container {
        self.until(pod, phase("Running")).await;
        self.container(pod).expect("a running pod has a container")
    }

    pub fn container(&self, pod: &str) -> Option<Container> {
        self.kubelet.containers().into_iter().find(|container| container.pod == pod)
    }

    pub async fn delete(&self, pod: &str) {
        self.pods().delete(pod, &DeleteParams::default()).await.unwrap();
    }

    pub async fn gone(&self, pod: &str) {
        self.until(pod, |pod: Option<&Pod>| pod.is_none()).await;
    }

    /// Waits for an event about the pod with these words in it.
    pub async fn event(&self, pod: &str, reason: &str, words: &str) -> String {
        use futures::TryStreamExt;
        use kube::runtime::{WatchStreamExt, watcher};
        let events: Api<Event> = Api::default_namespaced(self.client.clone());
        let mut seen = Box::pin(watcher(events, watcher::Config::default()).applied_objects());
        while let Some(event) = seen.try_next().await.unwrap() {
            let message = event.message.unwrap_or_default();
            let about = event.involved_object.name.as_deref() == Some(pod) && event.reason.as_deref() == Some(reason);
            if about && message.contains(words) {
                return message;
            }
        }
        unreachable!("a watch does not end")
    }

    pub async fn slice(&self, name: &str, node: Option<&str>) {
        let mut slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": DRIVER, "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}},
        });
        match node {
            Some(node) => slice["spec"]["nodeName"] = node.into(),
            None => slice["spec"]["allNodes"] = true.into(),
        }
        let slice = serde_json::from_value(slice).unwrap();
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        slices.create(&PostParams::default(), &slice).await.unwrap();
    }

    /// Waits until the wipe at the kubelet's start is over, so that it does not take what a test creates.
    pub async fn wiped(&self) {
        self.kubelet.stop().await;
        self.slice("old", Some(NODE)).await;
        self.kubelet.restart().await;
        self.slice_gone("old").await;
    }

    pub async fn slice_gone(&self, name: &str) {
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        await_condition(slices, name, |slice: Option<&ResourceSlice>| slice.is_none()).await.unwrap();
    }

    pub async fn slices(&self) -> Vec<String> {
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let list = slices.list(&ListParams::default()).await.unwrap();
        list.items.into_iter().filter_map(|slice| slice.metadata.name).collect()
    }
}

pub fn phase(wanted: &'static str) -> impl Condition<Pod> {
    move |pod: Option<&Pod>| pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some(wanted)
}

/// Why the pod's container waits.
pub fn waiting(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.waiting.as_ref()?.reason.clone()
}
