use std::sync::Arc;
use std::time::Duration;

use heddle_core::api::{AllocationMode, ChannelConfig, ComputeDomainRef, IMEXDomain, IMEXDomainStatus};
use heddle_core::fault::{Fault, reason};
use heddle_core::names;
use kube::api::PostParams;
use kube::{Api, Client, Error, ResourceExt};

use super::Allocated;
use crate::dra::lookup;

/// A write takes milliseconds. After this long it is decided anew.
const LIMIT: Duration = Duration::from_secs(10);

/// The random wait before an allocation. About one of `members` is through within two milliseconds, the time in which
/// the others hear of it.
pub(super) fn pause(members: usize) -> Duration {
    let window = 2 * u64::try_from(members).unwrap_or(u64::MAX).clamp(1, 32);
    Duration::from_micros(fastrand::u64(0..window * 1000))
}

/// Whether the ComputeDomain still lives: a claim may have waited for long, and one that is going away would have its
/// channel drained again and again.
pub(super) async fn alive(client: Client, cd: ComputeDomainRef) -> Result<(), Fault> {
    let config = ChannelConfig::new(&cd.uid, &cd.name, AllocationMode::default());
    lookup::compute_domain(&client, &cd.namespace, &config).await.map(|_| ())
}

/// Writes the domain's channel map, guarded by the resourceVersion of the copy that it was decided on.
pub(super) async fn write(
    client: Client,
    domain: Arc<IMEXDomain>,
    status: IMEXDomainStatus,
) -> Result<Allocated, Fault> {
    let api = Api::<IMEXDomain>::all(client);
    let name = domain.name_any();
    let next = IMEXDomain { status: Some(status), ..(*domain).clone() };
    let params = PostParams { field_manager: Some(names::AGENT.into()), dry_run: false };
    let unavailable = |error: &dyn std::fmt::Display| {
        let text = format!("the channel map of IMEXDomain {name} could not be written: {error}");
        Fault::retryable(reason::API_UNAVAILABLE, text)
    };
    let write = async {
        match api.replace_status(&name, &params, &next).await {
            Ok(domain) => Ok(Allocated::Done(Arc::new(domain))),
            Err(Error::Api(status)) if status.is_conflict() => {
                api.get(&name).await.map(|domain| Allocated::Conflict(Arc::new(domain)))
            }
            Err(error) => Err(error),
        }
    };
    match tokio::time::timeout(LIMIT, write).await {
        Ok(written) => written.map_err(|error| unavailable(&error)),
        Err(late) => Err(unavailable(&late)),
    }
}
