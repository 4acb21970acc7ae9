//! What an API server refuses beyond the shape of an object, as far as manifests for ComputeDomains meet it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{Document, Problem};
use crate::control::device_selector;
use crate::labels;

/// Every broken rule of a document whose shape is right.
pub(super) fn check(document: &Document) -> Vec<Problem> {
    let mut rules = Rules { document, problems: Vec::new() };
    let spec = &document.object["spec"];
    match document.kind.kind {
        "DeviceClass" => rules.selectors("spec", spec),
        "ResourceClaim" => rules.requests("spec.devices.requests", &spec["devices"]["requests"]),
        "ResourceClaimTemplate" => {
            rules.requests("spec.spec.devices.requests", &spec["spec"]["devices"]["requests"]);
        }
        "Pod" => rules.pod("spec", spec),
        "Deployment" | "ReplicaSet" => {
            rules.not_negative("spec.replicas", &spec["replicas"]);
            rules.selector(spec);
            rules.restart_policy(spec, &["Always"], true);
            rules.pod("spec.template.spec", &spec["template"]["spec"]);
        }
        "Job" => {
            for field in ["parallelism", "completions", "backoffLimit"] {
                rules.not_negative(&format!("spec.{field}"), &spec[field]);
            }
            rules.restart_policy(spec, &["Never", "OnFailure"], false);
            rules.pod("spec.template.spec", &spec["template"]["spec"]);
        }
        _ => {}
    }
    rules.problems
}

struct Rules<'a> {
    document: &'a Document,
    problems: Vec<Problem>,
}

impl Rules<'_> {
    fn broken(&mut self, field: &str, expected: impl std::fmt::Display) {
        self.problems.push(self.document.problem(field, expected));
    }

    fn not_negative(&mut self, field: &str, value: &Value) {
        if value.as_i64().is_some_and(|number| number < 0) {
            self.broken(field, format!("expected 0 or more, not {value}"));
        }
    }

    fn selector(&mut self, spec: &Value) {
        let given = serde_json::from_value::<LabelSelector>(spec["selector"].clone()).unwrap_or_default();
        let template = serde_json::from_value(spec["template"]["metadata"]["labels"].clone()).unwrap_or_default();
        if given == LabelSelector::default() {
            self.broken("spec.selector", "expected the labels of its pods, for instance matchLabels: {app: x}");
        } else if !labels::selector_matches(&given, Some(&template)) {
            self.broken("spec.template.metadata.labels", "expected labels that spec.selector selects");
        }
    }

    fn restart_policy(&mut self, spec: &Value, allowed: &[&str], may_be_absent: bool) {
        let policy = &spec["template"]["spec"]["restartPolicy"];
        let fits = policy.as_str().map_or(may_be_absent && policy.is_null(), |policy| allowed.contains(&policy));
        if !fits {
            self.broken("spec.template.spec.restartPolicy", format!("expected {}", allowed.join(" or ")));
        }
    }

    fn pod(&mut self, path: &str, spec: &Value) {
        self.names(&[(format!("{path}.resourceClaims"), &spec["resourceClaims"])], "resource claim");
        let lists = ["initContainers", "containers"].map(|list| (format!("{path}.{list}"), &spec[list]));
        self.names(&lists, "container");
    }

    /// Elements have names, each once.
    fn names(&mut self, lists: &[(String, &Value)], what: &str) {
        let mut seen = Vec::new();
        for (path, list) in lists {
            for (index, element) in list.as_array().into_iter().flatten().enumerate() {
                let name = element["name"].as_str().unwrap_or_default();
                let field = format!("{path}[{index}].name");
                if name.is_empty() {
                    self.broken(&field, "expected a name");
                } else if seen.contains(&name) {
                    self.broken(&field, format!("expected a name that no other {what} of the pod has, not {name:?}"));
                }
                seen.push(name);
            }
        }
    }

    fn requests(&mut self, path: &str, requests: &Value) {
        self.names(&[(path.to_owned(), requests)], "request");
        for (index, request) in requests.as_array().into_iter().flatten().enumerate() {
            let path = format!("{path}[{index}]");
            let alternatives = request["firstAvailable"].as_array();
            match (request["exactly"].is_object(), alternatives) {
                (true, None) => self.request(&format!("{path}.exactly"), &request["exactly"]),
                (false, Some(alternatives)) if !alternatives.is_empty() => {
                    for (index, alternative) in alternatives.iter().enumerate() {
                        self.request(&format!("{path}.firstAvailable[{index}]"), alternative);
                    }
                }
                _ => self.broken(&path, "expected exactly one of exactly and firstAvailable"),
            }
        }
    }

    fn request(&mut self, path: &str, request: &Value) {
        if request["deviceClassName"].as_str().unwrap_or_default().is_empty() {
            self.broken(&format!("{path}.deviceClassName"), "expected the name of a DeviceClass");
        }
        let count = request["count"].as_i64().filter(|count| *count != 0);
        match (request["allocationMode"].as_str().unwrap_or("ExactCount"), count) {
            ("ExactCount", None | Some(1..)) | ("All", None) => {}
            ("ExactCount", Some(count)) => {
                self.broken(&format!("{path}.count"), format!("expected 1 or more, not {count}"));
            }
            ("All", Some(_)) => self.broken(&format!("{path}.count"), "expected none with allocationMode All"),
            (mode, _) => {
                let expected = format!("expected ExactCount or All, not {mode:?}");
                self.broken(&format!("{path}.allocationMode"), expected);
            }
        }
        self.selectors(path, request);
    }

    fn selectors(&mut self, path: &str, holder: &Value) {
        for (index, selector) in holder["selectors"].as_array().into_iter().flatten().enumerate() {
            let field = format!("{path}.selectors[{index}].cel.expression");
            match selector["cel"]["expression"].as_str() {
                Some(text) => {
                    if let Err(error) = device_selector::check(text) {
                        // Parsers draw the place of a fault over several lines.
                        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
                        self.broken(&field, format!("expected a CEL expression: {error}"));
                    }
                }
                None => self.broken(&field, "expected a CEL expression"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;

    fn refused(text: &str) -> Vec<String> {
        match parse(Path::new("f.yaml"), text) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn claims_with_impossible_requests_are_refused() {
        for (request, field) in [
            ("exactly: {deviceClassName: g, count: -3}", "exactly.count: expected 1 or more, not -3"),
            ("exactly: {deviceClassName: g, allocationMode: Many}", "exactly.allocationMode: "),
            ("exactly: {deviceClassName: g, allocationMode: All, count: 2}", "exactly.count: "),
            ("exactly: {count: 2}", "exactly.deviceClassName: "),
            (
                "exactly: {deviceClassName: g, selectors: [{cel: {expression: 'device.attributes['}}]}",
                "exactly.selectors[0].cel.expression: expected a CEL expression: ",
            ),
            ("firstAvailable: [{name: a, deviceClassName: ''}]", "firstAvailable[0].deviceClassName: "),
        ] {
            let text = format!(
                "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {{name: c}}\nspec:\n  devices:\n    \
                 requests:\n    - name: r\n      {request}\n"
            );
            let found = refused(&text);
            let wanted = format!("f.yaml:8: spec.devices.requests[0].{field}");
            assert!(found.len() == 1 && found[0].starts_with(&wanted), "expected {wanted}, found {found:#?}");
        }
        let none = "apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: r}]}}\n";
        assert_eq!(
            refused(none),
            ["f.yaml:4: spec.devices.requests[0]: expected exactly one of exactly and firstAvailable"]
        );
    }

    #[test]
    fn workloads_whose_pods_cannot_be_are_refused() {
        let containers = "containers: [{name: c, image: i}]";
        let deployment = |replicas: i32, label: &str, policy: &str| {
            refused(&format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec:\n  replicas: {replicas}\n  selector: \
                 {{matchLabels: {{app: a}}}}\n  template:\n    metadata: {{labels: {{app: {label}}}}}\n    spec: \
                 {{{policy}{containers}}}\n"
            ))
        };
        assert_eq!(deployment(2, "a", ""), Vec::<String>::new());
        assert_eq!(deployment(-1, "a", ""), ["f.yaml:5: spec.replicas: expected 0 or more, not -1"]);
        let labels = "f.yaml:8: spec.template.metadata.labels: expected labels that spec.selector selects";
        assert_eq!(deployment(1, "b", ""), [labels]);
        let policy = deployment(1, "a", "restartPolicy: Never, ");
        assert_eq!(policy, ["f.yaml:9: spec.template.spec.restartPolicy: expected Always"]);
        let job = format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: j}}\nspec:\n  template:\n    spec: {{{containers}}}\n"
        );
        assert_eq!(refused(&job), ["f.yaml:6: spec.template.spec.restartPolicy: expected Never or OnFailure"]);
    }

    #[test]
    fn a_name_stands_once_in_a_pod() {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  initContainers:\n  - {name: a, image: i}\n  containers:\n  - {name: b, image: i}\n  - {name: a, image: i}\n  - {image: i}\n";
        let found = refused(pod);
        assert!(found[0].starts_with("f.yaml:9: spec.containers[1].name: "), "{found:#?}");
        assert!(found[1].contains("spec.containers[2]"), "{found:#?}");
    }
}
