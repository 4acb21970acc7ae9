//! From a pod's entries to the claims' names, and whether the pod may use them.

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::ResourceClaim,
};

/// A claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// The pod's own word for it.
    pub entry: String,
    /// The object's name.
    pub name: String,
    /// Made from a template for this pod alone.
    pub generated: bool,
}

/// The claims of a pod. Entries for which none is needed are left out.
pub fn of(pod: &Pod) -> Result<Vec<PodClaim>, String> {
    let entries = pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref());
    let mut claims = Vec::new();
    for entry in entries.into_iter().flatten() {
        claims.extend(resolve(pod, entry)?);
    }
    Ok(claims)
}

fn resolve(pod: &Pod, entry: &PodResourceClaim) -> Result<Option<PodClaim>, String> {
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(PodClaim { entry: entry.name.clone(), name: name.clone(), generated: false }));
    }
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let status = statuses.into_iter().flatten().find(|status| status.name == entry.name);
    let (namespace, pod) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    let status = status.ok_or_else(|| {
        let (namespace, pod) = (namespace.unwrap_or_default(), pod.unwrap_or_default());
        format!("pod \"{namespace}/{pod}\": ResourceClaim not created yet")
    })?;
    let claim = |name: &String| PodClaim { entry: entry.name.clone(), name: name.clone(), generated: true };
    Ok(status.resource_claim_name.as_ref().map(claim))
}

/// Whether the pod may use the claim: it owns a generated one, and the scheduler has reserved it for the pod.
pub fn check(pod: &Pod, used: &PodClaim, claim: &ResourceClaim) -> Result<(), String> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    if used.generated {
        let owners = claim.metadata.owner_references.as_ref();
        let owned = owners.into_iter().flatten().any(|owner| owner.uid == uid && owner.controller == Some(true));
        if !owned {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            return Err(format!(
                "ResourceClaim {namespace}/{} was not created for pod {namespace}/{pod_name} (pod is not owner)",
                used.name
            ));
        }
    }
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    if reserved.into_iter().flatten().any(|consumer| consumer.uid == uid) {
        return Ok(());
    }
    let claim_uid = claim.metadata.uid.as_deref().unwrap_or_default();
    Err(format!("pod {pod_name} ({uid}) is not allowed to use ResourceClaim {} ({claim_uid})", used.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "pu"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "direct", "resourceClaimName": "shared"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "none", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "made", "resourceClaimName": "p-made-x"}, {"name": "none"}]},
        }))
        .unwrap()
    }

    #[test]
    fn names_come_from_the_spec_or_the_status() {
        let claims = of(&pod()).unwrap();
        let names: Vec<_> = claims.iter().map(|claim| (claim.entry.as_str(), claim.name.as_str())).collect();
        assert_eq!(names, [("direct", "shared"), ("made", "p-made-x")]);
        let mut early = pod();
        early.status = None;
        assert_eq!(of(&early).unwrap_err(), "pod \"ns/p\": ResourceClaim not created yet");
    }

    #[test]
    fn the_claim_must_be_reserved_and_a_generated_one_owned() {
        let claims = of(&pod()).unwrap();
        let claim = |owner: &str, consumer: &str| -> ResourceClaim {
            serde_json::from_value(json!({
                "metadata": {"name": "x", "namespace": "ns", "uid": "cu", "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]},
                "spec": {},
                "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": consumer}]},
            }))
            .unwrap()
        };
        assert!(check(&pod(), &claims[1], &claim("pu", "pu")).is_ok());
        assert!(check(&pod(), &claims[1], &claim("else", "pu")).unwrap_err().contains("not owner"));
        assert!(check(&pod(), &claims[0], &claim("else", "pu")).is_ok());
        let err = check(&pod(), &claims[0], &claim("pu", "else")).unwrap_err();
        assert_eq!(err, "pod p (pu) is not allowed to use ResourceClaim shared (cu)");
    }
}
