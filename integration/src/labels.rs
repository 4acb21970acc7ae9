//! Label selectors and node selectors, as Kubernetes matches them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

type Labels = BTreeMap<String, String>;

/// Does a node satisfy a node selector? Terms are alternatives; an empty term matches nothing.
pub fn node_selector_matches(selector: &NodeSelector, node: &Node) -> bool {
    selector.node_selector_terms.iter().any(|term| term_matches(term, node))
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    if expressions.is_empty() && fields.is_empty() {
        return false;
    }
    let labels = node.metadata.labels.as_ref();
    expressions.iter().all(|r| node_requirement(r, labels.and_then(|labels| labels.get(&r.key))))
        && fields.iter().all(|r| r.key == "metadata.name" && node_requirement(r, node.metadata.name.as_ref()))
}

fn node_requirement(requirement: &NodeSelectorRequirement, value: Option<&String>) -> bool {
    operator_matches(&requirement.operator, requirement.values.as_deref().unwrap_or_default(), value)
}

/// Does `labels` have every entry of `wanted`?
pub fn has_all(labels: Option<&Labels>, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// Does a label selector match? An empty selector matches everything.
pub fn selector_matches(selector: &LabelSelector, labels: Option<&Labels>) -> bool {
    selector.match_labels.as_ref().is_none_or(|wanted| has_all(labels, wanted))
        && selector.match_expressions.iter().flatten().all(|r| {
            let value = labels.and_then(|labels| labels.get(&r.key));
            operator_matches(&r.operator, r.values.as_deref().unwrap_or_default(), value)
        })
}

fn operator_matches(operator: &str, values: &[String], value: Option<&String>) -> bool {
    match operator {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" | "Lt" => {
            let number = |text: &String| text.parse::<i64>().ok();
            match (value.and_then(number), values.first().and_then(number)) {
                (Some(value), Some(limit)) if operator == "Gt" => value > limit,
                (Some(value), Some(limit)) => value < limit,
                _ => false,
            }
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node() -> Node {
        serde_json::from_value(json!({"metadata": {"name": "node-1", "labels": {"zone": "a", "gpus": "4"}}})).unwrap()
    }

    fn matches(terms: serde_json::Value) -> bool {
        let selector: NodeSelector = serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
        node_selector_matches(&selector, &node())
    }

    #[test]
    fn operators() {
        for (key, operator, values, expected) in [
            ("zone", "In", json!(["a", "b"]), true),
            ("zone", "NotIn", json!(["a"]), false),
            ("rack", "NotIn", json!(["a"]), true),
            ("zone", "Exists", json!([]), true),
            ("rack", "DoesNotExist", json!([]), true),
            ("gpus", "Gt", json!(["3"]), true),
            ("gpus", "Lt", json!(["4"]), false),
            ("zone", "Gt", json!(["3"]), false),
        ] {
            let term = json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
            assert_eq!(matches(term), expected, "{key} {operator}");
        }
    }

    #[test]
    fn terms_are_alternatives_and_their_parts_are_not() {
        let name = |name| json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let zone = |zone| json!({"key": "zone", "operator": "In", "values": [zone]});
        assert!(matches(json!([{"matchFields": [name("node-1")]}])));
        assert!(matches(json!([{"matchFields": [name("node-2")]}, {"matchExpressions": [zone("a")]}])));
        assert!(!matches(json!([{"matchFields": [name("node-1")], "matchExpressions": [zone("b")]}])));
        assert!(!matches(json!([{}])), "an empty term matches nothing");
    }

    #[test]
    fn label_selectors() {
        let labels: Labels = [("app".to_owned(), "green".to_owned())].into();
        let selects = |selector| selector_matches(&serde_json::from_value(selector).unwrap(), Some(&labels));
        assert!(selects(json!({})));
        assert!(selects(json!({"matchLabels": {"app": "green"}})));
        assert!(!selects(json!({"matchLabels": {"app": "green", "tier": "x"}})));
        assert!(selects(json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})));
    }
}
