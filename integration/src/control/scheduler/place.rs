//! Where a pod goes and with which devices.

use std::cmp::Reverse;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::super::allocator::{self, Inputs, Refusal};
use super::super::device_selector::Selectors;
use super::super::pods::{self, ClaimName};
use super::filter;
use super::snapshot::{NodeInfo, Snapshot};
use super::verdict::{Verdict, everywhere};
use crate::labels::node_selector_matches;

/// Most consumers of one claim.
const MAX_CONSUMERS: usize = 256;

/// What to do with a pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Write the claims' status, then bind.
    Bind {
        /// The node's name.
        node: String,
        /// Claims whose status is to be written, as it should be.
        claims: Vec<ResourceClaim>,
    },
    /// The claim's allocation keeps the pod from running anywhere and nobody else uses it: write it without one.
    Deallocate(Box<ResourceClaim>),
    /// No node will do.
    Refuse {
        /// `Unschedulable`, or `SchedulerError` for what is broken rather than missing.
        reason: &'static str,
        /// For the pod's condition.
        message: String,
    },
    /// Something that is on its way is missing; an event will say that it is there.
    Wait,
}

/// Decides about one pod.
pub fn place(snapshot: &Snapshot, pod: &Pod, selectors: &mut Selectors, now: Timestamp) -> Decision {
    let claims = match claims_of(snapshot, pod) {
        Ok(claims) => claims,
        Err(decision) => return decision,
    };
    let (allocated, open): (Vec<&ResourceClaim>, Vec<&ResourceClaim>) =
        claims.into_iter().partition(|claim| allocation(claim).is_some());
    let mut verdict = Verdict::new(snapshot.nodes.len());
    let mut elsewhere = false;
    let inputs = Inputs { classes: &snapshot.classes, pools: &snapshot.pools, taken: &snapshot.taken };
    for info in in_order(snapshot, pod) {
        if let Some(reason) = filter::refusal(pod, info, snapshot) {
            verdict.refused(reason);
            continue;
        }
        if !allocated.iter().all(|claim| usable_on(claim, info)) {
            elsewhere = true;
            verdict.refused("resourceclaim not available on the node".into());
            continue;
        }
        match allocator::allocate(inputs, selectors, &info.node, &open) {
            Ok(results) => {
                let newly = open.into_iter().cloned().zip(results).map(|(mut claim, mut result)| {
                    result.allocation_timestamp = Some(Time(now));
                    claim.status.get_or_insert_default().allocation = Some(result);
                    claim
                });
                let mut written: Vec<ResourceClaim> = newly.chain(allocated.into_iter().cloned()).collect();
                written.retain_mut(|claim| reserve(claim, pod));
                return Decision::Bind { node: info.name().to_owned(), claims: written };
            }
            Err(Refusal::Unfit(missing)) => verdict.missing(&missing),
            Err(Refusal::Node(reason)) => verdict.refused(reason),
            Err(Refusal::Claim(message)) => {
                let message = format!("running \"DynamicResources\" filter plugin: {message}");
                return Decision::Refuse { reason: "SchedulerError", message };
            }
        }
    }
    if elsewhere && let Some(claim) = allocated.iter().find(|claim| only_for(claim, pod)) {
        let mut claim: ResourceClaim = (*claim).clone();
        if let Some(status) = &mut claim.status {
            (status.allocation, status.reserved_for, status.devices) = (None, None, None);
        }
        return Decision::Deallocate(Box::new(claim));
    }
    Decision::Refuse { reason: "Unschedulable", message: verdict.message() }
}

fn allocation(claim: &ResourceClaim) -> Option<&k8s_openapi::api::resource::v1::AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

fn usable_on(claim: &ResourceClaim, info: &NodeInfo) -> bool {
    let selector = allocation(claim).and_then(|allocation| allocation.node_selector.as_ref());
    selector.is_none_or(|selector| node_selector_matches(selector, &info.node))
}

fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

fn only_for(claim: &ResourceClaim, pod: &Pod) -> bool {
    consumers(claim).iter().all(|consumer| Some(&consumer.uid) == pod.metadata.uid.as_ref())
}

/// Adds the pod to those that use the claim; false if it was among them and the claim needs no write.
fn reserve(claim: &mut ResourceClaim, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    if consumers(claim).iter().any(|consumer| consumer.uid == uid) {
        return false;
    }
    claim.status.get_or_insert_default().reserved_for.get_or_insert_default().push(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".into(),
        name: pod.name_any(),
        uid,
    });
    true
}

/// The pod's claims, each once, or what to do instead.
fn claims_of<'a>(snapshot: &'a Snapshot, pod: &'a Pod) -> Result<Vec<&'a ResourceClaim>, Decision> {
    let nodes = snapshot.nodes.len();
    let refuse = |reason: String| Decision::Refuse { reason: "Unschedulable", message: everywhere(nodes, &reason) };
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let mut claims: Vec<&ResourceClaim> = Vec::new();
    for entry in pods::claims(pod) {
        let (name, generated) = match pods::claim_name(pod, entry) {
            ClaimName::Nothing => continue,
            ClaimName::Named(name) => (name, false),
            ClaimName::Generated(name) => (name, true),
            ClaimName::Awaited { template } => {
                if snapshot.templates.contains(&(namespace.clone(), template.to_owned())) {
                    return Err(Decision::Wait);
                }
                return Err(refuse(format!("resourceclaimtemplate {template:?} not found")));
            }
        };
        let Some(claim) = snapshot.claims.get(&(namespace.clone(), name.to_owned())) else {
            return Err(refuse(format!("resourceclaim {name:?} not found")));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(refuse(format!("resourceclaim {name:?} is being deleted")));
        }
        if generated && !claim.owner_references().iter().any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
            return Err(refuse(format!("resourceclaim {name:?} was not created for pod {}", pods::full_name(pod))));
        }
        if consumers(claim).len() >= MAX_CONSUMERS && !only_for(claim, pod) {
            return Err(refuse(format!("resourceclaim {name:?} is in use by {MAX_CONSUMERS} pods")));
        }
        if !claims.iter().any(|other| std::ptr::eq(*other, claim.as_ref())) {
            claims.push(claim);
        }
    }
    Ok(claims)
}

/// The nodes, best first: those with the fewest pods of the same owner, then the emptiest, then by name. So the pods
/// of one Job or Deployment spread, and the answer is the same every time.
fn in_order<'a>(snapshot: &'a Snapshot, pod: &Pod) -> Vec<&'a NodeInfo> {
    let owner = controller(pod);
    let mut nodes: Vec<&NodeInfo> = snapshot.nodes.values().collect();
    nodes.sort_by_cached_key(|info| {
        let siblings = info.pods.iter().filter(|other| owner.is_some() && controller(other) == owner).count();
        let weight = preference(pod, info);
        (Reverse(weight), siblings, info.pods.len(), info.devices, info.name().to_owned())
    });
    nodes
}

/// UID of the pod's controller.
fn controller(pod: &Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.as_deref()?;
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

/// Sum of the weights of the preferred node affinities that the node meets.
fn preference(pod: &Pod, info: &NodeInfo) -> i32 {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let terms = affinity.and_then(|affinity| affinity.preferred_during_scheduling_ignored_during_execution.as_ref());
    let met = terms.into_iter().flatten().filter(|term| {
        let selector = k8s_openapi::api::core::v1::NodeSelector { node_selector_terms: vec![term.preference.clone()] };
        node_selector_matches(&selector, &info.node)
    });
    met.map(|term| term.weight).sum()
}
