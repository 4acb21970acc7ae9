//! What an Event is about.

use k8s_openapi::api::core::v1::ObjectReference;

/// A Node, as its kubelet refers to it: Events of a node carry its name for a UID, and kubectl looks for that.
pub(crate) fn node(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(name.into()),
        uid: Some(name.into()),
        ..Default::default()
    }
}
