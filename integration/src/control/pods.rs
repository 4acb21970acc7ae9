//! What several components ask about a pod.

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use kube::ResourceExt;

/// Has it run to an end?
pub fn finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The phase, empty if none was set.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Is it there to stay, neither finished nor being deleted?
pub fn active(pod: &Pod) -> bool {
    !finished(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Is its `Ready` condition true?
pub fn ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The node it is bound to.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

/// The claims that the pod asks for.
pub fn claims(pod: &Pod) -> &[PodResourceClaim] {
    pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_deref()).unwrap_or_default()
}

/// Where an entry of [`claims`] leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimName<'a> {
    /// To this claim.
    Named(&'a str),
    /// To this claim, made from a template for the pod.
    Generated(&'a str),
    /// Nowhere yet: a claim is to be made from the template.
    Awaited { template: &'a str },
    /// Nowhere: none is needed.
    Nothing,
}

/// Resolves an entry of the pod's claims.
pub fn claim_name<'a>(pod: &'a Pod, entry: &'a PodResourceClaim) -> ClaimName<'a> {
    if let Some(name) = entry.resource_claim_name.as_deref() {
        return ClaimName::Named(name);
    }
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref());
    match statuses.unwrap_or_default().iter().find(|status| status.name == entry.name) {
        Some(status) => match status.resource_claim_name.as_deref() {
            Some(name) => ClaimName::Generated(name),
            None => ClaimName::Nothing,
        },
        None => match entry.resource_claim_template_name.as_deref() {
            Some(template) => ClaimName::Awaited { template },
            None => ClaimName::Nothing,
        },
    }
}

/// Namespace and name of an object, for a person.
pub fn full_name(object: &impl ResourceExt) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}
