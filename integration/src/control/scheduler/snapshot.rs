//! What the scheduler decides on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube::{Resource, ResourceExt};

use super::super::allocator::{DeviceId, Pools, taken};
use super::super::pods;

/// Namespace and name.
pub type Key = (String, String);

/// The key of a namespaced object.
pub fn key(object: &impl Resource<DynamicType = ()>) -> Key {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// A node and the pods on it.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// The node.
    pub node: Arc<Node>,
    /// Pods bound to it that have not finished.
    pub pods: Vec<Arc<Pod>>,
    /// Those of them that keep others away: few, and asked about for every pod and node.
    pub shy: Vec<Arc<Pod>>,
    /// Devices that claims hold here.
    pub devices: usize,
}

impl NodeInfo {
    /// The node's name.
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    fn add(&mut self, pod: Arc<Pod>) {
        let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
        if affinity.is_some_and(|affinity| affinity.pod_anti_affinity.is_some()) {
            self.shy.push(Arc::clone(&pod));
        }
        self.pods.push(pod);
    }

    /// A label of the node.
    pub fn label(&self, key: &str) -> Option<&String> {
        self.node.metadata.labels.as_ref()?.get(key)
    }
}

/// The cluster at one moment, together with what was decided since.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The nodes by name.
    pub nodes: BTreeMap<String, NodeInfo>,
    /// All claims.
    pub claims: BTreeMap<Key, Arc<ResourceClaim>>,
    /// The templates there are.
    pub templates: BTreeSet<Key>,
    /// DeviceClasses by name.
    pub classes: BTreeMap<String, Arc<DeviceClass>>,
    /// The published devices.
    pub pools: Pools,
    /// Devices that claims hold.
    pub taken: BTreeSet<DeviceId>,
}

/// The objects of a [`Snapshot`].
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub nodes: Vec<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    pub claims: Vec<Arc<ResourceClaim>>,
    pub templates: Vec<Arc<ResourceClaimTemplate>>,
    pub classes: Vec<Arc<DeviceClass>>,
    pub slices: Vec<Arc<ResourceSlice>>,
}

impl Snapshot {
    /// Puts the objects in order. `bound` are pods that were bound but don't show it yet, by UID.
    pub fn new(objects: Objects, bound: &BTreeMap<String, String>) -> Self {
        let nodes = objects.nodes.into_iter().map(|node| {
            let name = node.metadata.name.clone().unwrap_or_default();
            (name, NodeInfo { node, pods: Vec::new(), shy: Vec::new(), devices: 0 })
        });
        let mut snapshot = Self {
            nodes: nodes.collect(),
            templates: objects.templates.iter().map(|template| key(template.as_ref())).collect(),
            classes: objects.classes.into_iter().map(|class| (class.name_any(), class)).collect(),
            pools: Pools::new(objects.slices),
            taken: taken(objects.claims.iter().map(AsRef::as_ref)),
            claims: objects.claims.into_iter().map(|claim| (key(claim.as_ref()), claim)).collect(),
        };
        for pod in objects.pods.into_iter().filter(|pod| !pods::finished(pod)) {
            let bound = pod.metadata.uid.as_ref().and_then(|uid| bound.get(uid));
            let node = pods::node(&pod).map(str::to_owned).or_else(|| bound.cloned());
            if let Some(info) = node.and_then(|node| snapshot.nodes.get_mut(&node)) {
                info.add(pod);
            }
        }
        let claims: Vec<_> = snapshot.claims.values().cloned().collect();
        claims.iter().for_each(|claim| snapshot.count_devices(claim, |devices| devices + 1));
        snapshot
    }

    /// Takes in a claim that was written.
    pub fn claim_written(&mut self, claim: ResourceClaim) {
        let claim = Arc::new(claim);
        if let Some(old) = self.claims.insert(key(claim.as_ref()), Arc::clone(&claim)) {
            taken([old.as_ref()]).iter().for_each(|device| {
                self.taken.remove(device);
            });
            self.count_devices(&old, |devices| devices.saturating_sub(1));
        }
        self.taken.extend(taken([claim.as_ref()]));
        self.count_devices(&claim, |devices| devices + 1);
    }

    /// Takes in that a pod was bound.
    pub fn pod_bound(&mut self, pod: Arc<Pod>, node: &str) {
        if let Some(info) = self.nodes.get_mut(node) {
            info.add(pod);
        }
    }

    /// Node-local pools are named after their node by all drivers we know, so the count needs no selector.
    fn count_devices(&mut self, claim: &ResourceClaim, count: impl Fn(usize) -> usize) {
        let results = claim.status.as_ref().and_then(|s| s.allocation.as_ref()?.devices.as_ref()?.results.as_ref());
        for result in results.into_iter().flatten() {
            if let Some(info) = self.nodes.get_mut(&result.pool) {
                info.devices = count(info.devices);
            }
        }
    }
}
