//! The writes of the controller, each guarded by the copies that it was decided on.

mod compute_domain;
mod domain;
mod events;
mod node;
mod template;

use std::time::Duration;

use heddle_core::api::{IMEXDomain, IMEXNode};
use heddle_core::controller::Write;
use heddle_core::names;
use kube::api::{Api, DynamicObject, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};

use self::events::Recorders;
use super::metrics::{ControllerMetrics, Outcome};
use super::watches::{Shared, Watched, compute_domain_resource};
use crate::lease::NotLeading;
use crate::runtime::progress;

/// One write with its reads. Without it a lost connection would hold up every later pass.
const LIMIT: Duration = Duration::from_secs(15);

/// Makes writes and puts what the API answers into the view, so that the next decision is not made on an old copy.
#[derive(Clone)]
pub struct Effects {
    client: Client,
    view: Shared,
    recorders: Recorders,
    metrics: ControllerMetrics,
}

type Done = Result<(), kube::Error>;

/// The API has accepted a write and kept nothing of it.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error(
    "the API kept nothing of it: the CustomResourceDefinition is not this release's (run `heddle crds apply`), or an admission \
     webhook takes it back"
)]
struct Dropped;

impl Effects {
    /// Effects of one incarnation.
    pub fn new(client: Client, view: Shared, metrics: ControllerMetrics) -> Self {
        let recorders = Recorders::new(&client);
        Self { client, view, recorders, metrics }
    }

    /// Makes one write. After a conflict the object that was changed under it is in the view and asks for the decision itself,
    /// if it has changed.
    pub async fn run(&self, write: Write) -> Outcome {
        let name = label(&write);
        let result = tokio::time::timeout(LIMIT, self.write(write)).await;
        progress();
        let outcome = match &result {
            Ok(Ok(())) => Outcome::Done,
            Ok(Err(kube::Error::Api(status))) if status.code == 409 || status.code == 404 => {
                tracing::debug!(write = name, "{}", status.message);
                Outcome::Conflict
            }
            Ok(Err(kube::Error::Service(why))) if why.is::<NotLeading>() || why.is::<Dropped>() => {
                tracing::debug!(write = name, "{why}");
                Outcome::Failed
            }
            Ok(Err(error)) => {
                tracing::warn!(write = name, "a write failed and is tried again: {error}");
                Outcome::Failed
            }
            Err(_) => {
                tracing::warn!(write = name, "a write has had no answer for {LIMIT:?} and is tried again");
                Outcome::Failed
            }
        };
        self.metrics.wrote(name, outcome);
        outcome
    }

    async fn write(&self, write: Write) -> Done {
        match write {
            Write::Mark(cd) => self.mark(&cd).await,
            Write::Guard(cd) => self.guard(&cd).await,
            Write::Unguard { cd, template, notes } => self.unguard(&cd, template, notes).await,
            Write::CreateTemplate { cd, template } => self.create_template(&cd, &template).await,
            Write::MendTemplate(template) => self.mend_template(&template).await,
            Write::ReleaseTemplate { template, unless_alive } => {
                self.release_template(&template, unless_alive.as_deref()).await
            }
            Write::RecheckTemplate(_) => Ok(()),
            Write::Status { cd, status, notes } => self.write_status(&cd, &status, notes).await,
            Write::CreateDomain(domain) => self.create_domain(&domain).await,
            Write::DeleteDomain { domain, nodes } => self.delete_domain(&domain, &nodes).await,
            Write::Domain(write) => self.write_domain(*write).await,
            Write::Announce { node, next } => self.announce(&node, next).await,
            Write::Move { node, target } => self.move_node(&node, &target).await,
            Write::Fence { node, mark } => self.fence(&node, mark).await,
            Write::Refuse { node, refused } => self.refuse(&node, refused).await,
            Write::Prune(node) => self.prune(&node).await,
            Write::Examine { domain, nodes } => self.examine(&domain, nodes).await,
        }
    }

    fn compute_domains(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &compute_domain_resource())
    }

    fn domains(&self) -> Api<IMEXDomain> {
        Api::all(self.client.clone())
    }

    fn imex_nodes(&self) -> Api<IMEXNode> {
        Api::all(self.client.clone())
    }

    /// [`Self::settle`] for a change of the object whose version was `before`. A change that changes nothing was dropped by
    /// the schema: to decide the same anew at once would go on for ever.
    async fn settle_change<K: Watched>(
        &self,
        api: &Api<K>,
        name: &str,
        key: &str,
        before: Option<&str>,
        answer: kube::Result<K>,
    ) -> Done {
        if let Ok(object) = &answer
            && object.meta().resource_version.as_deref() == before
        {
            return Err(kube::Error::Service(Box::new(Dropped)));
        }
        self.settle(api, name, Some(key.into()), answer).await
    }

    /// Puts what a write was answered with into the view; when it was refused because the object has changed, reads
    /// the object first.
    async fn settle<K: Watched>(&self, api: &Api<K>, name: &str, key: Option<String>, answer: kube::Result<K>) -> Done {
        match answer {
            Ok(object) => {
                self.put(object);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                match api.get_opt(name).await? {
                    Some(object) => self.put(object),
                    None => {
                        if let Some(key) = key {
                            self.view.borrow_mut().drop(K::KIND, &key);
                        }
                    }
                }
                Err(kube::Error::Api(status))
            }
            Err(error) => Err(error),
        }
    }

    /// As a watch would bring it.
    fn put<K: Watched>(&self, mut object: K) {
        object.managed_fields_mut().clear();
        object.put(&mut self.view.borrow_mut());
    }
}

/// Writes are told apart in metrics by what they do for people.
fn label(write: &Write) -> &'static str {
    match write {
        Write::Mark(_) => "mark",
        Write::Guard(_) => "add-finalizer",
        Write::Unguard { .. } => "remove-finalizer",
        Write::CreateTemplate { .. } => "create-template",
        Write::MendTemplate(_) => "mend-template",
        Write::ReleaseTemplate { .. } => "release-template",
        Write::RecheckTemplate(_) => "recheck-template",
        Write::Status { .. } => "status",
        Write::CreateDomain(_) => "create-domain",
        Write::DeleteDomain { .. } => "delete-domain",
        Write::Domain(write) if write.free => "free",
        Write::Domain(write) if !write.revive.is_empty() => "revive",
        Write::Domain(write) if write.changes_channels() => "drain",
        Write::Domain(write) if write.members.is_some() => "members",
        Write::Domain(_) => "health",
        Write::Announce { .. } => "announce",
        Write::Move { .. } => "move",
        Write::Fence { .. } => "fence",
        Write::Refuse { .. } => "refuse",
        Write::Prune(_) => "prune",
        Write::Examine { .. } => "examine",
    }
}

fn post() -> PostParams {
    PostParams { field_manager: Some(names::CONTROLLER.into()), ..Default::default() }
}

fn patch() -> PatchParams {
    PatchParams { field_manager: Some(names::CONTROLLER.into()), ..Default::default() }
}

fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}
