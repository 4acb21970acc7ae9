//! What of Heddle is in use in a cluster, asked once.

use heddle_core::uninstall::{InUse, full_name, holds_device};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};

use crate::controller::compute_domain_resource;

/// Lists ComputeDomains and the claims that hold devices of Heddle's; `gpus` says whether GPUs are.
///
/// # Errors
/// The API server cannot be asked, or refuses.
pub async fn in_use(client: Client, gpus: bool) -> kube::Result<InUse> {
    let cds: Api<DynamicObject> = Api::all_with(client.clone(), &compute_domain_resource());
    let compute_domains = match cds.list(&ListParams::default()).await {
        Ok(list) => list.items.iter().map(full_name).collect(),
        // Without the CustomResourceDefinition there is none.
        Err(kube::Error::Api(status)) if status.is_not_found() => Vec::new(),
        Err(error) => return Err(error),
    };
    let claims = Api::<ResourceClaim>::all(client).list(&ListParams::default()).await?.items;
    let claims = claims.iter().filter(|claim| holds_device(claim, gpus)).map(full_name).collect();
    Ok(InUse { compute_domains, claims })
}
