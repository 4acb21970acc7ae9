//! Whether Heddle may be taken off a cluster.
//!
//! Without agents no claim is unprepared, so that its pod stays Terminating (NVIDIA/gpu-operator 2571); without the controller no
//! ComputeDomain loses its finalizer.

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;

use crate::condition::enumerate;
use crate::names;

/// What of Heddle is in use, each by namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// ComputeDomains.
    pub compute_domains: Vec<String>,
    /// Claims with an allocated device of Heddle's drivers: prepared, or about to be.
    pub claims: Vec<String>,
}

/// Whether a device of Heddle's is allocated to the claim. `gpus` says whether GPUs are Heddle's.
pub fn holds_device(claim: &ResourceClaim, gpus: bool) -> bool {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_deref()).unwrap_or_default();
    results.iter().any(|result| result.driver == names::DRIVER || gpus && result.driver == names::GPU_DRIVER)
}

/// An object, as people name it.
pub fn full_name<K: ResourceExt>(object: &K) -> String {
    format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any())
}

impl InUse {
    /// Why Heddle must stay, with what to do first; none if it may go.
    pub fn refusal(&self) -> Option<String> {
        let kinds = [("ComputeDomains", &self.compute_domains), ("allocated claims", &self.claims)];
        let there = kinds.iter().filter(|(_, names)| !names.is_empty());
        let there = there.map(|(kind, names)| format!("{} {kind} ({})", names.len(), enumerate(names.iter().cloned())));
        let there = there.collect::<Vec<_>>();
        if there.is_empty() {
            return None;
        }
        Some(format!(
            "Heddle is in use: {}; delete the pods that use them, then the ComputeDomains, and uninstall again. (helm uninstall \
             --no-hooks goes on regardless: the pods then stay Terminating, and the ComputeDomains stay, until Heddle is installed again.)",
            there.join("; ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(drivers: &[&str]) -> ResourceClaim {
        let result = |driver: &&str| json!({"request": "r", "driver": driver, "pool": "n", "device": "d"});
        let results: Vec<_> = drivers.iter().map(result).collect();
        let status = json!({"allocation": {"devices": {"results": results}}});
        serde_json::from_value(json!({"metadata": {"namespace": "a", "name": "c"}, "spec": {}, "status": status}))
            .unwrap()
    }

    #[test]
    fn gpu_operator_2571_case_36_what_is_in_use_is_named_with_what_to_do() {
        assert_eq!(InUse::default().refusal(), None);
        let names: Vec<String> = (0..7).map(|n| format!("team/cd-{n}")).collect();
        let said = InUse { compute_domains: names, claims: vec!["team/claim".into()] }.refusal().unwrap();
        assert!(
            said.contains("7 ComputeDomains (team/cd-0, team/cd-1, team/cd-2, team/cd-3, team/cd-4 and 2 more)"),
            "{said}"
        );
        assert!(said.contains("1 allocated claims (team/claim)") && said.contains("delete the pods"), "{said}");
        let said = InUse { claims: vec!["team/claim".into()], ..InUse::default() }.refusal().unwrap();
        assert!(!said.contains("0 ComputeDomains"), "{said}");
    }

    #[test]
    fn a_claim_counts_by_the_driver_of_its_devices() {
        assert!(holds_device(&claim(&["other.example", "compute-domain.nvidia.com"]), false));
        assert!(holds_device(&claim(&["gpu.nvidia.com"]), true));
        assert!(!holds_device(&claim(&["gpu.nvidia.com"]), false), "then they are another driver's");
        assert!(!holds_device(&claim(&["other.example"]), true));
        assert!(!holds_device(&ResourceClaim::default(), true), "nothing is allocated");
        assert_eq!(full_name(&claim(&[])), "a/c");
    }
}
