//! What a claim asks of this node.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use serde_json::Value;

use super::ClaimKey;
use crate::api::{ChannelConfig, IsolationMode};
use crate::fault::{Fault, reason};
use crate::{names, slices};

/// A device of ours that the scheduler gave to the claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allocated {
    /// `main`, or `main/sub` where the request names alternatives.
    pub request: String,
    /// Pool, which is the node.
    pub pool: String,
    /// Device, for instance `slot-3`.
    pub device: String,
    /// Set where a device may be shared by several claims.
    pub share_id: Option<String>,
}

impl Allocated {
    /// The names under which a container may ask for the device: a container names the main request, and an
    /// alternative belongs to it. The kubelet compares whole strings only.
    pub fn request_names(&self) -> Vec<String> {
        let main = main_request(&self.request);
        let mut names = vec![main.to_owned()];
        if main != self.request {
            names.push(self.request.clone());
        }
        names
    }
}

/// The request that an alternative `main/sub` belongs to.
pub fn main_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

/// The devices of `driver` on `node` that the claim holds.
///
/// # Errors
/// If this is another claim of the same name, if it is not allocated or not reserved for a pod, or if what it was
/// given is not here.
pub fn devices(claim: &ResourceClaim, key: &ClaimKey, driver: &str, node: &str) -> Result<Vec<Allocated>, Fault> {
    let mismatch = |what: String| Fault::permanent(reason::CLAIM_MISMATCH, format!("ResourceClaim {key} {what}"));
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if uid != key.uid {
        return Err(mismatch(format!("has UID {uid}, the kubelet asked for {}: it was made anew since", key.uid)));
    }
    let Some(allocation) = allocation(claim) else {
        return Err(Fault::retryable(reason::CLAIM_MISMATCH, format!("ResourceClaim {key} is not allocated")));
    };
    let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_ref()).is_some_and(|pods| !pods.is_empty());
    if !reserved {
        let message = format!("ResourceClaim {key} is not reserved for any pod");
        return Err(Fault::retryable(reason::CLAIM_MISMATCH, message));
    }
    let ours: Vec<_> = allocation.results.iter().flatten().filter(|result| result.driver == driver).collect();
    if ours.is_empty() {
        return Err(mismatch(format!("holds no device of driver {driver}")));
    }
    if let Some(other) = ours.iter().find(|result| result.pool != node) {
        let (pool, device) = (&other.pool, &other.device);
        return Err(mismatch(format!("holds {device} of {pool}, this is node {node}")));
    }
    let (ours_by_name, what): (fn(&str) -> bool, _) =
        if driver == names::DRIVER { (slices::is_slot, "slot") } else { (slices::is_gpu, "GPU") };
    if let Some(other) = ours.iter().find(|result| !ours_by_name(&result.device)) {
        return Err(mismatch(format!("holds {:.80} of {node}, which is no {what}", other.device)));
    }
    Ok(ours.into_iter().map(allocated).collect())
}

/// The isolation that the claim was made for: the template of an exclusive ComputeDomain asks for all slots of a node.
pub fn isolation(claim: &ResourceClaim) -> IsolationMode {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let slots = requests.filter_map(|request| request.exactly.as_ref());
    let mut slots = slots.filter(|exactly| exactly.device_class_name == names::CHANNEL_DEVICE_CLASS);
    let all = slots.any(|exactly| exactly.allocation_mode.as_deref() == Some("All"));
    if all { IsolationMode::Domain } else { IsolationMode::Channel }
}

fn allocated(result: &DeviceRequestAllocationResult) -> Allocated {
    Allocated {
        request: result.request.clone(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        share_id: result.share_id.clone(),
    }
}

/// The ComputeDomain that a claim is of: its UID, and what to call it. None if the claim holds no slot, or could never be
/// prepared.
pub fn compute_domain(claim: &ResourceClaim) -> Option<(String, String)> {
    let slots = allocation(claim)?.results.iter().flatten().filter(|result| result.driver == names::DRIVER);
    let config = channel_config(claim, &ClaimKey::default(), &slots.map(allocated).collect::<Vec<_>>()).ok()?;
    let name = config.compute_domain.unwrap_or_else(|| config.domain_id.clone());
    Some((config.domain_id, name))
}

/// The one channel config of all `devices` of the claim.
///
/// # Errors
/// A permanent fault if a device has none, if one cannot be read, or if they name several ComputeDomains: a process
/// can use one channel for its life, so two in one claim could never both be used.
pub fn channel_config(claim: &ResourceClaim, key: &ClaimKey, devices: &[Allocated]) -> Result<ChannelConfig, Fault> {
    let configs: &[_] = allocation(claim).and_then(|a| a.config.as_deref()).unwrap_or_default();
    let requests: BTreeSet<&str> = devices.iter().map(|device| device.request.as_str()).collect();
    let mut chosen: Option<ChannelConfig> = None;
    for request in requests {
        let config = resolve(configs, request).map_err(|fault| Fault {
            message: format!("ResourceClaim {key}, request {request}: {}", fault.message),
            ..fault
        })?;
        if chosen.as_ref().is_some_and(|earlier| *earlier != config) {
            let message = format!(
                "ResourceClaim {key} names several ComputeDomains; use one claim per ComputeDomain: a process can use one IMEX channel"
            );
            return Err(Fault::permanent(reason::INVALID_CONFIG, message));
        }
        chosen = Some(config);
    }
    chosen.ok_or_else(|| Fault::permanent(reason::CLAIM_MISMATCH, format!("ResourceClaim {key} holds no slot")))
}

/// The config that counts for `request`: a claim's goes before its class's, a later one before an earlier one.
fn resolve(configs: &[DeviceAllocationConfiguration], request: &str) -> Result<ChannelConfig, Fault> {
    let mut skipped = None;
    let by_precedence = ["FromClaim", "FromClass"]
        .into_iter()
        .flat_map(|source| configs.iter().rev().filter(move |config| config.source == source));
    for config in by_precedence {
        let Some(opaque) = config.opaque.as_ref().filter(|opaque| opaque.driver == names::DRIVER) else { continue };
        let named = config.requests.as_deref().unwrap_or_default();
        let explicit = named.iter().any(|name| name == request || name == main_request(request));
        if !explicit && !named.is_empty() {
            continue;
        }
        // A config of another kind that was written for every request may be meant for other devices of ours; one
        // written for this very request can only be a mistake.
        match opaque.parameters.0.get("kind").and_then(Value::as_str) {
            Some(kind) if kind != names::CHANNEL_CONFIG_KIND && !explicit => {
                skipped = skipped.or(Some(kind.chars().take(80).collect::<String>()));
            }
            _ => return ChannelConfig::decode(&opaque.parameters.0),
        }
    }
    let found = skipped.map(|kind| format!(" (only one of kind {kind:?})")).unwrap_or_default();
    Err(Fault::permanent(
        reason::INVALID_CONFIG,
        format!(
            "there is no {} for driver {}{found}; make the claim from the template that the ComputeDomain names in \
             spec.channel.resourceClaimTemplate",
            names::CHANNEL_CONFIG_KIND,
            names::DRIVER
        ),
    ))
}

fn allocation(claim: &ResourceClaim) -> Option<&DeviceAllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fault::Class;

    const UID: &str = "11111111-2222-4333-8444-555555555555";
    const GREEN: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";
    const BLUE: &str = "1b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";

    fn key() -> ClaimKey {
        ClaimKey { namespace: "team".into(), name: "c".into(), uid: UID.into() }
    }

    fn config(source: &str, requests: &[&str], domain: &str) -> Value {
        json!({"source": source, "requests": requests, "opaque": {"driver": names::DRIVER, "parameters": {
            "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": names::CHANNEL_CONFIG_KIND, "domainID": domain}}})
    }

    fn result(request: &str, driver: &str, pool: &str, device: &str) -> Value {
        json!({"request": request, "driver": driver, "pool": pool, "device": device})
    }

    fn claim(results: Vec<Value>, configs: Vec<Value>) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {"namespace": "team", "name": "c", "uid": UID},
            "spec": {},
            "status": {"allocation": {"devices": {"results": results, "config": configs}},
                       "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
        }))
        .unwrap()
    }

    fn slot(request: &str) -> Value {
        result(request, names::DRIVER, "n1", "slot-0")
    }

    fn domain_of(claim: &ResourceClaim) -> Result<String, Fault> {
        let devices = devices(claim, &key(), names::DRIVER, "n1")?;
        channel_config(claim, &key(), &devices).map(|config| config.domain_id)
    }

    #[test]
    fn only_the_results_of_the_driver_on_this_node_are_ours() {
        let both = claim(vec![slot("channel"), result("gpu", names::GPU_DRIVER, "n1", "gpu-1")], vec![]);
        let ours = devices(&both, &key(), names::GPU_DRIVER, "n1").unwrap();
        assert_eq!(ours.len(), 1);
        assert_eq!((ours[0].device.as_str(), ours[0].request_names()), ("gpu-1", vec!["gpu".to_owned()]));
    }

    #[test]
    fn a_container_may_name_the_main_request_of_an_alternative() {
        let alternative = claim(vec![slot("main/sub")], vec![]);
        let ours = devices(&alternative, &key(), names::DRIVER, "n1").unwrap();
        assert_eq!(ours[0].request_names(), ["main", "main/sub"]);
    }

    #[test]
    fn what_is_not_for_us_is_refused_for_good() {
        let mut other = claim(vec![slot("channel")], vec![]);
        other.metadata.uid = Some("another".into());
        for claim in [
            other,
            claim(vec![result("channel", names::DRIVER, "n2", "slot-0")], vec![]),
            claim(vec![slot("channel"), result("channel", names::DRIVER, "n2", "slot-0")], vec![]),
            claim(vec![result("channel", "gpu.example.com", "n1", "slot-0")], vec![]),
            claim(vec![], vec![]),
        ] {
            let fault = devices(&claim, &key(), names::DRIVER, "n1").unwrap_err();
            assert_eq!((fault.class, fault.reason), (Class::Permanent, reason::CLAIM_MISMATCH), "{fault}");
        }
    }

    #[test]
    fn a_device_that_no_node_publishes_is_refused_for_good() {
        for (driver, device) in [
            (names::DRIVER, "slot-31"),
            (names::DRIVER, "gpu-0"),
            (names::GPU_DRIVER, "slot-0"),
            (names::GPU_DRIVER, "gpu-00"),
            (names::GPU_DRIVER, "gpu-"),
            (names::GPU_DRIVER, "../gpu-0"),
        ] {
            let claim = claim(vec![result("r", driver, "n1", device)], vec![]);
            let fault = devices(&claim, &key(), driver, "n1").unwrap_err();
            assert_eq!((fault.class, fault.reason), (Class::Permanent, reason::CLAIM_MISMATCH), "{fault}");
        }
        let last = claim(vec![result("r", names::GPU_DRIVER, "n1", "gpu-15")], vec![]);
        assert!(devices(&last, &key(), names::GPU_DRIVER, "n1").is_ok(), "it may only be lost for the moment");
    }

    #[test]
    fn case_23_a_claim_without_allocation_or_reservation_waits_for_them() {
        let mut unreserved = claim(vec![slot("channel")], vec![]);
        unreserved.status.as_mut().unwrap().reserved_for = None;
        let mut unallocated = claim(vec![slot("channel")], vec![]);
        unallocated.status.as_mut().unwrap().allocation = None;
        let mut empty = claim(vec![slot("channel")], vec![]);
        empty.status = None;
        for claim in [unreserved, unallocated, empty] {
            assert_eq!(devices(&claim, &key(), names::DRIVER, "n1").unwrap_err().class, Class::Retryable);
        }
    }

    #[test]
    fn a_claim_s_config_goes_before_its_class_s_and_a_later_before_an_earlier() {
        let rows: Vec<(Vec<Value>, &str)> = vec![
            (vec![config("FromClass", &[], GREEN)], GREEN),
            (vec![config("FromClaim", &[], BLUE), config("FromClass", &[], GREEN)], BLUE),
            (vec![config("FromClass", &["channel"], GREEN), config("FromClaim", &[], BLUE)], BLUE),
            (vec![config("FromClaim", &[], GREEN), config("FromClaim", &["channel"], BLUE)], BLUE),
            (vec![config("FromClaim", &["channel"], GREEN), config("FromClaim", &[], BLUE)], BLUE),
            (vec![config("FromClaim", &[], GREEN), config("FromClaim", &["other"], BLUE)], GREEN),
        ];
        for (configs, expected) in rows {
            assert_eq!(domain_of(&claim(vec![slot("channel")], configs.clone())).unwrap(), expected, "{configs:?}");
        }
    }

    #[test]
    fn another_claim_tells_its_compute_domain_or_none() {
        let of = |claim: &ResourceClaim| compute_domain(claim).map(|(uid, _)| uid);
        let green = || vec![config("FromClaim", &[], GREEN)];
        assert_eq!(of(&claim(vec![slot("channel")], green())).as_deref(), Some(GREEN));
        assert_eq!(of(&claim(vec![result("gpu", names::GPU_DRIVER, "n1", "gpu-1")], green())), None);
        assert_eq!(of(&claim(vec![slot("channel")], vec![])), None);
        assert_eq!(of(&ResourceClaim::default()), None);
    }

    #[test]
    fn a_config_for_the_main_request_counts_for_its_alternatives() {
        for name in ["main", "main/sub"] {
            let configs = vec![config("FromClaim", &[name], GREEN)];
            assert_eq!(domain_of(&claim(vec![slot("main/sub")], configs)).unwrap(), GREEN);
        }
        let configs = vec![config("FromClaim", &["main/other"], GREEN)];
        assert!(domain_of(&claim(vec![slot("main/sub")], configs)).is_err());
    }

    #[test]
    fn another_kind_is_skipped_as_a_wildcard_and_refused_by_name() {
        let mut wildcard = config("FromClaim", &[], BLUE);
        wildcard["opaque"]["parameters"]["kind"] = json!("ComputeDomainDaemonConfig");
        let mut named = config("FromClaim", &["channel"], BLUE);
        named["opaque"]["parameters"]["kind"] = json!("ComputeDomainDaemonConfig");
        let class = config("FromClass", &[], GREEN);
        assert_eq!(domain_of(&claim(vec![slot("channel")], vec![class.clone(), wildcard.clone()])).unwrap(), GREEN);
        assert!(domain_of(&claim(vec![slot("channel")], vec![class, named])).is_err());
        let fault = domain_of(&claim(vec![slot("channel")], vec![wildcard])).unwrap_err();
        assert!(fault.message.contains("ComputeDomainDaemonConfig"), "{fault}");
    }

    #[test]
    fn a_config_of_another_driver_says_nothing() {
        let mut other = config("FromClaim", &[], BLUE);
        other["opaque"]["driver"] = json!("gpu.example.com");
        let fault = domain_of(&claim(vec![slot("channel")], vec![other])).unwrap_err();
        assert_eq!((fault.class, fault.reason), (Class::Permanent, reason::INVALID_CONFIG));
    }

    #[test]
    fn one_claim_is_of_one_compute_domain() {
        let configs = vec![config("FromClaim", &["a"], GREEN), config("FromClaim", &["b"], BLUE)];
        let fault = domain_of(&claim(vec![slot("a"), slot("b")], configs)).unwrap_err();
        assert!(fault.message.contains("several ComputeDomains"), "{fault}");
        let configs = vec![config("FromClaim", &["a"], GREEN), config("FromClaim", &["b"], GREEN)];
        assert_eq!(domain_of(&claim(vec![slot("a"), slot("b")], configs)).unwrap(), GREEN);
    }

    proptest::proptest! {
        /// Whatever a tenant writes there, reading it answers.
        #[test]
        fn any_config_is_answered(source in "FromCla(im|ss)", requests in proptest::collection::vec("[a-z/]{0,6}", 0..3),
                                  kind in ".{0,40}", domain in ".{0,60}", extra in ".{0,10}") {
            let mut config = config(&source, &requests.iter().map(String::as_str).collect::<Vec<_>>(), &domain);
            config["opaque"]["parameters"]["kind"] = json!(kind);
            config["opaque"]["parameters"][extra.as_str()] = json!(1);
            let fault = domain_of(&claim(vec![slot("channel")], vec![config])).unwrap_err();
            proptest::prop_assert_eq!(fault.class, Class::Permanent);
            proptest::prop_assert!(fault.message.len() < 1000);
        }
    }

    #[test]
    fn a_claim_of_all_slots_was_made_for_an_exclusive_compute_domain() {
        let asking = |class: &str, mode: &str| {
            let exactly = serde_json::json!({"deviceClassName": class, "allocationMode": mode});
            let spec = serde_json::json!({"devices": {"requests": [{"name": "channel", "exactly": exactly}]}});
            let claim: ResourceClaim =
                serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).unwrap();
            isolation(&claim)
        };
        assert_eq!(asking(names::CHANNEL_DEVICE_CLASS, "All"), IsolationMode::Domain);
        assert_eq!(asking(names::CHANNEL_DEVICE_CLASS, "ExactCount"), IsolationMode::Channel);
        assert_eq!(asking("gpu.nvidia.com", "All"), IsolationMode::Channel);
    }
}
