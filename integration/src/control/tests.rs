//! The control plane against the embedded API server, with no kubelet: pods stay Pending once bound.

use futures::StreamExt;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::time::Duration;

use super::{Control, pods, start};
use crate::api::ApiServer;

/// Nothing here takes more than milliseconds; this ends a test that would wait for ever.
const LIMIT: Duration = Duration::from_secs(20);

struct Cluster {
    client: Client,
    _control: Control,
}

trait Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + serde::Serialize + Send + 'static {}
impl<T: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + serde::Serialize + Send + 'static> Object
    for T
{
}

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

impl Cluster {
    async fn new(nodes: &[&str]) -> Self {
        let client = ApiServer::new(Default::default()).client();
        let cluster = Self { _control: start(client.clone()), client };
        let class = json!({"metadata": {"name": "slot"}, "spec": {"selectors": [
            {"cel": {"expression": "device.driver == 'slots'"}}
        ]}});
        cluster.cluster_wide::<DeviceClass>(class).await;
        for node in nodes {
            let labels = json!({"kubernetes.io/hostname": node});
            cluster.cluster_wide::<Node>(json!({"metadata": {"name": node, "labels": labels}})).await;
            cluster.publish(node).await;
        }
        cluster
    }

    async fn publish(&self, node: &str) {
        let slot = |i| json!({"name": format!("slot-{i}")});
        let slice = json!({
            "metadata": {"name": node},
            "spec": {
                "driver": "slots", "nodeName": node, "devices": [slot(0), slot(1)],
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            },
        });
        self.cluster_wide::<ResourceSlice>(slice).await;
    }

    async fn cluster_wide<K: Object>(&self, object: Value) {
        Api::<K>::all(self.client.clone()).create(&PostParams::default(), &of(object)).await.unwrap();
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Object + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create<K>(&self, object: Value) -> K
    where
        K: Object + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        self.api().create(&PostParams::default(), &of(object)).await.unwrap()
    }

    async fn template(&self, name: &str, mode: &str) {
        let request = json!({"name": "r", "exactly": {"deviceClassName": "slot", "allocationMode": mode}});
        let spec = json!({"metadata": {"labels": {"cd": name}}, "spec": {"devices": {"requests": [request]}}});
        self.create::<ResourceClaimTemplate>(json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    async fn pod(&self, name: &str, template: &str) -> Pod {
        self.create(json!({"metadata": {"name": name}, "spec": pod_spec(template)})).await
    }

    /// Waits until the objects of a kind satisfy `done`, and gives what it gave.
    async fn until<K, T>(&self, what: &str, done: impl Fn(&[K]) -> Option<T>) -> T
    where
        K: Object + Resource<Scope = k8s_openapi::NamespaceResourceScope> + Sync,
    {
        let (store, writer) = kube::runtime::reflector::store();
        let events = watcher(self.api::<K>(), watcher::Config::default()).default_backoff().reflect(writer);
        let mut events = std::pin::pin!(events);
        let wait = async {
            loop {
                let event = events.next().await.unwrap().unwrap();
                if matches!(event, watcher::Event::Init | watcher::Event::InitApply(_)) {
                    continue;
                }
                let mut objects: Vec<K> = store.state().iter().map(|object| object.as_ref().clone()).collect();
                objects.sort_by_key(ResourceExt::name_any);
                if let Some(result) = done(&objects) {
                    return result;
                }
            }
        };
        match tokio::time::timeout(LIMIT, wait).await {
            Ok(result) => result,
            Err(_) => panic!("{what}: not so, there are {:#?}", store.state()),
        }
    }

    async fn node_of(&self, pod: &str) -> String {
        self.until(&format!("{pod} is bound"), |pods: &[Pod]| {
            pods::node(pods.iter().find(|p| p.name_any() == pod)?).map(str::to_owned)
        })
        .await
    }

    async fn refused(&self, pod: &str, words: &str) -> String {
        self.until(&format!("{pod} is refused with {words}"), |pods: &[Pod]| {
            let status = pods.iter().find(|p| p.name_any() == pod)?.status.as_ref()?;
            let condition = status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled")?;
            condition.message.clone().filter(|message| condition.status == "False" && message.contains(words))
        })
        .await
    }

    async fn finish(&self, pod: &str, phase: &str) {
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        self.api::<Pod>().patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Deletes a pod at once, as its kubelet would after the containers ended.
    async fn kill(&self, pod: &str) {
        self.api::<Pod>()
            .delete(pod, &DeleteParams { grace_period_seconds: Some(0), ..Default::default() })
            .await
            .unwrap();
    }
}

fn pod_spec(template: &str) -> Value {
    json!({
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "slot", "resourceClaimTemplateName": template}],
    })
}

fn held(claims: &[ResourceClaim]) -> usize {
    let allocations = claims.iter().filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref());
    allocations.map(|devices| devices.results.iter().flatten().count()).sum()
}

#[tokio::test]
async fn an_exclusive_pod_finds_the_free_node_and_the_next_one_waits_for_it() {
    let cluster = Cluster::new(&["n1", "n2"]).await;
    cluster.template("shared", "ExactCount").await;
    cluster.template("exclusive", "All").await;
    cluster.pod("green", "shared").await;
    assert_eq!(cluster.node_of("green").await, "n1");
    cluster.pod("red", "exclusive").await;
    assert_eq!(cluster.node_of("red").await, "n2");
    cluster.pod("black", "exclusive").await;
    let message = cluster.refused("black", "cannot allocate all claims").await;
    assert!(message.starts_with("0/2 nodes are available: 2 cannot allocate all claims."), "{message}");

    cluster.kill("red").await;
    assert_eq!(cluster.node_of("black").await, "n2");
    cluster.until("red's claim is gone", |claims: &[ResourceClaim]| (claims.len() == 2).then_some(())).await;
}

#[tokio::test]
async fn a_generated_claim_lives_and_dies_with_its_pod() {
    let cluster = Cluster::new(&["n1"]).await;
    cluster.pod("early", "late").await;
    cluster.refused("early", "resourceclaimtemplate \"late\" not found").await;
    cluster.template("late", "ExactCount").await;
    assert_eq!(cluster.node_of("early").await, "n1");
    let pod = cluster.api::<Pod>().get("early").await.unwrap();
    let name = pod.status.unwrap().resource_claim_statuses.unwrap()[0].resource_claim_name.clone().unwrap();
    let claim = cluster.api::<ResourceClaim>().get(&name).await.unwrap();
    assert!(name.starts_with("early-slot-") && claim.labels()["cd"] == "late");
    assert_eq!(claim.finalizers(), ["resource.kubernetes.io/delete-protection"]);
    let status = claim.status.unwrap();
    assert_eq!(status.reserved_for.unwrap()[0].name, "early");
    assert!(status.allocation.unwrap().allocation_timestamp.is_some());

    cluster.finish("early", "Succeeded").await;
    cluster.until("the claim is gone", |claims: &[ResourceClaim]| claims.is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_named_claim_outlives_its_pods_and_gives_its_devices_back() {
    let cluster = Cluster::new(&["n1", "n2"]).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "slot"}});
    let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}});
    let spec = json!({
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "slot", "resourceClaimName": "c"}],
    });
    for pod in ["a", "b"] {
        cluster.create::<Pod>(json!({"metadata": {"name": pod}, "spec": spec})).await;
    }
    cluster.refused("a", "resourceclaim \"c\" not found").await;
    cluster.create::<ResourceClaim>(claim).await;
    assert_eq!(cluster.node_of("a").await, cluster.node_of("b").await);
    cluster.kill("a").await;
    cluster
        .until("a is no consumer", |claims: &[ResourceClaim]| {
            let reserved = claims.first()?.status.as_ref()?.reserved_for.as_ref()?;
            (reserved.len() == 1 && held(claims) == 1).then_some(())
        })
        .await;
    cluster.kill("b").await;
    cluster
        .until("the devices are given back", |claims: &[ResourceClaim]| {
            (held(claims) == 0 && claims[0].finalizers().is_empty()).then_some(())
        })
        .await;
}

#[tokio::test]
async fn many_pods_at_once_never_share_a_device() {
    let nodes: Vec<String> = (0..8).map(|i| format!("n{i}")).collect();
    let cluster = Cluster::new(&nodes.iter().map(String::as_str).collect::<Vec<_>>()).await;
    cluster.template("shared", "ExactCount").await;
    let names: Vec<String> = (0..20).map(|i| format!("p{i}")).collect();
    futures::future::join_all(names.iter().map(|name| cluster.pod(name, "shared"))).await;
    cluster
        .until("16 of 20 are bound", |pods: &[Pod]| {
            let refused = |pod: &&Pod| {
                let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
                conditions.unwrap_or_default().iter().any(|c| c.type_ == "PodScheduled" && c.status == "False")
            };
            let bound = pods.iter().filter(|pod| pods::node(pod).is_some()).count();
            (bound == 16 && pods.iter().filter(|p| pods::node(p).is_none()).filter(refused).count() == 4).then_some(())
        })
        .await;
    let claims = cluster.api::<ResourceClaim>().list(&Default::default()).await.unwrap().items;
    assert_eq!((claims.len(), held(&claims), super::allocator::taken(&claims).len()), (20, 16, 16));
    cluster.publish("n8").await;
    cluster.cluster_wide::<Node>(json!({"metadata": {"name": "n8"}})).await;
    cluster
        .until("the new node takes two", |pods: &[Pod]| {
            (pods.iter().filter(|pod| pods::node(pod) == Some("n8")).count() == 2).then_some(())
        })
        .await;
}

/// Stands in for the kubelets: what is bound runs and is ready.
fn kubelets(client: Client) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        let events = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(events.applied_objects());
        while let Some(Ok(pod)) = events.next().await {
            let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap());
            if pod.metadata.deletion_timestamp.is_some() {
                let at_once = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
                let _ = pods.delete(&pod.name_any(), &at_once).await;
            } else if pods::node(&pod).is_some() && !pods::ready(&pod) && !pods::finished(&pod) {
                let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
                let patch = Patch::Merge(json!({"status": status}));
                let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
            }
        }
    })
}

#[tokio::test]
async fn a_deployment_with_claims_spreads_rolls_and_goes() {
    let cluster = Cluster::new(&["n1", "n2", "n3"]).await;
    let _kubelets = kubelets(cluster.client.clone());
    cluster.template("shared", "ExactCount").await;
    let deployment = |image: &str| {
        let mut spec = pod_spec("shared");
        spec["containers"][0]["image"] = json!(image);
        json!({
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 3, "selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec},
            },
        })
    };
    cluster.create::<Deployment>(deployment("one")).await;
    let complete = |deployments: &[Deployment]| {
        let deployment = deployments.first()?;
        let status = deployment.status.as_ref()?;
        let current = status.observed_generation == deployment.metadata.generation;
        let all = [status.replicas, status.updated_replicas, status.available_replicas] == [Some(3); 3];
        (current && all).then_some(())
    };
    cluster.until("three are available", complete).await;
    let pods = cluster.api::<Pod>().list(&Default::default()).await.unwrap().items;
    let nodes: std::collections::BTreeSet<_> = pods.iter().filter_map(pods::node).collect();
    assert_eq!(nodes.len(), 3, "one on each node");

    let patch = Patch::Merge(deployment("two"));
    cluster.api::<Deployment>().patch("web", &PatchParams::default(), &patch).await.unwrap();
    cluster.until("the new version is complete", complete).await;
    let old_gone = |pods: &[Pod]| {
        let new = pods.iter().all(|p| p.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("two"));
        (new && pods.len() == 3).then_some(())
    };
    cluster.until("only the new version runs", old_gone).await;
    let claims = |n: usize| move |claims: &[ResourceClaim]| (claims.len() == n && held(claims) == n).then_some(());
    cluster.until("three claims", claims(3)).await;

    cluster.api::<Deployment>().delete("web", &DeleteParams::background()).await.unwrap();
    cluster.until("no claim is left", claims(0)).await;
    cluster.until("no pod is left", |pods: &[Pod]| pods.is_empty().then_some(())).await;
}

#[tokio::test]
async fn an_indexed_job_runs_to_its_end() {
    let cluster = Cluster::new(&["n1", "n2"]).await;
    let _kubelets = kubelets(cluster.client.clone());
    cluster.template("shared", "ExactCount").await;
    let mut spec = pod_spec("shared");
    spec["restartPolicy"] = json!("Never");
    let job = json!({
        "metadata": {"name": "train"},
        "spec": {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": {"spec": spec}},
    });
    cluster.create::<Job>(job).await;
    let running = |pods: &[Pod]| (pods.iter().filter(|pod| pods::ready(pod)).count() == 4).then(|| pods.to_vec());
    let pods = cluster.until("four run", running).await;
    let mut by_node: Vec<_> = pods.iter().filter_map(pods::node).collect();
    by_node.sort_unstable();
    assert_eq!(by_node, ["n1", "n1", "n2", "n2"]);
    for pod in &pods {
        cluster.finish(&pod.name_any(), "Succeeded").await;
    }
    cluster
        .until("the Job is complete", |jobs: &[Job]| {
            let status = jobs.first()?.status.as_ref()?;
            let complete = status.conditions.iter().flatten().any(|c| c.type_ == "Complete");
            (complete && status.completed_indexes.as_deref() == Some("0-3")).then_some(())
        })
        .await;
    cluster.until("no claim is left", |claims: &[ResourceClaim]| claims.is_empty().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_lost_node_are_deleted_and_replaced_elsewhere() {
    let cluster = Cluster::new(&["n1", "n2"]).await;
    let _kubelets = kubelets(cluster.client.clone());
    cluster.template("exclusive", "All").await;
    let rs = json!({
        "metadata": {"name": "one"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "one"}},
            "template": {"metadata": {"labels": {"app": "one"}}, "spec": pod_spec("exclusive")},
        },
    });
    cluster.create::<ReplicaSet>(rs).await;
    let on = |node: &'static str| {
        move |pods: &[Pod]| {
            (pods.len() == 1 && pods::ready(&pods[0]) && pods::node(&pods[0]) == Some(node)).then_some(())
        }
    };
    cluster.until("it runs on n1", on("n1")).await;
    Api::<Node>::all(cluster.client.clone()).delete("n1", &DeleteParams::default()).await.unwrap();
    cluster.until("it runs on n2", on("n2")).await;
    cluster.until("one claim", |claims: &[ResourceClaim]| (claims.len() == 1 && held(claims) == 2).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_when_nothing_changes() {
    let cluster = Cluster::new(&["n1"]).await;
    let _kubelets = kubelets(cluster.client.clone());
    cluster.template("exclusive", "All").await;
    cluster.pod("red", "exclusive").await;
    cluster.pod("black", "exclusive").await;
    cluster.pod("lost", "absent").await;
    let spec =
        json!({"parallelism": 1, "template": {"spec": {"containers": [{"name": "c"}], "restartPolicy": "Never"}}});
    cluster.create::<Job>(json!({"metadata": {"name": "train"}, "spec": spec})).await;
    let version = async || {
        let list = cluster.api::<Pod>().list(&Default::default()).await.unwrap();
        (list.items.len(), list.metadata.resource_version)
    };
    cluster.refused("black", "cannot allocate").await;
    cluster.refused("lost", "absent").await;
    // The clock jumps ahead as soon as everybody waits for something.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let settled = version().await;
    assert_eq!(settled.0, 4);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(version().await, settled);
}
