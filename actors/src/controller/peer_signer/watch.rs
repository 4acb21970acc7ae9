use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;

use futures::StreamExt;
use heddle_core::fault::Fault;
use heddle_core::identity::SIGNER;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};

use super::Message;
use crate::cause;
use crate::runtime::{Addr, progress};

/// The requests that have no answer yet, by name. They go into it straight from the wire: a list of ten thousand would
/// not fit a mailbox.
pub(super) type Pending = Rc<RefCell<BTreeMap<String, CertificateSigningRequest>>>;

/// Follows the requests of our signer for ever.
pub(super) async fn follow(client: Client, pending: Pending, address: Addr<Message>) -> Result<(), Fault> {
    let config = watcher::Config::default().fields(&format!("spec.signerName={SIGNER}"));
    let changes = watcher(Api::<CertificateSigningRequest>::all(client), config).default_backoff();
    let mut changes = pin!(changes);
    let mut listed = BTreeSet::new();
    while let Some(change) = changes.next().await {
        progress();
        match change {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(request)) => {
                listed.insert(request.name_any());
                put(&pending, request);
            }
            Ok(watcher::Event::InitDone) => {
                pending.borrow_mut().retain(|name, _| listed.contains(name));
                listed.clear();
            }
            Ok(watcher::Event::Apply(request)) => put(&pending, request),
            Ok(watcher::Event::Delete(request)) => drop(pending.borrow_mut().remove(&request.name_any())),
            Err(error) => {
                let why = cause::told(&error);
                tracing::warn!("watching requests for peer certificates is interrupted and tried again: {why}");
                continue;
            }
        }
        address.tell(Message::Changed);
    }
    Ok(())
}

fn put(pending: &Pending, request: CertificateSigningRequest) {
    let mut pending = pending.borrow_mut();
    if is_answered(&request) {
        pending.remove(&request.name_any());
    } else {
        pending.insert(request.name_any(), request);
    }
}

/// One that is approved and not signed is not: a controller that ended in between goes on with it.
fn is_answered(request: &CertificateSigningRequest) -> bool {
    let Some(status) = &request.status else { return false };
    let is_final = |type_: &str| matches!(type_, "Denied" | "Failed");
    status.certificate.is_some() || status.conditions.iter().flatten().any(|condition| is_final(&condition.type_))
}
