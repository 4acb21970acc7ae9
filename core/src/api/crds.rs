use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use super::{ComputeDomain, IMEXDomain, IMEXNode};

/// The CRDs of Heddle, in the order in which they are applied.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![ComputeDomain::crd(), IMEXDomain::crd(), IMEXNode::crd()]
}
