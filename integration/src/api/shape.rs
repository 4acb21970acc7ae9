//! Whether a built-in object has the shape of its type: what the real server's decoder refuses.

use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, batch::v1 as batch, certificates::v1 as certificates,
    coordination::v1 as coordination, core::v1 as core, networking::v1 as networking, policy::v1 as policy,
    rbac::v1 as rbac, resource::v1 as resource, scheduling::v1 as scheduling,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::resource::Resource;
use super::status::{Outcome, bad_request};

/// Refuses an object in which a field has another type than its kind says.
pub fn check(kind: &Resource, object: &Value) -> Outcome<()> {
    fits::<ObjectMeta>(&object["metadata"])
        .and_then(|()| match kind.storage.plural.as_str() {
            _ if kind.custom.is_some() => Ok(()),
            "namespaces" => fits::<core::Namespace>(object),
            "nodes" => fits::<core::Node>(object),
            "pods" => fits::<core::Pod>(object),
            "events" => fits::<core::Event>(object),
            "secrets" => fits::<core::Secret>(object),
            "configmaps" => fits::<core::ConfigMap>(object),
            "serviceaccounts" => fits::<core::ServiceAccount>(object),
            "services" => fits::<core::Service>(object),
            "deployments" => fits::<apps::Deployment>(object),
            "replicasets" => fits::<apps::ReplicaSet>(object),
            "daemonsets" => fits::<apps::DaemonSet>(object),
            "statefulsets" => fits::<apps::StatefulSet>(object),
            "jobs" => fits::<batch::Job>(object),
            "certificatesigningrequests" => fits::<certificates::CertificateSigningRequest>(object),
            "leases" => fits::<coordination::Lease>(object),
            "deviceclasses" => fits::<resource::DeviceClass>(object),
            "resourceslices" => fits::<resource::ResourceSlice>(object),
            "resourceclaims" => fits::<resource::ResourceClaim>(object),
            "resourceclaimtemplates" => fits::<resource::ResourceClaimTemplate>(object),
            "customresourcedefinitions" => fits::<apiextensions::CustomResourceDefinition>(object),
            "roles" => fits::<rbac::Role>(object),
            "rolebindings" => fits::<rbac::RoleBinding>(object),
            "clusterroles" => fits::<rbac::ClusterRole>(object),
            "clusterrolebindings" => fits::<rbac::ClusterRoleBinding>(object),
            "validatingadmissionpolicies" => fits::<admission::ValidatingAdmissionPolicy>(object),
            "validatingadmissionpolicybindings" => fits::<admission::ValidatingAdmissionPolicyBinding>(object),
            "validatingwebhookconfigurations" => fits::<admission::ValidatingWebhookConfiguration>(object),
            "mutatingwebhookconfigurations" => fits::<admission::MutatingWebhookConfiguration>(object),
            "priorityclasses" => fits::<scheduling::PriorityClass>(object),
            "poddisruptionbudgets" => fits::<policy::PodDisruptionBudget>(object),
            "networkpolicies" => fits::<networking::NetworkPolicy>(object),
            _ => Ok(()),
        })
        .map_err(|error| {
            let (version, kind) = (kind.api_version(), &kind.kind);
            bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {error}"))
        })
}

fn fits<'a, T: Deserialize<'a>>(value: &'a Value) -> Result<(), serde_json::Error> {
    T::deserialize(value).map(drop)
}
