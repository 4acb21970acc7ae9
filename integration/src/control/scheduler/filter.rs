//! Which nodes a pod may run on, claims aside.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm, PodSpec, Taint, Toleration};

use super::super::quantity::Quantity;
use super::snapshot::{NodeInfo, Snapshot};
use crate::labels::{has_all, node_selector_matches, selector_matches};

/// The scheduler's words for why `pod` may not run on the node, `None` if it may.
pub fn refusal(pod: &Pod, info: &NodeInfo, snapshot: &Snapshot) -> Option<String> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    unschedulable(spec, info)
        .or_else(|| untolerated_taint(spec, info))
        .or_else(|| node_affinity(spec, info))
        .or_else(|| insufficient(spec, info))
        .or_else(|| pod_affinity(pod, spec, info, snapshot))
}

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";

fn unschedulable(spec: &PodSpec, info: &NodeInfo) -> Option<String> {
    let cordoned = info.node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let taint = Taint { key: UNSCHEDULABLE.into(), effect: "NoSchedule".into(), ..Default::default() };
    (cordoned && !tolerated(spec, &taint)).then(|| "node(s) were unschedulable".into())
}

fn untolerated_taint(spec: &PodSpec, info: &NodeInfo) -> Option<String> {
    let taints = info.node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    // Nobody here turns a node's condition into its taint, so the condition itself counts.
    let conditions = info.node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let lost = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status != "True");
    let not_ready = Taint { key: NOT_READY.into(), effect: "NoSchedule".into(), ..Default::default() };
    taints
        .iter()
        .chain(lost.then_some(&not_ready))
        .filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"))
        .find(|taint| !tolerated(spec, taint))
        .map(|taint| {
            let value = taint.value.as_deref().unwrap_or_default();
            format!("node(s) had untolerated taint {{{}: {value}}}", taint.key)
        })
}

fn tolerated(spec: &PodSpec, taint: &Taint) -> bool {
    spec.tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let matches =
        |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|text| text.is_empty() || text == is);
    matches(&toleration.effect, &taint.effect)
        && matches(&toleration.key, &taint.key)
        && match toleration.operator.as_deref() {
            Some("Exists") => true,
            None | Some("" | "Equal") => {
                toleration.value.as_deref().unwrap_or("") == taint.value.as_deref().unwrap_or("")
            }
            Some(_) => false,
        }
}

fn node_affinity(spec: &PodSpec, info: &NodeInfo) -> Option<String> {
    let labels = info.node.metadata.labels.as_ref();
    let selected = spec.node_selector.as_ref().is_none_or(|wanted| has_all(labels, wanted));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let attracted = required.is_none_or(|selector| node_selector_matches(selector, &info.node));
    (!selected || !attracted).then(|| "node(s) didn't match Pod's node affinity/selector".into())
}

/// CPU, memory and extended resources, on nodes that say what they have.
fn insufficient(spec: &PodSpec, info: &NodeInfo) -> Option<String> {
    let allocatable = info.node.status.as_ref()?.allocatable.as_ref()?;
    let amount = |name: &str| allocatable.get(name).and_then(|quantity| Quantity::parse(&quantity.0));
    let places = amount("pods").and_then(Quantity::as_integer).and_then(|places| usize::try_from(places).ok());
    if places.is_some_and(|places| info.pods.len() >= places) {
        return Some("Too many pods".into());
    }
    let mut used: BTreeMap<String, Quantity> = BTreeMap::new();
    for pod in &info.pods {
        for (name, quantity) in pod.spec.as_ref().map(requests).unwrap_or_default() {
            let sum = used.entry(name).or_default();
            *sum = *sum + quantity;
        }
    }
    requests(spec).into_iter().find_map(|(name, wanted)| {
        let extended = name.contains('/') && !name.starts_with("hugepages-");
        let has = match amount(&name) {
            Some(has) => has,
            None if extended => Quantity::default(),
            None => return None,
        };
        let used = used.get(&name).copied().unwrap_or_default();
        (wanted > Quantity::default() && used + wanted > has).then(|| format!("Insufficient {name}"))
    })
}

/// What a pod needs at once: its containers together, or one init container if that is more.
fn requests(spec: &PodSpec) -> BTreeMap<String, Quantity> {
    let of = |container: &k8s_openapi::api::core::v1::Container| -> BTreeMap<String, Quantity> {
        let resources = container.resources.as_ref();
        let limits = resources.and_then(|r| r.limits.as_ref()).into_iter().flatten();
        let requests = resources.and_then(|r| r.requests.as_ref()).into_iter().flatten();
        let all = limits.chain(requests);
        all.filter_map(|(name, quantity)| Some((name.clone(), Quantity::parse(&quantity.0)?))).collect()
    };
    let mut sum: BTreeMap<String, Quantity> = BTreeMap::new();
    let sidecar = |c: &&k8s_openapi::api::core::v1::Container| c.restart_policy.as_deref() == Some("Always");
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(sidecar)) {
        for (name, quantity) in of(container) {
            let entry = sum.entry(name).or_default();
            *entry = *entry + quantity;
        }
    }
    for container in spec.init_containers.iter().flatten() {
        for (name, quantity) in of(container) {
            let entry = sum.entry(name).or_default();
            *entry = (*entry).max(quantity);
        }
    }
    sum
}

fn pod_affinity(pod: &Pod, spec: &PodSpec, info: &NodeInfo, snapshot: &Snapshot) -> Option<String> {
    for term in affinity_terms(spec) {
        let here = |other: &NodeInfo| same_topology(info, other, &term.topology_key);
        let with = |other: &NodeInfo| other.pods.iter().any(|other| term_selects(term, pod, other));
        if snapshot.nodes.values().any(|other| here(other) && with(other)) {
            continue;
        }
        // The first pod of a group that seeks its own kind must be able to start somewhere.
        let first = term_selects(term, pod, pod) && !snapshot.nodes.values().any(with);
        if !first || info.label(&term.topology_key).is_none() {
            return Some("node(s) didn't match pod affinity rules".into());
        }
    }
    let near = |term: &PodAffinityTerm, other: &NodeInfo| same_topology(info, other, &term.topology_key);
    for term in anti_affinity_terms(spec) {
        let meets =
            |other: &NodeInfo| near(term, other) && other.pods.iter().any(|other| term_selects(term, pod, other));
        if snapshot.nodes.values().any(meets) {
            return Some("node(s) didn't match pod anti-affinity rules".into());
        }
    }
    for other in snapshot.nodes.values() {
        for resident in &other.shy {
            let terms = resident.spec.as_ref().map(anti_affinity_terms).unwrap_or_default();
            if terms.iter().any(|term| near(term, other) && term_selects(term, resident, pod)) {
                return Some("node(s) didn't satisfy existing pods anti-affinity rules".into());
            }
        }
    }
    None
}

fn affinity_terms(spec: &PodSpec) -> Vec<&PodAffinityTerm> {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.pod_affinity.as_ref());
    affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
        .map(|terms| terms.iter().collect())
        .unwrap_or_default()
}

fn anti_affinity_terms(spec: &PodSpec) -> Vec<&PodAffinityTerm> {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref())
        .map(|terms| terms.iter().collect())
        .unwrap_or_default()
}

fn same_topology(a: &NodeInfo, b: &NodeInfo, key: &str) -> bool {
    a.label(key).is_some_and(|value| b.label(key) == Some(value))
}

/// Does a term of `owner` select `other`?
fn term_selects(term: &PodAffinityTerm, owner: &Pod, other: &Pod) -> bool {
    let namespace = other.metadata.namespace.clone().unwrap_or_default();
    let listed = term.namespaces.iter().flatten().any(|name| *name == namespace);
    let no_list = term.namespaces.as_ref().is_none_or(Vec::is_empty);
    let in_scope = match &term.namespace_selector {
        // A namespace is known here by its one label that every namespace has.
        Some(selector) => {
            let labels = [("kubernetes.io/metadata.name".to_owned(), namespace)].into();
            listed || selector_matches(selector, Some(&labels))
        }
        None if no_list => other.metadata.namespace == owner.metadata.namespace,
        None => listed,
    };
    let labels = other.metadata.labels.as_ref();
    let own = owner.metadata.labels.as_ref();
    let value = |labels: Option<&BTreeMap<String, String>>, key: &String| labels.and_then(|l| l.get(key)).cloned();
    in_scope
        && term.label_selector.as_ref().is_some_and(|selector| selector_matches(selector, labels))
        && term.match_label_keys.iter().flatten().all(|key| value(labels, key) == value(own, key))
        && term.mismatch_label_keys.iter().flatten().all(|key| value(labels, key) != value(own, key))
}
