//! The claim controller: makes claims from templates for the pods that name them, and takes devices back when the
//! last pod that used them has ended.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::json;

pub use plan::{Effect, View, plan};

use super::component::{Component, unless_moot};
use super::events::Recorder;
use super::scheduler::DELETE_PROTECTION;
use super::watched::Watched;

/// On a generated claim: the entry of `pod.spec.resourceClaims` that it was made for.
pub const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// See the module.
pub struct Claims {
    client: Client,
    pods: Watched<Pod>,
    claims: Watched<ResourceClaim>,
    templates: Watched<ResourceClaimTemplate>,
    recorder: Recorder,
    /// Pods of which the API said that they are gone, by UID. A pod that is merely not in view may be new.
    gone: BTreeSet<String>,
    /// What pods were told in an Event: UID → message.
    complaints: BTreeMap<String, String>,
}

impl Claims {
    /// A controller that has seen nothing yet.
    pub fn new(
        client: Client,
        pods: Watched<Pod>,
        claims: Watched<ResourceClaim>,
        templates: Watched<ResourceClaimTemplate>,
    ) -> Self {
        let recorder = Recorder::new(client.clone(), "resource_claim");
        Self { client, pods, claims, templates, recorder, gone: BTreeSet::new(), complaints: BTreeMap::new() }
    }

    async fn run(&mut self, effect: Effect) -> Result<(), kube::Error> {
        let post = PostParams::default();
        match effect {
            Effect::Create { pod, claim } => match unless_moot(self.api(&claim).create(&post, &claim).await) {
                Ok(Some(written)) => self.claims.wrote(&written),
                Ok(None) => {}
                Err(kube::Error::Api(status)) => {
                    self.complain(&pod, format!("PodResourceClaim: {}", status.message)).await;
                    return Err(kube::Error::Api(status));
                }
                Err(error) => return Err(error),
            },
            Effect::Record { pod, statuses } => {
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
                let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"resourceClaimStatuses": statuses}});
                let patched = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await;
                if let Some(written) = unless_moot(patched)? {
                    self.pods.wrote(&written);
                }
            }
            Effect::Status(claim) => {
                let written = self.api(&claim).replace_status(&claim.name_any(), &post, &claim).await;
                let Some(mut written) = unless_moot(written)? else { return Ok(()) };
                self.claims.wrote(&written);
                let holds = written.status.as_ref().is_some_and(|status| status.allocation.is_some());
                if !holds && plan::protected(&written) {
                    written.finalizers_mut().retain(|finalizer| finalizer != DELETE_PROTECTION);
                    self.unprotect(&written).await?;
                }
            }
            Effect::Unprotect(claim) => self.unprotect(&claim).await?,
            Effect::Delete(claim) => {
                let only = Preconditions { uid: claim.uid(), resource_version: None };
                let params = DeleteParams { preconditions: Some(only), ..Default::default() };
                let deleted = self.api(&claim).delete(&claim.name_any(), &params).await;
                if let Some(written) = unless_moot(deleted)?.and_then(|deleted| deleted.left()) {
                    self.claims.wrote(&written);
                }
            }
            Effect::LookFor { namespace, name, uid } => {
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
                if pods.get_opt(&name).await?.is_none_or(|pod| pod.uid().as_ref() != Some(&uid)) {
                    self.gone.insert(uid);
                }
            }
            Effect::Complain { pod, message } => self.complain(&pod, message).await,
        }
        Ok(())
    }

    async fn complain(&mut self, pod: &Pod, message: String) {
        let uid = pod.uid().unwrap_or_default();
        if self.complaints.insert(uid, message.clone()).as_ref() != Some(&message) {
            self.recorder.warning(pod, "FailedResourceClaimCreation", message).await;
        }
    }

    async fn unprotect(&mut self, claim: &ResourceClaim) -> Result<(), kube::Error> {
        let written = self.api(claim).replace(&claim.name_any(), &PostParams::default(), claim).await;
        if let Some(written) = unless_moot(written)? {
            self.claims.wrote(&written);
        }
        Ok(())
    }

    fn api(&self, claim: &ResourceClaim) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }
}

impl Component for Claims {
    const NAME: &'static str = "resource_claim";

    fn caught_up(&self) -> bool {
        self.pods.caught_up() && self.claims.caught_up() && self.templates.caught_up()
    }

    async fn pass(&mut self) -> Result<(), kube::Error> {
        let (pods, claims, templates) = (self.pods.list(), self.claims.list(), self.templates.list());
        let named: BTreeSet<&String> = claims.iter().flat_map(|claim| plan::consumers(claim)).map(|c| &c.uid).collect();
        self.gone.retain(|uid| named.contains(uid));
        self.complaints.retain(|uid, _| pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid)));
        let view = View { pods: &pods, claims: &claims, templates: &templates, gone: &self.gone };
        let mut failed = None;
        let mut looked = false;
        for effect in plan(view) {
            looked |= matches!(effect, Effect::LookFor { .. });
            // One claim that cannot be written must not hold up the others.
            if let Err(error) = self.run(effect).await {
                failed = Some(error);
            }
        }
        if looked && failed.is_none() {
            let view = View { pods: &pods, claims: &claims, templates: &templates, gone: &self.gone };
            let released = plan(view).into_iter().filter(|effect| matches!(effect, Effect::Status(_)));
            for effect in released {
                if let Err(error) = self.run(effect).await {
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
