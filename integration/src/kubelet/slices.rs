//! Deletes the node's ResourceSlices, as the kubelet does while nobody can serve what they offer.

use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use tokio::time;
use tracing::{info, warn};

use super::{Machine, backoff::Backoff};

/// Deletes the slices with `spec.nodeName` = this node, of one driver or of all. Does not give up.
pub async fn wipe(machine: &Machine, driver: Option<&str>) {
    let options = &machine.options;
    let slices: Api<ResourceSlice> = Api::all(options.client.clone());
    let mut selector = format!("spec.nodeName={}", options.node_name);
    if let Some(driver) = driver {
        selector.push_str(&format!(",spec.driver={driver}"));
    }
    let mut backoff = Backoff::new(options.limits.api_retry);
    loop {
        let params = ListParams::default().fields(&selector);
        match slices.delete_collection(&DeleteParams::default(), &params).await {
            Ok(_) => break,
            Err(err) => {
                warn!(node = options.node_name, %err, "could not delete the node's ResourceSlices, trying again");
                time::sleep(backoff.next()).await;
            }
        }
    }
    machine.counters.wipes.one();
    info!(node = options.node_name, driver, "deleted the node's ResourceSlices");
}
