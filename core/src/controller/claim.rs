use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::claim::ClaimKey;
use crate::names;

/// What the controller needs to know of a claim that is labelled as a ComputeDomain's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledClaim {
    /// Namespace, name and UID.
    pub key: ClaimKey,
    /// The UID on its label. Anybody may write one: it counts only in the ComputeDomain's own namespace.
    pub cd_uid: String,
    /// Nodes on which it is allocated slots. Each node's pool is named after it.
    pub nodes: BTreeSet<String>,
}

impl LabelledClaim {
    /// Reads a claim; `None` if it has no label or is not in the API yet.
    pub fn read(claim: &ResourceClaim) -> Option<Self> {
        let metadata = &claim.metadata;
        let key = ClaimKey {
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
        };
        let cd_uid = metadata.labels.as_ref()?.get(names::COMPUTE_DOMAIN_LABEL)?.clone();
        let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
        let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
        let nodes = results.into_iter().flatten().filter(|result| result.driver == names::DRIVER);
        Some(Self { key, cd_uid, nodes: nodes.map(|result| result.pool.clone()).collect() })
    }
}
