//! The kinds that the embedded cluster brings to life.

use kube::core::{ApiResource, GroupVersionKind};

/// A kind that a manifest may hold.
#[derive(Debug)]
pub struct Kind {
    /// `apiVersion` in manifests.
    pub api_version: &'static str,
    /// `kind` in manifests.
    pub kind: &'static str,
    /// Name in URLs.
    pub plural: &'static str,
    /// Whether its objects live in a namespace.
    pub namespaced: bool,
}

/// In the order in which they are applied: what others refer to comes first.
pub(super) const KINDS: &[Kind] = &[
    kind("v1", "Namespace", "namespaces", false),
    kind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", false),
    kind("v1", "ServiceAccount", "serviceaccounts", true),
    kind("v1", "ConfigMap", "configmaps", true),
    kind("v1", "Secret", "secrets", true),
    kind("v1", "Service", "services", true),
    kind("resource.nvidia.com/v1beta1", "ComputeDomain", "computedomains", true),
    kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", true),
    kind("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", true),
    kind("v1", "Pod", "pods", true),
    kind("apps/v1", "ReplicaSet", "replicasets", true),
    kind("apps/v1", "Deployment", "deployments", true),
    kind("batch/v1", "Job", "jobs", true),
];

const fn kind(api_version: &'static str, kind: &'static str, plural: &'static str, namespaced: bool) -> Kind {
    Kind { api_version, kind, plural, namespaced }
}

impl Kind {
    pub(super) fn find(api_version: &str, kind: &str) -> Option<&'static Self> {
        Self::named(kind).filter(|known| known.api_version == api_version)
    }

    pub(super) fn named(kind: &str) -> Option<&'static Self> {
        KINDS.iter().find(|known| known.kind == kind)
    }

    /// Its place in the order of application.
    pub fn rank(&self) -> usize {
        KINDS.iter().position(|known| std::ptr::eq(known, self)).unwrap_or(KINDS.len())
    }

    /// What a dynamic client needs to know of it.
    pub fn resource(&self) -> ApiResource {
        let (group, version) = self.api_version.rsplit_once('/').unwrap_or(("", self.api_version));
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, self.kind), self.plural)
    }
}
