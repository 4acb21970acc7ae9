//! What is written into a claim once its devices are chosen.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult,
};

use super::pools::Visible;
use super::request::{Alternative, Plan};
use super::search::Pick;

/// The allocation of one claim.
pub fn allocation(plan: &Plan<'_>, picks: &[Pick], visible: &Visible<'_>, node: &Node) -> AllocationResult {
    let results = picks
        .iter()
        .map(|pick| {
            let asked = &plan.requests[pick.request].alternatives[pick.alternative];
            let id = &visible.devices[pick.device].id;
            DeviceRequestAllocationResult {
                request: asked.name.clone(),
                driver: id.driver.clone(),
                pool: id.pool.clone(),
                device: id.device.clone(),
                admin_access: asked.admin.then_some(true),
                tolerations: (!asked.tolerations.is_empty()).then(|| asked.tolerations.to_vec()),
                ..Default::default()
            }
        })
        .collect();
    let config = config(plan, picks);
    AllocationResult {
        devices: Some(DeviceAllocationResult {
            results: Some(results),
            config: (!config.is_empty()).then_some(config),
        }),
        node_selector: node_selector(picks, visible, node),
        allocation_timestamp: None,
    }
}

/// The alternative that was chosen for each request.
fn chosen<'p>(plan: &'p Plan<'_>, picks: &[Pick]) -> Vec<&'p Alternative<'p>> {
    let chosen = plan.requests.iter().enumerate().map(|(i, request)| {
        let pick = picks.iter().find(|pick| pick.request == i);
        &request.alternatives[pick.map_or(0, |pick| pick.alternative)]
    });
    chosen.collect()
}

/// The classes' configs first, each once for all requests of the class, then the claim's own.
fn config(plan: &Plan<'_>, picks: &[Pick]) -> Vec<DeviceAllocationConfiguration> {
    let chosen = chosen(plan, picks);
    let mut config = Vec::new();
    let mut seen = BTreeSet::new();
    for asked in &chosen {
        let class = &asked.class.metadata.name;
        if !seen.insert(class) {
            continue;
        }
        let requests: Vec<String> =
            chosen.iter().filter(|asked| asked.class.metadata.name == *class).map(|asked| asked.name.clone()).collect();
        for entry in asked.class.spec.config.iter().flatten() {
            config.push(DeviceAllocationConfiguration {
                source: "FromClass".into(),
                // No names mean all requests.
                requests: (requests.len() < chosen.len()).then(|| requests.clone()),
                opaque: entry.opaque.clone(),
            });
        }
    }
    for entry in plan.claim.spec.devices.iter().flat_map(|devices| devices.config.iter().flatten()) {
        let names = entry.requests.as_deref().unwrap_or_default();
        let concerns = |name: &str| names.iter().any(|wanted| wanted == name);
        let relevant = names.is_empty()
            || plan
                .requests
                .iter()
                .zip(&chosen)
                .any(|(request, asked)| concerns(request.name) || concerns(&asked.name));
        if relevant {
            let all = names.len() == plan.requests.len();
            config.push(DeviceAllocationConfiguration {
                source: "FromClaim".into(),
                requests: (!names.is_empty() && !all).then(|| names.to_vec()),
                opaque: entry.opaque.clone(),
            });
        }
    }
    config
}

/// Where the claim can be used: this very node if any device is local to it; else what all the selectors ask for
/// together; nothing if every device is reachable from everywhere.
fn node_selector(picks: &[Pick], visible: &Visible<'_>, node: &Node) -> Option<NodeSelector> {
    let mut merged = NodeSelectorTerm::default();
    for pick in picks {
        let entry = &visible.devices[pick.device];
        let spec = &entry.slice.spec;
        let (name, selector) = if spec.per_device_node_selection == Some(true) {
            (&entry.device.node_name, &entry.device.node_selector)
        } else {
            (&spec.node_name, &spec.node_selector)
        };
        if name.as_deref().is_some_and(|name| !name.is_empty()) || entry.device.binds_to_node == Some(true) {
            return Some(only(node));
        }
        for term in selector.iter().flat_map(|selector| &selector.node_selector_terms) {
            extend(&mut merged.match_expressions, term.match_expressions.as_deref());
            extend(&mut merged.match_fields, term.match_fields.as_deref());
        }
    }
    (merged != NodeSelectorTerm::default()).then(|| NodeSelector { node_selector_terms: vec![merged] })
}

fn only(node: &Node) -> NodeSelector {
    let name = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.metadata.name.clone().unwrap_or_default()]),
    };
    NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm { match_fields: Some(vec![name]), ..Default::default() }],
    }
}

fn extend(all: &mut Option<Vec<NodeSelectorRequirement>>, more: Option<&[NodeSelectorRequirement]>) {
    for requirement in more.unwrap_or_default() {
        let list = all.get_or_insert_default();
        if !list.contains(requirement) {
            list.push(requirement.clone());
        }
    }
}
