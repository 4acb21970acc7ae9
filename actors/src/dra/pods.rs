//! The pods of a claim.

use std::collections::BTreeMap;

use heddle_core::api::ComputeDomainRef;
use heddle_core::claim::{containers, request};
use heddle_core::fault::Fault;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};

use super::lookup::{unavailable, within};

/// The pods that the claim is reserved for.
pub(crate) fn of(claim: &ResourceClaim) -> Vec<ObjectReference> {
    let consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let pods = consumers.filter(|consumer| consumer.resource == "pods" && consumer.api_group.is_none());
    pods.map(|pod| ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: claim.metadata.namespace.clone(),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    })
    .collect()
}

/// Sees to it that no container of the claim's pods uses another ComputeDomain too.
///
/// # Errors
/// A permanent fault that names the container; a retryable one if the API server does not tell.
pub(crate) async fn check_containers(
    client: &Client,
    claim: &ResourceClaim,
    domain: &ComputeDomainRef,
) -> Result<(), Fault> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let (pods, claims) =
        (Api::<Pod>::namespaced(client.clone(), namespace), Api::namespaced(client.clone(), namespace));
    let mut others = BTreeMap::new();
    for reference in of(claim) {
        let pod_name = reference.name.unwrap_or_default();
        let shown = format!("{namespace}/{pod_name}");
        let pod = within(pods.get_opt(&pod_name)).await.map_err(|why| unavailable("Pod", &shown, &why))?;
        // Gone since, or another one of its name: the claim is not its.
        let Some(pod) = pod.filter(|pod| pod.metadata.uid == reference.uid) else { continue };
        for other in containers::companions(&pod, name) {
            if others.contains_key(&other) {
                continue;
            }
            let shown = format!("{namespace}/{other}");
            let found: Option<ResourceClaim> =
                within(claims.get_opt(&other)).await.map_err(|why| unavailable("ResourceClaim", &shown, &why))?;
            others.extend(found.as_ref().and_then(request::compute_domain).map(|domain| (other, domain)));
        }
        containers::check(&pod, name, domain, &others)?;
    }
    Ok(())
}
