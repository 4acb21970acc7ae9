//! Pods made from templates.

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};

/// A reference that makes `owner` the controller.
pub fn controller_of<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A pod of `owner`, whose name will begin with `prefix`.
pub fn pod<K: Resource<DynamicType = ()>>(owner: &K, template: &PodTemplateSpec, prefix: String) -> Pod {
    let wanted = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(prefix),
            namespace: owner.namespace(),
            labels: wanted.labels,
            annotations: wanted.annotations,
            finalizers: wanted.finalizers,
            owner_references: Some(vec![controller_of(owner)]),
            ..Default::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// A short name for a template's content, of letters that spell no words.
pub fn hash(template: &PodTemplateSpec) -> String {
    // Keys come out in order, so equal templates give equal text.
    let text = serde_json::to_vec(template).unwrap_or_default();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in text {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    let mut name = String::new();
    for _ in 0..10 {
        name.push(char::from(ALPHABET[usize::try_from(hash % 27).unwrap_or(0)]));
        hash /= 27;
    }
    name
}
