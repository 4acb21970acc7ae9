//! ComputeDomains and claims as the scheduler would leave them: allocated to a slot of the node and reserved for a pod.

use std::ops::Range;

use anyhow::Context;
use heddle_core::api::{ComputeDomain, IsolationMode};
use heddle_core::names;
use heddle_proto::dra::v1::Claim;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Makes objects in one namespace.
#[derive(Clone)]
pub struct Claims {
    /// The API.
    pub client: Client,
    /// The namespace.
    pub namespace: String,
    /// The node whose slots are given.
    pub node: String,
    /// The pod that claims are reserved for.
    pub pod: PodRef,
}

/// A pod that nobody schedules. It has to be there: a claim that is reserved for nothing that exists loses its
/// allocation to the cluster's claim controller.
#[derive(Clone)]
pub struct PodRef {
    name: String,
    uid: String,
}

impl PodRef {
    /// Makes it in this namespace.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn create(client: Client, namespace: &str) -> anyhow::Result<Self> {
        let pod = json!({"metadata": {"name": "heddle-bench"}, "spec": {
            "automountServiceAccountToken": false,
            "schedulingGates": [{"name": "heddle.dev/bench"}],
            "containers": [{"name": "none", "image": "registry.k8s.io/pause:3.10"}]}});
        let api: Api<Pod> = Api::namespaced(client, namespace);
        let made = api.create(&PostParams::default(), &serde_json::from_value(pod)?).await;
        let made = made.context("the pod that claims are reserved for was refused")?;
        Ok(Self { name: made.name_any(), uid: made.uid().unwrap_or_default() })
    }
}

impl Claims {
    /// Makes a ComputeDomain and waits until the controller has taken it up. The answer is its UID.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn compute_domain(&self, name: &str, mode: IsolationMode) -> anyhow::Result<String> {
        let api = self.compute_domains();
        let made = json!({"metadata": {"name": name},
            "spec": {"isolationMode": mode, "channel": {"resourceClaimTemplate": {"name": name}}}});
        let made = api.create(&PostParams::default(), &serde_json::from_value(made)?).await;
        let made = made.with_context(|| format!("ComputeDomain {name} was refused"))?;
        let taken = |found: Option<&ComputeDomain>| found.is_some_and(|cd| !cd.finalizers().is_empty());
        await_condition(api, name, taken).await?;
        made.uid().context("an object without UID")
    }

    /// Makes a claim of a slot on the ComputeDomain of that UID.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn claim(&self, name: &str, slot: u32, compute_domain: &str) -> anyhow::Result<Claim> {
        let exactly =
            json!({"deviceClassName": names::CHANNEL_DEVICE_CLASS, "allocationMode": "ExactCount", "count": 1});
        self.make(name, &exactly, slot..slot + 1, compute_domain).await
    }

    /// Makes a claim of all slots of the node, as the templates of exclusive ComputeDomains ask for them.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn whole_node(&self, name: &str, compute_domain: &str) -> anyhow::Result<Claim> {
        let exactly = json!({"deviceClassName": names::CHANNEL_DEVICE_CLASS, "allocationMode": "All"});
        self.make(name, &exactly, 0..names::DEFAULT_SLOTS, compute_domain).await
    }

    async fn make(
        &self,
        name: &str,
        exactly: &Value,
        slots: Range<u32>,
        compute_domain: &str,
    ) -> anyhow::Result<Claim> {
        let api = self.api();
        let labels = json!({names::COMPUTE_DOMAIN_LABEL: compute_domain});
        let made = json!({"metadata": {"name": name, "labels": labels},
            "spec": {"devices": {"requests": [{"name": "channel", "exactly": exactly}]}}});
        let made = api.create(&PostParams::default(), &serde_json::from_value::<ResourceClaim>(made)?).await;
        let made = made.with_context(|| format!("ResourceClaim {name} was refused"))?;
        let parameters = json!({"apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomainChannelConfig",
            "domainID": compute_domain, "allocationMode": "Single"});
        let results: Vec<_> = slots
            .map(|slot| {
                json!({"request": "channel", "driver": names::DRIVER, "pool": self.node,
                    "device": format!("slot-{slot}")})
            })
            .collect();
        let node = json!({"key": "metadata.name", "operator": "In", "values": [self.node]});
        let status = json!({"status": {
            "allocation": {
                "devices": {"results": results, "config": [
                    {"source": "FromClaim", "opaque": {"driver": names::DRIVER, "parameters": parameters}}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [node]}]}
            },
            "reservedFor": [{"resource": "pods", "name": self.pod.name, "uid": self.pod.uid}]}});
        let allocated = api.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
        allocated.with_context(|| format!("the allocation of ResourceClaim {name} was refused"))?;
        Ok(Claim { namespace: self.namespace.clone(), uid: made.uid().unwrap_or_default(), name: name.into() })
    }

    /// So many claims, over all slots in turn.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub async fn many(&self, prefix: &str, count: u32, compute_domain: &str) -> anyhow::Result<Vec<Claim>> {
        let mut claims = Vec::new();
        for index in 0..count {
            let slot = index % names::DEFAULT_SLOTS;
            claims.push(self.claim(&format!("{prefix}-{index}"), slot, compute_domain).await?);
        }
        Ok(claims)
    }

    /// Removes the claims and the pod that they are reserved for. Best effort.
    pub async fn remove(&self) {
        let _ = self.api().delete_collection(&DeleteParams::default(), &ListParams::default()).await;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let _ = pods.delete(&self.pod.name, &DeleteParams::default()).await;
    }

    /// The ComputeDomains.
    pub fn compute_domains(&self) -> Api<ComputeDomain> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The claims.
    pub fn api(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}
