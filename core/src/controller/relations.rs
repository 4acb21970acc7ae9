//! Which objects name which others, and which of two copies is the newer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use kube::Resource;

use super::Cd;
use crate::api::{IMEXDomain, IMEXNode};

pub(super) fn wanted_template(cd: &Cd) -> Option<String> {
    let spec = cd.spec.as_ref().ok()?;
    Some(format!("{}/{}", cd.reference.namespace, spec.channel.resource_claim_template.name))
}

pub(super) fn clique_of(node: &IMEXNode) -> Option<&str> {
    node.status.as_ref()?.clique.as_deref()
}

pub(super) fn domains_of(node: &IMEXNode) -> impl Iterator<Item = &str> {
    let listed = node.status.iter().flat_map(|status| status.channels.values().map(|entry| entry.domain.as_str()));
    let served = node.status.iter().filter_map(|status| status.daemon.domain.as_deref());
    node.spec.domain.as_deref().into_iter().chain(node.spec.next.as_deref()).chain(listed).chain(served)
}

pub(super) fn cds_of(node: &IMEXNode) -> impl Iterator<Item = &str> {
    node.status.iter().flat_map(|status| status.channels.keys().map(String::as_str))
}

pub(super) fn users_of(domain: &IMEXDomain) -> impl Iterator<Item = &str> {
    let owner = domain.spec.compute_domain.as_ref().map(|cd| cd.uid.as_str());
    owner.into_iter().chain(domain.status.iter().flat_map(|status| status.channels.keys().map(String::as_str)))
}

/// Watches and the answers to our own writes arrive in any order; an object never goes back. Since Kubernetes 1.35
/// the API promises that resourceVersions of a kind can be compared as numbers; all before did so too.
fn outdated(new: &ObjectMeta, known: &ObjectMeta) -> bool {
    new.uid == known.uid && older(new.resource_version.as_deref(), known.resource_version.as_deref())
}

/// Whether a copy changes nothing: there is a newer one, or it is the very copy that is known.
pub(super) fn is_old_news<K: Resource + PartialEq>(new: &K, before: Option<&K>) -> bool {
    before.is_some_and(|before| outdated(new.meta(), before.meta()))
        || known((new, new.meta().resource_version.as_deref()), before)
}

/// The very copy that is known. It asks for nothing: what was decided on it would only be decided again, and a write that
/// changes nothing would be followed by the next for ever. The same version reads otherwise under another CRD.
pub(super) fn known<T: PartialEq>(new: (&T, Option<&str>), known: Option<&T>) -> bool {
    new.1.is_some() && known == Some(new.0)
}

pub(super) fn older(new: Option<&str>, known: Option<&str>) -> bool {
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
    matches!((number(new), number(known)), (Some(new), Some(known)) if new < known)
}
