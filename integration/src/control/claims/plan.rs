//! What is to be done about claims, as a pure function of what is in view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;

use super::super::pods::{self, ClaimName};
use super::super::scheduler::DELETE_PROTECTION;
use super::POD_CLAIM_NAME;

/// What the controller sees.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// All pods.
    pub pods: &'a [Arc<Pod>],
    /// All claims.
    pub claims: &'a [Arc<ResourceClaim>],
    /// All templates.
    pub templates: &'a [Arc<ResourceClaimTemplate>],
    /// Pods of which it is certain that they are gone, by UID.
    pub gone: &'a BTreeSet<String>,
}

/// What it does.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Create a claim for a pod.
    Create { pod: Arc<Pod>, claim: Box<ResourceClaim> },
    /// Record in the pod which claims were made for it.
    Record { pod: Arc<Pod>, statuses: Vec<PodResourceClaimStatus> },
    /// Write a claim's status: consumers taken off or added, devices given back.
    Status(ResourceClaim),
    /// Write a claim without the finalizer.
    Unprotect(ResourceClaim),
    /// Delete a claim whose pod has ended.
    Delete(Arc<ResourceClaim>),
    /// Ask the API whether a consumer exists.
    LookFor { namespace: String, name: String, uid: String },
    /// Tell the pod's owner what is missing.
    Complain { pod: Arc<Pod>, message: String },
}

/// The pods that a claim is reserved for.
pub fn consumers(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default()
}

/// Everything that is to be done now.
pub fn plan(view: View<'_>) -> Vec<Effect> {
    let index = Index::new(view);
    let pods = view.pods.iter().filter(|pod| pods::active(pod)).flat_map(|pod| index.for_pod(pod));
    let claims = view.claims.iter().flat_map(|claim| index.for_claim(claim));
    pods.chain(claims).collect()
}

struct Index<'a> {
    gone: &'a BTreeSet<String>,
    pods: BTreeMap<&'a str, &'a Arc<Pod>>,
    claims: BTreeMap<(&'a str, &'a str), &'a Arc<ResourceClaim>>,
    templates: BTreeMap<(&'a str, &'a str), &'a Arc<ResourceClaimTemplate>>,
    /// UID of the pod and the entry's name → claim.
    generated: BTreeMap<(&'a str, &'a str), &'a Arc<ResourceClaim>>,
}

fn name_of(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// The pod that a claim was made for.
fn owner(claim: &ResourceClaim) -> Option<&OwnerReference> {
    let owners = claim.metadata.owner_references.as_deref()?;
    owners.iter().find(|owner| owner.controller == Some(true) && owner.kind == "Pod")
}

impl<'a> Index<'a> {
    fn new(view: View<'a>) -> Self {
        let generated = view.claims.iter().filter_map(|claim| {
            let entry = claim.metadata.annotations.as_ref()?.get(POD_CLAIM_NAME)?;
            Some(((owner(claim)?.uid.as_str(), entry.as_str()), claim))
        });
        Self {
            gone: view.gone,
            pods: view.pods.iter().filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod))).collect(),
            claims: view.claims.iter().map(|claim| (name_of(&claim.metadata), claim)).collect(),
            templates: view.templates.iter().map(|template| (name_of(&template.metadata), template)).collect(),
            generated: generated.collect(),
        }
    }

    /// Claims made, found and recorded for a pod.
    fn for_pod(&self, pod: &'a Arc<Pod>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let known = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.clone()).unwrap_or_default();
        let mut statuses = known.clone();
        for entry in pods::claims(pod) {
            match pods::claim_name(pod, entry) {
                ClaimName::Named(name) => effects.extend(self.reserve_for_bound(pod, name)),
                ClaimName::Nothing => {}
                ClaimName::Generated(name) => {
                    if self.claims.contains_key(&(name_of(&pod.metadata).0, name)) {
                        effects.extend(self.reserve_for_bound(pod, name));
                    } else if pods::node(pod).is_none() {
                        effects.extend(self.generate(pod, entry, &mut statuses));
                    }
                }
                ClaimName::Awaited { .. } => effects.extend(self.generate(pod, entry, &mut statuses)),
            }
        }
        if statuses != known {
            effects.push(Effect::Record { pod: Arc::clone(pod), statuses });
        }
        effects
    }

    fn generate(
        &self,
        pod: &'a Arc<Pod>,
        entry: &'a PodResourceClaim,
        statuses: &mut Vec<PodResourceClaimStatus>,
    ) -> Option<Effect> {
        let uid = pod.metadata.uid.as_deref()?;
        if let Some(claim) = self.generated.get(&(uid, entry.name.as_str())) {
            statuses.retain(|status| status.name != entry.name);
            let name = claim.metadata.name.clone();
            statuses.push(PodResourceClaimStatus { name: entry.name.clone(), resource_claim_name: name });
            return None;
        }
        let template = entry.resource_claim_template_name.as_deref()?;
        match self.templates.get(&(name_of(&pod.metadata).0, template)) {
            Some(template) => {
                Some(Effect::Create { pod: Arc::clone(pod), claim: Box::new(from_template(pod, entry, template)) })
            }
            None => Some(Effect::Complain {
                pod: Arc::clone(pod),
                message: format!(
                    "PodResourceClaim {}: resource claim template {template:?}: resourceclaimtemplate.resource.k8s.io {template:?} not found",
                    entry.name
                ),
            }),
        }
    }

    /// A pod that was bound past the scheduler may use what is allocated already.
    fn reserve_for_bound(&self, pod: &Pod, name: &str) -> Option<Effect> {
        pods::node(pod)?;
        let claim = self.claims.get(&(name_of(&pod.metadata).0, name))?;
        let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let uid = pod.metadata.uid.clone()?;
        let reserved = consumers(claim).iter().any(|consumer| consumer.uid == uid);
        if !allocated || reserved || claim.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let mut claim = claim.as_ref().clone();
        let consumer =
            ResourceClaimConsumerReference { api_group: None, resource: "pods".into(), name: pod.name_any(), uid };
        claim.status.get_or_insert_default().reserved_for.get_or_insert_default().push(consumer);
        Some(Effect::Status(claim))
    }

    /// Consumers taken off a claim, its devices given back, itself deleted.
    fn for_claim(&self, claim: &'a Arc<ResourceClaim>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut staying = Vec::new();
        for consumer in consumers(claim) {
            match self.pods.get(consumer.uid.as_str()) {
                Some(pod) if ended(pod) => {}
                Some(_) => staying.push(consumer.clone()),
                None if consumer.resource != "pods" => staying.push(consumer.clone()),
                None if self.gone.contains(&consumer.uid) => {}
                None => {
                    staying.push(consumer.clone());
                    effects.push(Effect::LookFor {
                        namespace: name_of(&claim.metadata).0.to_owned(),
                        name: consumer.name.clone(),
                        uid: consumer.uid.clone(),
                    });
                }
            }
        }
        let deleting = claim.metadata.deletion_timestamp.is_some();
        let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let released = staying.len() < consumers(claim).len();
        if released || (deleting && allocated && staying.is_empty()) {
            let mut claim = claim.as_ref().clone();
            let status = claim.status.get_or_insert_default();
            if staying.is_empty() {
                (status.allocation, status.devices) = (None, None);
            }
            status.reserved_for = (!staying.is_empty()).then_some(staying);
            effects.push(Effect::Status(claim));
            return effects;
        }
        // Only on its way out: on a claim that stays, the finalizer may be the scheduler's first half of a write.
        if protected(claim) && !allocated && staying.is_empty() && deleting {
            let mut claim = claim.as_ref().clone();
            claim.finalizers_mut().retain(|finalizer| finalizer != DELETE_PROTECTION);
            effects.push(Effect::Unprotect(claim));
        }
        let pod_ended = owner(claim).and_then(|owner| self.pods.get(owner.uid.as_str())).is_some_and(|pod| ended(pod));
        if pod_ended && staying.is_empty() && !deleting {
            effects.push(Effect::Delete(Arc::clone(claim)));
        }
        effects
    }
}

/// Does the claim carry the finalizer that keeps it while it holds devices?
pub fn protected(claim: &ResourceClaim) -> bool {
    claim.finalizers().iter().any(|finalizer| finalizer == DELETE_PROTECTION)
}

/// A pod that runs no container any more, and never will.
fn ended(pod: &Pod) -> bool {
    pods::finished(pod) || (pod.metadata.deletion_timestamp.is_some() && pods::node(pod).is_none())
}

fn from_template(pod: &Pod, entry: &PodResourceClaim, template: &ResourceClaimTemplate) -> ResourceClaim {
    let wanted = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = wanted.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_NAME.into(), entry.name.clone());
    ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-{}-", pod.name_any(), entry.name)),
            namespace: pod.metadata.namespace.clone(),
            labels: wanted.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Pod".into(),
                name: pod.name_any(),
                uid: pod.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..Default::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    }
}
