//! Which devices a node has for a pod's claims: the structured-parameters allocator of the scheduler as a pure
//! function. Same inputs, same answer; the first solution in the order of pools, slices and devices is taken.

mod constraint;
mod pools;
mod request;
mod result;
mod search;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};

pub use pools::Pools;

use super::device_selector::Selectors;

/// Most devices that one claim's allocation may hold.
pub const MAX_RESULTS: usize = 32;

/// One device of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceId {
    /// Name of the DRA driver.
    pub driver: String,
    /// Name of the pool, unique to the driver.
    pub pool: String,
    /// Name of the device, unique in the pool.
    pub device: String,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}

/// What allocation depends on beside the node and the claims.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// DeviceClasses by name.
    pub classes: &'a BTreeMap<String, Arc<DeviceClass>>,
    /// The published devices.
    pub pools: &'a Pools,
    /// Devices that allocated claims hold, see [`taken`].
    pub taken: &'a BTreeSet<DeviceId>,
}

/// Why the claims get no devices on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The node does not have what is asked for; another one may.
    Unfit(Missing),
    /// Something is wrong with what the node publishes; another node may do.
    Node(String),
    /// Something is wrong with a claim or a class; no node will do until it is changed.
    Claim(String),
}

/// The request that could not be served, and in what way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// Name of the claim.
    pub claim: String,
    /// Name of the request.
    pub request: String,
    /// What stands against it.
    pub why: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResourceClaim {:?}, request {:?}: {}", self.claim, self.request, self.why)
    }
}

/// The devices that `claims` hold. One given with admin access is not taken by it.
pub fn taken<'a>(claims: impl IntoIterator<Item = &'a ResourceClaim>) -> BTreeSet<DeviceId> {
    claims
        .into_iter()
        .filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref()?.results.as_ref())
        .flatten()
        .filter(|result| result.admin_access != Some(true))
        .map(|result| DeviceId {
            driver: result.driver.clone(),
            pool: result.pool.clone(),
            device: result.device.clone(),
        })
        .collect()
}

/// Finds devices on `node` for all of `claims` at once, and says what to write into each claim's
/// `status.allocation`, but for the time stamp.
///
/// # Errors
/// A [`Refusal`]: the node, or a claim, cannot be served.
pub fn allocate(
    inputs: Inputs<'_>,
    selectors: &mut Selectors,
    node: &Node,
    claims: &[&ResourceClaim],
) -> Result<Vec<AllocationResult>, Refusal> {
    let visible = pools::Visible::on(inputs.pools, node, inputs.taken);
    let plans = claims
        .iter()
        .map(|claim| request::Plan::of(claim, inputs.classes))
        .collect::<Result<Vec<_>, _>>()
        .map_err(Refusal::Claim)?;
    let picks = search::Search::new(&visible, &plans, selectors).run()?;
    Ok(plans.iter().zip(&picks).map(|(plan, picks)| result::allocation(plan, picks, &visible, node)).collect())
}

fn full_name(claim: &ResourceClaim) -> String {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    match claim.metadata.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}
