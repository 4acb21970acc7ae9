use std::cell::RefCell;
use std::rc::Rc;

use futures::StreamExt;
use heddle_core::fault::Fault;
use heddle_core::schema;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};

use super::domain_controller::Message;
use super::metrics::ControllerMetrics;
use super::watches::Shared;
use crate::cause;
use crate::crds::misfit;
use crate::runtime::{Addr, progress};

/// Why a CRD does not fit; none if it does. Nothing at all before somebody has looked.
type Looked = Rc<RefCell<Option<Option<Fault>>>>;

/// Compares what the API serves of one of our CRDs with what this release needs, for ever.
pub(super) async fn follow(
    client: Client,
    ours: CustomResourceDefinition,
    view: Shared,
    metrics: ControllerMetrics,
    address: Addr<Message>,
) -> Result<(), Fault> {
    let name = ours.name_any();
    let looked = Looked::default();
    let tell = |misfit: Option<Fault>| {
        let before = looked.replace(Some(misfit.clone()));
        if before.as_ref() == Some(&misfit) {
            return;
        }
        match &misfit {
            Some(fault) => tracing::warn!(reason = fault.reason, "{fault}"),
            None => tracing::info!("the CustomResourceDefinition {name} fits"),
        }
        metrics.crd(&name, misfit.is_none());
        view.borrow_mut().put_crd(&name, misfit);
        address.tell(Message::Looked { crd: name.clone(), anew: before.is_some() });
    };
    let judge = |served: &CustomResourceDefinition| misfit(&ours, served);
    let gone = || Some(schema::outdated(&name, &["it does not exist".into()], &[]));
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let changes = watcher(Api::<CustomResourceDefinition>::all(client), config).default_backoff();
    let mut changes = std::pin::pin!(changes);
    let mut listed = None;
    while let Some(change) = changes.next().await {
        progress();
        match change {
            Ok(watcher::Event::Init) => listed = None,
            Ok(watcher::Event::InitApply(served)) => listed = Some(judge(&served)),
            Ok(watcher::Event::InitDone) => tell(listed.take().unwrap_or_else(gone)),
            Ok(watcher::Event::Apply(served)) => tell(judge(&served)),
            Ok(watcher::Event::Delete(_)) => tell(gone()),
            Err(error) => {
                let why = cause::told(&error);
                tracing::warn!(crd = name, "watching is interrupted and tried again: {why}");
                // What is served already must not wait for it, and what is new must.
                if looked.borrow().is_none() {
                    tell(Some(schema::unread(&name, &why)));
                }
            }
        }
    }
    Ok(())
}
