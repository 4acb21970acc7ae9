//! Creates a container: its devices by its claims and the CDI files on disk, and its environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container as Spec, Pod};

use super::{
    cdi::{Catalog, Edits},
    claims::Claims,
    container::Container,
    options::KubeletOptions,
    pod_claims,
};

/// The CDI ids that a container gets by the claims that it names.
pub fn cdi_ids(pod: &Pod, spec: &Spec, claims: &Claims) -> Result<Vec<String>, String> {
    let pod_claims = pod_claims::of(pod)?;
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut ids: Vec<String> = Vec::new();
    for used in spec.resources.iter().flat_map(|resources| resources.claims.iter().flatten()) {
        let Some(claim) = pod_claims.iter().find(|claim| claim.entry == used.name) else { continue };
        let name = &claim.name;
        let devices = claims.devices(namespace, name, used.request.as_deref()).ok_or_else(|| {
            format!("internal error: unable to get claim info for ResourceClaim {name} in namespace {namespace}")
        })?;
        for id in devices.flat_map(|entry| &entry.device.cdi_device_ids) {
            if !ids.contains(id) {
                ids.push(id.clone());
            }
        }
    }
    Ok(ids)
}

/// Creates the container, or says why the runtime would not.
pub fn create(
    options: &KubeletOptions,
    pod: &Pod,
    spec: &Spec,
    init: bool,
    ip: &str,
    ids: &[String],
) -> Result<Container, String> {
    let paths = &options.paths;
    let mut edits = Edits::default();
    if !ids.is_empty() {
        let catalog = Catalog::read(&[paths.cdi_static(), paths.cdi()]);
        edits = Edits::inject(&catalog, ids, &paths.os()).map_err(|err| {
            let because: String = catalog.problems().iter().map(|problem| format!("; {problem}")).collect();
            format!("CDI device injection failed: {err}{because}")
        })?;
    }
    let mut env = environment(options, pod, spec, ip);
    env.extend(edits.env);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(Container {
        namespace: text(&pod.metadata.namespace),
        pod: text(&pod.metadata.name),
        pod_uid: text(&pod.metadata.uid),
        name: spec.name.clone(),
        init,
        devices: edits.devices,
        env,
    })
}

/// The container's own environment: plain values, and fields of the pod. References to other objects are left out.
fn environment(options: &KubeletOptions, pod: &Pod, spec: &Spec, ip: &str) -> BTreeMap<String, String> {
    let field = |path: &str| match path {
        "metadata.name" => pod.metadata.name.clone(),
        "metadata.namespace" => pod.metadata.namespace.clone(),
        "metadata.uid" => pod.metadata.uid.clone(),
        "spec.nodeName" => Some(options.node_name.clone()),
        "status.hostIP" => Some(options.node_address.clone()),
        "status.podIP" => Some(ip.to_owned()),
        _ => None,
    };
    let mut env = BTreeMap::new();
    for entry in spec.env.iter().flatten() {
        let reference = entry.value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = entry.value.clone().or_else(|| reference.and_then(|reference| field(&reference.field_path)));
        if let Some(value) = value {
            env.insert(entry.name.clone(), value);
        }
    }
    env
}
