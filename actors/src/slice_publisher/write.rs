//! The publisher's effects: one round of writes, and the watch.

use std::time::Duration;

use futures::StreamExt;
use heddle_core::fault::Fault;
use heddle_core::names;
use heddle_core::slices::{Change, owner_reference};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use super::Message;
use crate::runtime::{Addr, SendError};

/// A request that takes longer has failed.
const REQUEST: Duration = Duration::from_secs(10);

/// What a round of writes has come to. It ends with the first failure.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The devices as we sent them, and the slice as the server stored it.
    pub(super) stored: Vec<(Vec<Device>, ResourceSlice)>,
    /// Names of removed slices.
    pub(super) removed: Vec<String>,
    /// Whether the server keeps taints, if it was asked. If it does not, nothing that has some was written.
    pub(super) keeps_taints: Option<bool>,
    pub(super) failed: Option<Failure>,
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// Somebody else has written since we looked.
    #[error("they have been changed by somebody else")]
    Conflict,
    #[error("{0}")]
    Other(String),
}

/// Writes the changes. With `ask`, a first one with taints is tried without effect: a server that drops them would offer
/// what must not be given to anybody.
pub(super) async fn run(client: Client, node: String, changes: Vec<Change>, ask: bool) -> Outcome {
    let mut outcome = Outcome::default();
    for change in changes {
        if ask && outcome.keeps_taints.is_none() && has_taints(&change) {
            match keeps_taints(&client, &change).await {
                Ok(kept) => outcome.keeps_taints = Some(kept),
                Err(failure) => outcome.failed = Some(failure),
            }
            if outcome.keeps_taints != Some(true) {
                break;
            }
        }
        if let Err(failure) = apply(&client, &node, change, &mut outcome).await {
            outcome.failed = Some(failure);
            break;
        }
    }
    outcome
}

fn has_taints(change: &Change) -> bool {
    match change {
        Change::Create(slice) | Change::Update(slice) => tainted(slice),
        Change::Delete { .. } => false,
    }
}

fn tainted(slice: &ResourceSlice) -> bool {
    slice.spec.devices.iter().flatten().any(|device| device.taints.is_some())
}

async fn keeps_taints(client: &Client, change: &Change) -> Result<bool, Failure> {
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let parameters = PostParams { dry_run: true, field_manager: Some(names::AGENT.into()) };
    let stored = match change {
        Change::Create(slice) => within(api.create(&parameters, slice)).await?,
        Change::Update(slice) => {
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            within(api.replace(name, &parameters, slice)).await?
        }
        Change::Delete { .. } => return Ok(true),
    };
    Ok(tainted(&stored))
}

async fn apply(client: &Client, node: &str, change: Change, outcome: &mut Outcome) -> Result<(), Failure> {
    let api: Api<ResourceSlice> = Api::all(client.clone());
    let parameters = PostParams { field_manager: Some(names::AGENT.into()), ..PostParams::default() };
    match change {
        Change::Create(mut slice) => {
            // Asked each time: with the UID of a Node that was made anew since, the slice would be collected at once.
            let owner = within(Api::<Node>::all(client.clone()).get(node)).await?;
            let uid = owner.metadata.uid.unwrap_or_default();
            slice.metadata.owner_references = Some(vec![owner_reference(node, &uid)]);
            let devices = slice.spec.devices.clone().unwrap_or_default();
            let stored = within(api.create(&parameters, &slice)).await?;
            tracing::info!(slice = stored.metadata.name, devices = devices.len(), "published a ResourceSlice");
            outcome.stored.push((devices, stored));
        }
        Change::Update(slice) => {
            let devices = slice.spec.devices.clone().unwrap_or_default();
            let name = slice.metadata.name.clone().unwrap_or_default();
            let stored = within(api.replace(&name, &parameters, &slice)).await?;
            tracing::info!(slice = name, devices = devices.len(), "updated a ResourceSlice");
            outcome.stored.push((devices, stored));
        }
        Change::Delete { name, uid, resource_version } => {
            let guard = Preconditions { uid: Some(uid), resource_version: Some(resource_version) };
            let parameters = DeleteParams { preconditions: Some(guard), ..DeleteParams::default() };
            match api.delete(&name, &parameters).await {
                Ok(_) => tracing::info!(slice = name, "withdrew a ResourceSlice"),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(failure(&error)),
            }
            outcome.removed.push(name);
        }
    }
    Ok(())
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(|error| failure(&error)),
        Err(_) => Err(Failure::Other(format!("the API server has not answered for {} s", REQUEST.as_secs()))),
    }
}

fn failure(error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 409 => Failure::Conflict,
        other => Failure::Other(other.to_string()),
    }
}

/// Tells the publisher of every slice of this node, for ever.
pub(super) async fn watch(client: Client, node: String, publisher: Addr<Message>) -> Result<(), Fault> {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = watcher(Api::<ResourceSlice>::all(client), config).default_backoff().boxed_local();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => deliver(&publisher, Message::Event(Box::new(event))).await,
            Err(error) => tracing::debug!("the watch of ResourceSlices begins anew: {error}"),
        }
    }
    Ok(())
}

/// No event may be lost, so a full mailbox is waited for: the watch waits with it.
async fn deliver(publisher: &Addr<Message>, mut message: Message) {
    while let Err(SendError::Full(refused)) = publisher.send(message) {
        message = refused;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
