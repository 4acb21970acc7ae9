use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;

use crate::api::{ComputeDomainRef, ComputeDomainSpec, ComputeDomainStatus, IsolationMode};
use crate::fault::{Fault, reason};
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
    /// Whether the spec can be trusted to be what its creator wrote.
    pub origin: Origin,
}

/// What is known of how the API came to a ComputeDomain's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// It has no `isolationMode`. Our schema has a default for it, so this one was read through another's.
    pub pruned: bool,
    /// It has the mark of one that was made under another's schema.
    pub marked: bool,
    /// The isolationMode of the manifest that `kubectl apply` was given, if it was made by that.
    pub wished: Option<String>,
}

impl Origin {
    fn read(object: &DynamicObject) -> Self {
        let annotations = object.metadata.annotations.as_ref();
        let annotation = |name: &str| annotations.and_then(|all| all.get(name));
        let manifest = annotation(names::LAST_APPLIED_ANNOTATION);
        let manifest = manifest.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok());
        let wished = |manifest: serde_json::Value| match manifest.pointer("/spec/isolationMode") {
            None | Some(serde_json::Value::Null) => word(IsolationMode::default()).to_owned(),
            Some(mode) => mode.as_str().unwrap_or_default().to_owned(),
        };
        let mode = object.data.get("spec").and_then(|spec| spec.get("isolationMode"));
        Self {
            pruned: mode.is_none_or(serde_json::Value::is_null),
            marked: annotation(names::DOUBT_ANNOTATION).is_some(),
            wished: manifest.map(wished),
        }
    }
}

fn word(mode: IsolationMode) -> &'static str {
    match mode {
        IsolationMode::Channel => "Channel",
        IsolationMode::Domain => "Domain",
    }
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
            origin: Origin::read(object),
        })
    }

    /// Nobody can tell later whether its creator asked for an isolationMode: it is to be marked now.
    pub fn unmarked(&self) -> bool {
        self.origin.pruned && self.origin.wished.is_none() && !self.origin.marked && !self.guarded()
    }

    /// Why it is not known whether its isolationMode is what its creator asked for.
    pub fn doubt(&self) -> Option<Fault> {
        let Ok(spec) = &self.spec else { return None };
        let name = self.full_name();
        if self.origin.wished.as_deref().is_some_and(|wished| wished != word(spec.isolation_mode)) {
            let text = format!(
                "the manifest of ComputeDomain {name} asks for another isolationMode than the API has: it was made while the \
                 CustomResourceDefinition was not Heddle's, which dropped the field without a word; delete it and create it \
                 anew"
            );
            return Some(Fault::permanent(reason::FIELDS_DROPPED, text));
        }
        let text = || {
            format!(
                "ComputeDomain {name} was made while the CustomResourceDefinition was not Heddle's, so that an isolationMode it \
                 asked for was dropped without a word; delete it and create it anew, or, if it asked for none, run `kubectl \
                 annotate computedomains.resource.nvidia.com -n {} {} {}-`",
                self.reference.namespace,
                self.reference.name,
                names::DOUBT_ANNOTATION
            )
        };
        // One that has been accepted was made before.
        (self.origin.marked && !self.guarded()).then(|| Fault::permanent(reason::FIELDS_DROPPED, text()))
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

    fn of(spec: serde_json::Value, annotations: serde_json::Value) -> Cd {
        let object = serde_json::json!({
            "apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": "ComputeDomain",
            "metadata": {"name": "green", "namespace": "team", "uid": "u", "annotations": annotations},
            "spec": spec,
        });
        Cd::read(&serde_json::from_value(object).unwrap()).unwrap()
    }

    /// Known failures aicr 2546, 2547, 2715.
    #[test]
    fn an_isolation_mode_that_was_dropped_is_not_forgotten() {
        let channel = serde_json::json!({"resourceClaimTemplate": {"name": "t"}});
        let pruned = serde_json::json!({"channel": channel});
        let shared = serde_json::json!({"channel": channel, "isolationMode": "Channel"});
        let applied = |spec: serde_json::Value| {
            let manifest = serde_json::json!({"spec": spec}).to_string();
            serde_json::json!({names::LAST_APPLIED_ANNOTATION: manifest})
        };
        let wish = serde_json::json!({"channel": channel, "isolationMode": "Domain"});
        let none = || serde_json::json!({});
        for (spec, annotations, unmarked, doubtful) in [
            (shared.clone(), none(), false, false),
            (pruned.clone(), none(), true, false),
            (pruned.clone(), applied(pruned.clone()), false, false),
            (pruned.clone(), applied(wish.clone()), false, true),
            (shared.clone(), applied(wish.clone()), false, true),
            (wish.clone(), applied(wish), false, false),
            (shared.clone(), applied(pruned.clone()), false, false),
            (shared.clone(), serde_json::json!({names::LAST_APPLIED_ANNOTATION: "no JSON"}), false, false),
            (shared, serde_json::json!({names::DOUBT_ANNOTATION: ""}), false, true),
            (pruned, serde_json::json!({names::DOUBT_ANNOTATION: ""}), false, true),
        ] {
            let mut cd = of(spec, annotations);
            assert_eq!((cd.unmarked(), cd.doubt().is_some()), (unmarked, doubtful), "{cd:?}");
            cd.finalizers = vec![names::FINALIZER.into()];
            let says_so = doubtful && !cd.origin.marked;
            assert_eq!((cd.unmarked(), cd.doubt().is_some()), (false, says_so), "it has been accepted: {cd:?}");
        }
    }
}
