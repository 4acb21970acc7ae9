//! What a Prepare reads from, and writes to, the API server.

use std::time::Duration;

use heddle_core::api::{ChannelConfig, IMEXNode, IMEXNodeStatus, IsolationMode};
use heddle_core::claim::checkpoint::Checkpoint;
use heddle_core::claim::plan::DomainFacts;
use heddle_core::claim::{ClaimKey, compute_domain, status};
use heddle_core::fault::{Fault, reason};
use heddle_core::names;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};

use crate::cause;

/// A request takes milliseconds. After this long the kubelet is told that the API server does not answer, while there
/// is time left to tell it.
const REQUEST: Duration = Duration::from_secs(10);
/// Pause before what lost claims wait for is asked for again.
const NODE_RETRY: Duration = Duration::from_secs(2);
/// Writes of a claim's status that meet another writer's are tried anew so often; the status is for people.
const STATUS_ATTEMPTS: u32 = 4;

/// The claim as it is now.
pub(crate) async fn claim(client: &Client, key: &ClaimKey) -> Result<ResourceClaim, Fault> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &key.namespace);
    let found = within(api.get_opt(&key.name)).await.map_err(|why| unavailable("ResourceClaim", key, &why))?;
    found.ok_or_else(|| Fault::permanent(reason::CLAIM_MISMATCH, format!("ResourceClaim {key} does not exist")))
}

/// The ComputeDomain that `config` names, in the claim's namespace and nowhere else. `asked` is the isolation that the claim
/// was made for.
pub(crate) async fn compute_domain(
    client: &Client,
    namespace: &str,
    config: &ChannelConfig,
    asked: IsolationMode,
) -> Result<DomainFacts, Fault> {
    let (group, version) = names::COMPUTE_DOMAIN_API_VERSION.split_once('/').unwrap_or_default();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, "ComputeDomain"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let shown = format!("of UID {} in namespace {namespace}", config.domain_id);
    let found = match &config.compute_domain {
        Some(name) if names::is_object_name(name) => within(api.get_opt(name)).await,
        Some(_) => Ok(None),
        // A template of the existing driver has the UID only. A namespace has few ComputeDomains.
        None => within(api.list(&ListParams::default())).await.map(|list| {
            list.items.into_iter().find(|object| object.metadata.uid.as_deref() == Some(config.domain_id.as_str()))
        }),
    };
    let found = found.map_err(|why| unavailable("ComputeDomain", &shown, &why))?;
    let found = found.ok_or_else(|| compute_domain::gone(namespace, config))?;
    compute_domain::facts(&found, namespace, config, asked)
}

/// The status of the node's own object, however long it takes to get it.
pub(crate) async fn node_status(client: &Client, node: &str) -> IMEXNodeStatus {
    let api = Api::<IMEXNode>::all(client.clone());
    let found = persist("IMEXNode", || api.get_opt(node)).await;
    found.and_then(|node| node.status).unwrap_or_default()
}

/// All claims of the cluster, however long it takes to get them: the API server finds none by UID.
pub(crate) async fn all_claims(client: &Client) -> Vec<ResourceClaim> {
    let api = Api::<ResourceClaim>::all(client.clone());
    let parameters = ListParams::default();
    persist("ResourceClaims", || api.list(&parameters)).await.items
}

async fn persist<T, F: Future<Output = kube::Result<T>>>(what: &str, request: impl Fn() -> F) -> T {
    loop {
        match within(request()).await {
            Ok(found) => return found,
            Err(why) => {
                tracing::warn!("the claims of lost checkpoints wait for the {what}: {}", why.text);
                tokio::time::sleep(NODE_RETRY).await;
            }
        }
    }
}

/// Shows in the claim's status what it was given. Best effort: nothing depends on it.
///
/// # Errors
/// That this agent may not, in words with the rule that is missing. Any other failure is in the log.
pub(crate) async fn show_prepared(
    client: &Client,
    mut claim: ResourceClaim,
    checkpoint: &Checkpoint,
) -> Result<(), String> {
    let key = &checkpoint.claim;
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &key.namespace);
    let parameters = PatchParams { field_manager: Some(names::AGENT.into()), ..PatchParams::default() };
    for _ in 0..STATUS_ATTEMPTS {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let Some(patch) = status::patch(&claim, checkpoint, &now) else { return Ok(()) };
        let written = within(api.patch_status(&key.name, &parameters, &Patch::Merge(&patch))).await;
        let Err(why) = written else { return Ok(()) };
        if let Some(rule) = why.status.as_deref().and_then(|answer| status::denied(answer, &checkpoint.driver)) {
            return Err(rule);
        }
        if !why.conflict() {
            tracing::info!(claim = %key, "the claim's status could not be written: {}", why.text);
            return Ok(());
        }
        match within(api.get_opt(&key.name)).await {
            Ok(Some(newer)) if newer.metadata.uid.as_deref() == Some(key.uid.as_str()) => claim = newer,
            _ => break,
        }
    }
    Ok(())
}

/// Why a request came to nothing.
pub(super) struct Why {
    text: String,
    /// The API server's answer, if it gave one.
    status: Option<Box<kube::core::Status>>,
}

impl Why {
    fn conflict(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.code == 409)
    }
}

pub(super) async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Why> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => {
            let text = cause::told(&error);
            let status = match error {
                kube::Error::Api(status) => Some(status),
                _ => None,
            };
            Err(Why { text, status })
        }
        Err(_) => Err(Why { text: format!("no answer for {} s", REQUEST.as_secs()), status: None }),
    }
}

pub(super) fn unavailable(kind: &str, name: &dyn std::fmt::Display, why: &Why) -> Fault {
    let text: String = why.text.chars().take(300).collect();
    Fault::retryable(reason::API_UNAVAILABLE, format!("the API server could not be asked for {kind} {name}: {text}"))
}
