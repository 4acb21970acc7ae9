//! Pods whose node is gone: nobody will ever end them, so they are deleted here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, Preconditions};
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use super::component::{Component, unless_moot};
use super::pods;
use super::watched::{Wake, Watched};

/// How long a node must be gone: a Node object that is replaced is back by then. (40 s in Kubernetes, where whole
/// clusters restart.)
const QUARANTINE: Duration = Duration::from_secs(2);

/// See the module.
pub struct Garbage {
    client: Client,
    pods: Watched<Pod>,
    nodes: Watched<Node>,
    wake: Wake,
    /// Nodes that pods name and that are not there, and since when that is known.
    missing: BTreeMap<String, Instant>,
}

impl Garbage {
    /// A collector that has seen nothing yet. It wakes itself by `wake` when a quarantine ends.
    pub fn new(client: Client, pods: Watched<Pod>, nodes: Watched<Node>, wake: Wake) -> Self {
        Self { client, pods, nodes, wake, missing: BTreeMap::new() }
    }
}

impl Component for Garbage {
    const NAME: &'static str = "pod-garbage-collector";

    fn caught_up(&self) -> bool {
        self.pods.caught_up() && self.nodes.caught_up()
    }

    async fn pass(&mut self) -> Result<(), kube::Error> {
        let pods = self.pods.list();
        let there: BTreeSet<String> = self.nodes.list().iter().map(|node| node.name_any()).collect();
        let named: BTreeSet<&str> = pods.iter().filter_map(|pod| pods::node(pod)).collect();
        self.missing.retain(|node, _| named.contains(node.as_str()) && !there.contains(node));
        let now = Instant::now();
        for node in named.into_iter().filter(|node| !there.contains(*node)) {
            if !self.missing.contains_key(node) {
                self.missing.insert(node.to_owned(), now);
                let wake = self.wake.clone();
                // Ends by itself; waking a collector that is gone does nothing.
                tokio::spawn(async move {
                    tokio::time::sleep(QUARANTINE).await;
                    wake.notify_one();
                });
            }
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let due: Vec<String> = self
            .missing
            .iter()
            .filter(|&(_, &since)| now >= since + QUARANTINE)
            .map(|(node, _)| node.clone())
            .collect();
        for node in due {
            if nodes.get_opt(&node).await?.is_some() {
                self.missing.remove(&node);
                continue;
            }
            for pod in pods.iter().filter(|pod| pods::node(pod) == Some(&node)) {
                tracing::info!(pod = %pods::full_name(pod.as_ref()), node, "the pod's node is gone, it is deleted");
                let params = DeleteParams {
                    grace_period_seconds: Some(0),
                    preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
                    ..Default::default()
                };
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                unless_moot(api.delete(&pod.name_any(), &params).await)?;
            }
        }
        Ok(())
    }
}
