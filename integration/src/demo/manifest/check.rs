//! Everything that can be known to be wrong before anything is applied.

use std::collections::{BTreeMap, BTreeSet};

use heddle_core::api::ComputeDomain;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use kube::CustomResourceExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Document, Problem};
use crate::api;

/// Every problem of these documents, alone and together.
pub fn check(documents: &[Document]) -> Vec<Problem> {
    let mut problems: Vec<_> = documents.iter().flat_map(Document::check).collect();
    let mut seen = BTreeSet::new();
    for document in documents.iter().filter(|document| document.object["metadata"]["name"].is_string()) {
        if !seen.insert((document.kind.kind, document.namespace(), document.name())) {
            problems.push(document.problem(
                "metadata.name",
                format!("{} {:?} stands in these files twice; expected it once", document.kind.kind, document.name()),
            ));
        }
    }
    problems
}

impl Document {
    fn check(&self) -> Vec<Problem> {
        let mut problems = self.check_metadata();
        if problems.is_empty() {
            problems = self.check_schema();
        }
        if problems.is_empty() {
            problems = self.check_claims();
            problems.extend(super::rules::check(self));
        }
        problems
    }

    fn check_metadata(&self) -> Vec<Problem> {
        let metadata = &self.object["metadata"];
        if !metadata.is_object() {
            return vec![self.problem("metadata", "expected an object with a name")];
        }
        let mut problems = Vec::new();
        match (metadata["name"].as_str(), metadata["generateName"].as_str()) {
            (Some(name), _) if !is_subdomain(name) => problems.push(self.problem(
                "metadata.name",
                "expected a DNS name: lower-case letters, digits, '-' and '.', at most 253 characters",
            )),
            (None, None) => problems.push(self.problem("metadata.name", "expected a name")),
            _ => {}
        }
        if self.kind.namespaced && (!is_subdomain(self.namespace()) || self.namespace().len() > 63) {
            problems.push(self.problem("metadata.namespace", "expected the name of a namespace"));
        }
        problems
    }

    fn check_schema(&self) -> Vec<Problem> {
        match self.kind.kind {
            "ComputeDomain" => {
                let crd = serde_json::to_value(ComputeDomain::crd()).unwrap_or_default();
                let found = api::validate(&crd, &self.object, None).unwrap_or_else(|errors| errors);
                let mut problems: Vec<_> =
                    found.into_iter().map(|error| self.problem(&error.path, error.message)).collect();
                if problems.is_empty() {
                    problems = self.check_type::<ComputeDomain>();
                }
                problems
            }
            "Namespace" => self.check_type::<Namespace>(),
            "DeviceClass" => self.check_type::<DeviceClass>(),
            "ServiceAccount" => self.check_type::<ServiceAccount>(),
            "ConfigMap" => self.check_type::<ConfigMap>(),
            "Secret" => self.check_type::<Secret>(),
            "Service" => self.check_type::<Service>(),
            "ResourceClaimTemplate" => self.check_type::<ResourceClaimTemplate>(),
            "ResourceClaim" => self.check_type::<ResourceClaim>(),
            "Pod" => self.check_type::<Pod>(),
            "ReplicaSet" => self.check_type::<ReplicaSet>(),
            "Deployment" => self.check_type::<Deployment>(),
            _ => self.check_type::<Job>(),
        }
    }

    fn check_type<T: DeserializeOwned + Serialize>(&self) -> Vec<Problem> {
        let typed: T = match serde_path_to_error::deserialize(&self.object) {
            Ok(typed) => typed,
            Err(error) => {
                let path = error.path().to_string();
                return vec![self.problem(path.trim_matches('.'), format!("{}", error.inner()))];
            }
        };
        // The types skip fields that they do not know: what does not come back was misspelt.
        let known = serde_json::to_value(&typed).unwrap_or_default();
        let mut lost = Vec::new();
        unknown_fields(&self.object, &known, "", &mut lost);
        lost.into_iter().map(|path| self.problem(&path, format!("{} has no such field", self.kind.kind))).collect()
    }

    /// A container may use only claims that its pod names.
    fn check_claims(&self) -> Vec<Problem> {
        let (path, spec) = match self.kind.kind {
            "Pod" => ("spec", &self.object["spec"]),
            "ReplicaSet" | "Deployment" | "Job" => ("spec.template.spec", &self.object["spec"]["template"]["spec"]),
            _ => return Vec::new(),
        };
        let mut problems = Vec::new();
        let mut named = BTreeMap::new();
        for (index, claim) in elements(&spec["resourceClaims"]) {
            let sources = ["resourceClaimName", "resourceClaimTemplateName"];
            if sources.iter().filter(|source| claim[**source].is_string()).count() != 1 {
                problems.push(self.problem(
                    &format!("{path}.resourceClaims[{index}]"),
                    "expected exactly one of resourceClaimName and resourceClaimTemplateName",
                ));
            }
            named.insert(claim["name"].as_str().unwrap_or_default(), index);
        }
        for list in ["initContainers", "containers"] {
            for (container, value) in elements(&spec[list]) {
                for (index, claim) in elements(&value["resources"]["claims"]) {
                    let name = claim["name"].as_str().unwrap_or_default();
                    if !named.contains_key(name) {
                        problems.push(self.problem(
                            &format!("{path}.{list}[{container}].resources.claims[{index}].name"),
                            format!(
                                "{name:?} is not among the pod's resourceClaims; expected one of {:?}",
                                named.keys()
                            ),
                        ));
                    }
                }
            }
        }
        if elements(&spec["containers"]).next().is_none() {
            problems.push(self.problem(&format!("{path}.containers"), "expected at least one container"));
        }
        problems
    }
}

fn elements(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

/// Paths in `given` that `known` lacks. Empty values may be left out by the types, and say nothing.
fn unknown_fields(given: &Value, known: &Value, path: &str, lost: &mut Vec<String>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (name, value) in given {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => unknown_fields(value, known, &path, lost),
                    None if is_empty(value) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter().zip(known).enumerate() {
                unknown_fields(given, known, &format!("{path}[{index}]"), lost);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;

    fn problems(text: &str) -> Vec<String> {
        match parse(Path::new("f.yaml"), text) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_good_manifest_has_no_problem() {
        let text = "
apiVersion: resource.nvidia.com/v1beta1
kind: ComputeDomain
metadata: {name: a}
spec: {numNodes: 0, channel: {resourceClaimTemplate: {name: a}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: x, resources: {claims: [{name: channel}]}}]
  resourceClaims: [{name: channel, resourceClaimTemplateName: a}]
";
        assert_eq!(problems(text), Vec::<String>::new());
    }

    #[test]
    fn each_problem_names_file_line_field_and_what_was_expected() {
        for (text, line, field) in [
            ("apiVersion: v1\nkind: Pud\nmetadata: {name: a}\n", 2, "kind"),
            ("apiVersion: v2\nkind: Pod\nmetadata: {name: a}\n", 1, "apiVersion"),
            ("apiVersion: v1\nkind: Pod\nmetadata:\n  name: A_b\n", 4, "metadata.name"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    imaje: x\n",
                7,
                "spec.containers[0].imaje",
            ),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: 7\n", 5, "spec.containers"),
            (
                "apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {name: a}\nspec:\n  isolationMode: Node\n  channel: {resourceClaimTemplate: {name: a}}\n",
                5,
                "spec.isolationMode",
            ),
            (
                "apiVersion: resource.nvidia.com/v1beta1\nkind: ComputeDomain\nmetadata: {name: a}\nspec:\n  channel:\n    allocationMode: All\n    resourceClaimTemplate: {name: a}\n",
                4,
                "spec",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    resources:\n      claims:\n      - name: nope\n",
                9,
                "spec.containers[0].resources.claims[0].name",
            ),
        ] {
            let found = problems(text);
            assert!(
                found.iter().any(|problem| problem.starts_with(&format!("f.yaml:{line}: {field}: "))),
                "expected {line} {field}, found {found:#?}"
            );
        }
    }
}
