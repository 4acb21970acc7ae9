use std::sync::Arc;
use std::time::Duration;

use heddle_core::api::{AllocationMode, ChannelConfig, ComputeDomainRef, IMEXDomain, IMEXDomainStatus, IsolationMode};
use heddle_core::fault::{Class, Fault, reason};
use heddle_core::{names, protocol};
use kube::api::PostParams;
use kube::{Api, Client, Error, ResourceExt};

use super::{Allocated, ChannelAllocator, Message, RETRY};
use crate::dra::lookup;
use crate::node_link;
use crate::runtime::Cx;

/// A write takes milliseconds. After this long it is decided anew.
const LIMIT: Duration = Duration::from_secs(10);

/// The random wait before an allocation. About one of `members` is through within two milliseconds, the time in which
/// the others hear of it.
fn pause(members: usize) -> Duration {
    let window = 2 * u64::try_from(members).unwrap_or(u64::MAX).clamp(1, 32);
    Duration::from_micros(fastrand::u64(0..window * 1000))
}

/// Whether the ComputeDomain still lives: a claim may have waited for long, and one that is going away would have its
/// channel drained again and again.
async fn alive(client: Client, cd: ComputeDomainRef) -> Result<(), Fault> {
    let config = ChannelConfig::new(&cd.uid, &cd.name, AllocationMode::default());
    lookup::compute_domain(&client, &cd.namespace, &config, IsolationMode::default()).await.map(|_| ())
}

/// Writes the domain's channel map, guarded by the resourceVersion of the copy that it was decided on.
async fn write(client: Client, domain: Arc<IMEXDomain>, status: IMEXDomainStatus) -> Result<Allocated, Fault> {
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

impl ChannelAllocator {
    /// All nodes of a fresh ComputeDomain come to this point at once; one allocation is enough. Each waits for a random
    /// while, the longer the more members there are, and looks again.
    pub(super) fn pause_before_allocating(&mut self, cd_uid: &str, cx: &mut Cx<'_, Self>) {
        let Some((cd, _)) = self.wanted(cd_uid) else { return };
        let text = format!("ComputeDomain {}/{} is being given a channel", cd.namespace, cd.name);
        self.note_all(cd_uid, &Fault::retryable(reason::CHANNEL_PENDING, text));
        self.underway.insert(cd_uid.to_owned(), false);
        let members = self.view.as_ref().and_then(|view| view.domain.as_ref()).map_or(1, |d| d.spec.members.len());
        cx.after(pause(members), Message::SecondLook { cd_uid: cd_uid.to_owned() });
    }

    /// The domain, and its channel map with a channel for the ComputeDomain: if somebody still waits for it and it still
    /// has none.
    pub(super) fn next_map(
        &mut self,
        cd_uid: &str,
        cx: &mut Cx<'_, Self>,
    ) -> Option<(Arc<IMEXDomain>, IMEXDomainStatus)> {
        self.underway.remove(cd_uid);
        let (cd, mode) = self.wanted(cd_uid)?;
        let count = self.node_status().map_or(0, |status| status.channel_count);
        let Some(domain) = self.view.as_ref().and_then(|view| view.domain.clone()) else {
            self.advance(cx);
            return None;
        };
        match protocol::allocate(&domain, &cd, mode, count) {
            Ok(protocol::Allocate::Already(_) | protocol::Allocate::Draining) => self.advance(cx),
            Ok(protocol::Allocate::Write { status, .. }) => {
                self.underway.insert(cd_uid.to_owned(), false);
                return Some((domain, status));
            }
            // Tried again with the next change of the domain, which a freed number is.
            Err(fault) => self.note_all(cd_uid, &fault),
        }
        None
    }

    pub(super) fn second_look(&mut self, cd_uid: String, cx: &mut Cx<'_, Self>) {
        let Some((cd, _)) = self.next_map(&cd_uid, cx).and_then(|_| self.wanted(&cd_uid)) else { return };
        let read = alive(self.settings.client.clone(), cd);
        cx.spawn_then("read ComputeDomain", read, move |outcome| Message::Read { cd_uid, outcome });
    }

    /// Others may have been first meanwhile: decided once more on what is known now.
    pub(super) fn allocate(&mut self, cd_uid: String, cx: &mut Cx<'_, Self>) {
        let Some((domain, status)) = self.next_map(&cd_uid, cx) else { return };
        let write = write(self.settings.client.clone(), domain, status);
        cx.spawn_then("allocate", write, move |outcome| Message::Allocated { cd_uid, outcome });
    }

    pub(super) fn cannot_allocate(&mut self, cd_uid: &str, fault: Fault, cx: &mut Cx<'_, Self>) {
        if fault.class == Class::Permanent {
            return self.refuse_all(cd_uid, &fault);
        }
        self.note_all(cd_uid, &fault);
        cx.after(RETRY, Message::Again);
    }

    pub(super) fn allocated(&mut self, cd_uid: &str, outcome: Result<Allocated, Fault>, cx: &mut Cx<'_, Self>) {
        self.underway.remove(cd_uid);
        match outcome {
            Ok(Allocated::Done(domain)) => {
                self.tell_of(domain);
                self.advance(cx);
            }
            Ok(Allocated::Conflict(domain)) => {
                self.tell_of(domain);
                self.pause_before_allocating(cd_uid, cx);
            }
            Err(fault) => self.cannot_allocate(cd_uid, fault, cx),
        }
    }

    /// The node link decides on its own copy of the domain: it must not be older than ours.
    pub(super) fn tell_of(&self, domain: Arc<IMEXDomain>) {
        let name = protocol_name(&domain);
        self.settings.node_link.tell(node_link::Message::DomainSeen { name, domain: Some(domain) });
    }
}

fn protocol_name(domain: &IMEXDomain) -> String {
    domain.metadata.name.clone().unwrap_or_default()
}
