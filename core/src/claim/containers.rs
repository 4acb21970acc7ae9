//! Which containers of a pod use which claims.
//!
//! A CUDA process subscribes to one IMEX channel for its life, and which of two device nodes it takes is nobody's to say.
//! So one container must not hold the channels of two ComputeDomains; a pod may.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};

use crate::api::ComputeDomainRef;
use crate::fault::{Fault, reason};

/// Names of the other claims that containers of `pod` use together with the claim `name`: init containers, sidecars and
/// ephemeral ones too.
pub fn companions(pod: &Pod, name: &str) -> BTreeSet<String> {
    let together = containers(pod).into_iter().filter(|(_, claims)| claims.contains(name));
    together.flat_map(|(_, claims)| claims).filter(|other| other != name).collect()
}

/// Refuses the claim `name` of `domain` if a container of `pod` uses it together with a claim of another ComputeDomain.
/// `others` are the ComputeDomains of its companions, by claim, as far as those have one: UID, and a name for people.
///
/// # Errors
/// A permanent fault that names the container and both claims.
pub fn check(
    pod: &Pod,
    name: &str,
    domain: &ComputeDomainRef,
    others: &BTreeMap<String, (String, String)>,
) -> Result<(), Fault> {
    for (container, claims) in containers(pod) {
        if !claims.contains(name) {
            continue;
        }
        let mut known = claims.iter().filter_map(|claim| Some((claim, others.get(claim)?)));
        let foreign = known.find(|(_, (uid, _))| *uid != domain.uid);
        if let Some((claim, (_, other))) = foreign {
            let pod = pod.metadata.name.as_deref().unwrap_or_default();
            let message = format!(
                "container {container} of pod {}/{pod} uses two ComputeDomains, {} by claim {name} and {other} by claim {claim}; \
                 a process can use one IMEX channel: give each ComputeDomain a container of its own",
                domain.namespace, domain.name
            );
            return Err(Fault::permanent(reason::TWO_CHANNELS, message));
        }
    }
    Ok(())
}

/// Each container with the claims that it uses, by the names of the claims' objects.
fn containers(pod: &Pod) -> Vec<(&str, BTreeSet<String>)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let objects = objects(pod);
    let used = |resources: &Option<ResourceRequirements>| -> BTreeSet<String> {
        let claims = resources.iter().flat_map(|resources| resources.claims.iter().flatten());
        claims.filter_map(|claim| objects.get(claim.name.as_str()).cloned()).collect()
    };
    let regular = spec.init_containers.iter().flatten().chain(&spec.containers);
    let regular = regular.map(|container| (container.name.as_str(), used(&container.resources)));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    regular.chain(ephemeral.map(|container| (container.name.as_str(), used(&container.resources)))).collect()
}

/// The claims' objects by the names that the pod has for them.
fn objects(pod: &Pod) -> BTreeMap<&str, String> {
    let named = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let named = named.filter_map(|claim| Some((claim.name.as_str(), claim.resource_claim_name.clone()?)));
    let made = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let made = made.filter_map(|claim| Some((claim.name.as_str(), claim.resource_claim_name.clone()?)));
    named.chain(made).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fault::Class;

    fn uses(name: &str, claims: &[&str]) -> Value {
        let claims: Vec<_> = claims.iter().map(|claim| json!({"name": claim})).collect();
        json!({"name": name, "resources": {"claims": claims}})
    }

    /// `a` is a claim by name, `b` and `c` are made from templates.
    fn pod(spec: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"namespace": "team", "name": "p"},
            "spec": {"containers": [], "resourceClaims": [
                {"name": "a", "resourceClaimName": "claim-a"},
                {"name": "b", "resourceClaimTemplateName": "t"}, {"name": "c", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [
                {"name": "b", "resourceClaimName": "p-b-x7"}, {"name": "c", "resourceClaimName": "p-c-x8"}]},
        });
        for (field, containers) in spec.as_object().unwrap() {
            pod["spec"][field] = containers.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn refused(spec: Value) -> Result<(), Fault> {
        let green = ComputeDomainRef { namespace: "team".into(), name: "green".into(), uid: "g".into() };
        let others = [("p-b-x7", ("b", "blue")), ("p-c-x8", ("g", "green"))]
            .map(|(claim, (uid, name))| (claim.to_owned(), (uid.to_owned(), name.to_owned())));
        check(&pod(spec), "claim-a", &green, &others.into())
    }

    #[test]
    fn a_container_of_any_kind_may_use_one_compute_domain() {
        for kind in ["containers", "initContainers", "ephemeralContainers"] {
            let fault = refused(json!({kind: [uses("one", &["a"]), uses("two", &["c", "b", "a"])]})).unwrap_err();
            assert_eq!((fault.class, fault.reason), (Class::Permanent, reason::TWO_CHANNELS));
            let parts = ["container two of pod team/p", "green by claim claim-a", "blue by claim p-b-x7"];
            assert!(parts.iter().all(|part| fault.message.contains(part)), "{fault}");
        }
    }

    #[test]
    fn a_pod_may_use_several_in_containers_of_their_own() {
        assert_eq!(refused(json!({"containers": [uses("one", &["a"]), uses("two", &["b"])]})), Ok(()));
        assert_eq!(
            refused(json!({"containers": [uses("one", &["a", "c"])], "initContainers": [uses("i", &["b"])]})),
            Ok(())
        );
        assert_eq!(refused(json!({"containers": [uses("one", &["b", "c"]), uses("two", &["unknown"])]})), Ok(()));
    }

    #[test]
    fn the_companions_of_a_claim_are_those_of_its_containers() {
        let pod = pod(json!({"containers": [uses("one", &["a", "b"]), uses("two", &["c"])]}));
        assert_eq!(companions(&pod, "claim-a"), ["p-b-x7".to_owned()].into());
        assert!(companions(&pod, "p-c-x8").is_empty() && companions(&pod, "other").is_empty());
        assert!(companions(&Pod::default(), "claim-a").is_empty());
    }
}
