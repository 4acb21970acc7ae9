//! Whether the CustomResourceDefinitions that a cluster serves keep what Heddle writes and reads.
//!
//! A CRD belongs to whoever applied it last, and an API server drops fields that it does not know without a word. Where
//! another driver's CRD of the same name is served, `isolationMode: Domain` is one of them.

mod compare;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion as Version,
};
use serde_json::Value;

use crate::fault::{Fault, reason};
use crate::names;
use compare::{Comparison, Look};

/// Whether `served` keeps everything that `ours` has: fields, their types and values, and the rules by which users cannot
/// change them.
///
/// # Errors
/// What is missing, by its path in an object.
pub fn fits(ours: &CustomResourceDefinition, served: &CustomResourceDefinition) -> Result<(), Vec<String>> {
    let missing = compared(ours, served, Look::Everything);
    if missing.is_empty() { Ok(()) } else { Err(missing) }
}

/// What objects would lose if `to` took the place of `from`: fields, values and versions in which they are stored.
pub fn loses(from: &CustomResourceDefinition, to: &CustomResourceDefinition) -> Vec<String> {
    let mut lost = Vec::new();
    for version in from.spec.versions.iter().filter(|version| version.served) {
        let mut one = from.clone();
        one.spec.versions = vec![version.clone()];
        lost.extend(compared(&one, to, Look::Fields));
    }
    lost
}

/// The versions in which objects may be stored and that `ours` does not have, as `served` has them. They are kept, or those
/// objects could not be read any more.
pub fn stored_elsewhere(ours: &CustomResourceDefinition, served: &CustomResourceDefinition) -> Vec<Version> {
    let stored = served.status.as_ref().and_then(|status| status.stored_versions.clone()).unwrap_or_default();
    let known = |name: &str| ours.spec.versions.iter().any(|version| version.name == name);
    let kept = served.spec.versions.iter().filter(|version| stored.contains(&version.name) && !known(&version.name));
    kept.cloned().map(|version| Version { storage: false, ..version }).collect()
}

/// Who else has applied or written the schemas of a CRD, by field manager.
pub fn other_managers(crd: &CustomResourceDefinition) -> Vec<String> {
    let entries = crd.metadata.managed_fields.iter().flatten();
    let owns = |fields: &Value| fields.pointer("/f:spec/f:versions").is_some();
    let others = entries
        .filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)))
        .filter_map(|entry| entry.manager.clone())
        .filter(|manager| manager != names::CRD_MANAGER);
    let mut others: Vec<_> = others.collect();
    others.sort();
    others.dedup();
    others
}

/// The fault of a CRD that does not fit. `missing` is what [`fits`] found, `others` who may have applied it.
pub fn outdated(crd: &str, missing: &[String], others: &[String]) -> Fault {
    let (by, take_over) = match others {
        [] => (String::new(), ""),
        others => {
            (format!(" (it was written by {})", crate::condition::enumerate(others.iter().cloned())), " --take-over")
        }
    };
    let missing = crate::condition::enumerate(missing.iter().cloned());
    let text = format!(
        "the CustomResourceDefinition {crd} that the API serves{by} is not this release's: {missing}; run `heddle crds \
         apply{take_over}`. Until it fits no new ComputeDomain is served"
    );
    Fault::retryable(reason::CRD_OUTDATED, text)
}

/// The fault of a CRD about which nothing is known.
pub fn unread(crd: &str, why: &str) -> Fault {
    let text = format!(
        "the CustomResourceDefinition {crd} cannot be read, so that it is not known whether it keeps isolationMode: {why}. \
         Until then no new ComputeDomain is served"
    );
    Fault::retryable(reason::CRD_OUTDATED, text)
}

fn compared(ours: &CustomResourceDefinition, served: &CustomResourceDefinition, look: Look) -> Vec<String> {
    let mut found = Vec::new();
    if ours.spec.scope != served.spec.scope {
        found.push(format!("its scope is {}, not {}", served.spec.scope, ours.spec.scope));
    }
    if ours.spec.names.kind != served.spec.names.kind {
        found.push(format!("its kind is {}, not {}", served.spec.names.kind, ours.spec.names.kind));
    }
    let stored = served.spec.versions.iter().find(|version| version.storage);
    for version in &ours.spec.versions {
        let Some(theirs) = served.spec.versions.iter().find(|theirs| theirs.name == version.name && theirs.served)
        else {
            found.push(format!("version {} is not served", version.name));
            continue;
        };
        if has_status(version) && !has_status(theirs) {
            found.push(format!("version {} has no subresource status", version.name));
        }
        found.extend(Comparison::new(look).of(&schema(version), &schema(theirs)));
        // What is read comes through the version in which it is stored.
        if let Some(stored) = stored.filter(|stored| stored.name != theirs.name) {
            let lost = Comparison::new(Look::Fields).of(&schema(version), &schema(stored));
            found.extend(lost.into_iter().map(|what| format!("{what} (in the stored version {})", stored.name)));
        }
    }
    found
}

fn has_status(version: &Version) -> bool {
    version.subresources.as_ref().is_some_and(|all| all.status.is_some())
}

fn schema(version: &Version) -> Value {
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    schema.and_then(|schema| serde_json::to_value(schema).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
