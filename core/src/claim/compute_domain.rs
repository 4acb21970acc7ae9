//! The ComputeDomain that a claim names, read leniently: fields that we do not know are nobody's fault.

use kube::core::DynamicObject;
use serde_json::Value;

use super::plan::DomainFacts;
use crate::api::{AllocationMode, ChannelConfig, ComputeDomainRef, IsolationMode};
use crate::fault::{Fault, reason};

/// What counts of `object`, which was found in the claim's namespace under the name or UID that `config` gives.
/// `asked` is the isolation that the claim was made for.
///
/// A claim that was made for an exclusive ComputeDomain stays one: what the object says may have been dropped since, by
/// another driver's schema.
///
/// # Errors
/// A permanent fault if it is another ComputeDomain, is being deleted, or asks for something unknown.
pub fn facts(
    object: &DynamicObject,
    namespace: &str,
    config: &ChannelConfig,
    asked: IsolationMode,
) -> Result<DomainFacts, Fault> {
    let name = object.metadata.name.clone().unwrap_or_default();
    if object.metadata.namespace.as_deref() != Some(namespace) {
        return Err(gone(namespace, config));
    }
    let uid = object.metadata.uid.clone().unwrap_or_default();
    if uid != config.domain_id {
        let message = format!(
            "ComputeDomain {namespace}/{name} has UID {uid}, the claim is of {}: it was made anew since, make the claim anew too",
            config.domain_id
        );
        return Err(Fault::permanent(reason::COMPUTE_DOMAIN_GONE, message));
    }
    if object.metadata.deletion_timestamp.is_some() {
        let message = format!("ComputeDomain {namespace}/{name} is being deleted");
        return Err(Fault::permanent(reason::COMPUTE_DOMAIN_DELETING, message));
    }
    let field = |pointer: &str| object.data.pointer(pointer).filter(|value| !value.is_null());
    let unknown = |what: &str, value: &Value| {
        let value: String = value.to_string().chars().take(80).collect();
        let message =
            format!("ComputeDomain {namespace}/{name} has {what} {value}, which this agent does not know; update it");
        Fault::permanent(reason::INVALID_CONFIG, message)
    };
    let isolation = match field("/spec/isolationMode") {
        _ if asked == IsolationMode::Domain => asked,
        None => IsolationMode::default(),
        Some(value) => serde_json::from_value(value.clone()).map_err(|_| unknown("isolationMode", value))?,
    };
    let allocation = match field("/spec/channel/allocationMode") {
        None => AllocationMode::default(),
        Some(value) => serde_json::from_value(value.clone()).map_err(|_| unknown("allocationMode", value))?,
    };
    Ok(DomainFacts {
        reference: ComputeDomainRef { namespace: namespace.to_owned(), name, uid },
        isolation,
        allocation,
    })
}

/// The fault of a ComputeDomain that is not there.
pub fn gone(namespace: &str, config: &ChannelConfig) -> Fault {
    Fault::permanent(
        reason::COMPUTE_DOMAIN_GONE,
        format!(
            "there is no ComputeDomain with UID {} in namespace {namespace}; a claim can only use a ComputeDomain of its own \
             namespace, through the template that it names",
            config.domain_id
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";

    fn read(object: Value) -> Result<DomainFacts, Fault> {
        let config = ChannelConfig::new(UID, "green", AllocationMode::Single);
        facts(&serde_json::from_value(object).unwrap(), "team", &config, IsolationMode::Channel)
    }

    /// Known failures aicr 2546, 2547, 2715: otherwise a node would enter the shared IMEX domain for it.
    #[test]
    fn where_its_isolation_was_dropped_the_claim_tells() {
        let config = ChannelConfig::new(UID, "green", AllocationMode::Single);
        let mode = |spec: Value, asked| {
            let object = json!({"metadata": {"namespace": "team", "name": "green", "uid": UID}, "spec": spec});
            facts(&serde_json::from_value(object).unwrap(), "team", &config, asked).unwrap().isolation
        };
        assert_eq!(mode(json!({"channel": {}}), IsolationMode::Domain), IsolationMode::Domain);
        assert_eq!(mode(json!({"isolationMode": "Channel"}), IsolationMode::Domain), IsolationMode::Domain);
        assert_eq!(mode(json!({"isolationMode": "Domain"}), IsolationMode::Channel), IsolationMode::Domain);
    }

    #[test]
    fn an_object_of_the_existing_api_is_read_and_one_without_spec_too() {
        let mut object = json!({"metadata": {"namespace": "team", "name": "green", "uid": UID}});
        assert_eq!(read(object.clone()).unwrap().isolation, IsolationMode::Channel);
        object["spec"] = json!({"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "t"}}, "later": {}});
        let facts = read(object.clone()).unwrap();
        assert_eq!((facts.reference.name.as_str(), facts.allocation), ("green", AllocationMode::Single));
        object["spec"] = json!({"isolationMode": "Domain", "channel": {"allocationMode": "All"}});
        let facts = read(object).unwrap();
        assert_eq!((facts.isolation, facts.allocation), (IsolationMode::Domain, AllocationMode::All));
    }

    #[test]
    fn what_is_not_the_claim_s_compute_domain_is_refused() {
        let good = json!({"metadata": {"namespace": "team", "name": "green", "uid": UID}});
        for (pointer, value, expected) in [
            ("namespace", json!("other"), reason::COMPUTE_DOMAIN_GONE),
            ("uid", json!("another"), reason::COMPUTE_DOMAIN_GONE),
            ("deletionTimestamp", json!("2026-01-01T00:00:00Z"), reason::COMPUTE_DOMAIN_DELETING),
        ] {
            let mut object = good.clone();
            object["metadata"][pointer] = value;
            assert_eq!(read(object).unwrap_err().reason, expected, "{pointer}");
        }
        let mut object = good;
        object["spec"] = json!({"isolationMode": "Rack"});
        assert!(read(object).unwrap_err().message.contains("\"Rack\""));
    }
}
