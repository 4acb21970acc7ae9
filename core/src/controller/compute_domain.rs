use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;

use crate::api::{ComputeDomainRef, ComputeDomainSpec, ComputeDomainStatus, IsolationMode};
use crate::names;

/// A ComputeDomain as it stands in the API, whoever's schema let it in: its spec may be missing or unreadable.
#[derive(Clone, Debug, PartialEq)]
pub struct Cd {
    /// Namespace, name and UID.
    pub reference: ComputeDomainRef,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// It has a deletion timestamp.
    pub deleting: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
    /// The spec, or why it cannot be read.
    pub spec: Result<ComputeDomainSpec, String>,
    /// The status; one that cannot be read counts as none and is written anew.
    pub status: Option<ComputeDomainStatus>,
}

impl Cd {
    /// Reads what the API serves. `None` for an object without name, namespace or UID, which no API serves.
    pub fn read(object: &DynamicObject) -> Option<Self> {
        let metadata = &object.metadata;
        let reference = ComputeDomainRef {
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
        };
        let spec = match object.data.get("spec") {
            None | Some(serde_json::Value::Null) => Err("it has no spec".to_string()),
            Some(spec) => serde_json::from_value(spec.clone()).map_err(|e| format!("its spec cannot be read: {e}")),
        };
        let status = object.data.get("status").and_then(|status| serde_json::from_value(status.clone()).ok());
        Some(Self {
            reference,
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            generation: metadata.generation,
            resource_version: metadata.resource_version.clone(),
            spec,
            status,
        })
    }

    /// Its UID.
    pub fn uid(&self) -> &str {
        &self.reference.uid
    }

    /// It has our finalizer.
    pub fn guarded(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == names::FINALIZER)
    }

    /// Alive: its claims are served.
    pub fn alive(&self) -> bool {
        !self.deleting && self.spec.is_ok()
    }

    /// It wants IMEX domains and nodes of its own.
    pub fn exclusive(&self) -> bool {
        self.spec.as_ref().is_ok_and(|spec| spec.isolation_mode == IsolationMode::Domain)
    }

    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.reference.namespace, self.reference.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compute_domain_without_spec_is_read() {
        for (data, why) in [
            (serde_json::json!({}), "it has no spec"),
            (serde_json::json!({"spec": null}), "it has no spec"),
            (serde_json::json!({"spec": {"numNodes": 1}}), "its spec cannot be read: missing field `channel`"),
        ] {
            let object: DynamicObject = serde_json::from_value(serde_json::json!({
                "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain",
                "metadata": {"namespace": "a", "name": "b", "uid": "c"},
                "spec": data.get("spec"), "status": {"status": 7},
            }))
            .unwrap();
            let cd = Cd::read(&object).unwrap();
            assert_eq!(cd.spec.as_ref().unwrap_err(), why);
            assert!(!cd.alive() && !cd.exclusive() && cd.status.is_none());
        }
    }
}
