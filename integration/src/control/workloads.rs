//! Deployments, ReplicaSets and Jobs: the pods they ask for, made, replaced and taken away.

mod deployment;
mod job;
mod pod_template;
mod replica_set;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use super::component::{Component, unless_moot};
use super::events::Recorder;
use super::watched::Watched;

/// Pods created or deleted for one owner in one pass.
const MAX_BURST: usize = 500;

/// What is to be done for a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Create a pod.
    CreatePod(Box<Pod>),
    /// Delete a pod.
    DeletePod(Arc<Pod>),
    /// Create a Deployment's ReplicaSet.
    CreateReplicaSet(Box<ReplicaSet>),
    /// Set how many pods a ReplicaSet keeps.
    Scale { replica_set: Arc<ReplicaSet>, replicas: i32 },
    /// Delete a ReplicaSet that is history.
    DeleteReplicaSet(Arc<ReplicaSet>),
    /// Write a Deployment's status.
    DeploymentStatus(Box<Deployment>),
    /// Write a ReplicaSet's status.
    ReplicaSetStatus(Box<ReplicaSet>),
    /// Write a Job's status.
    JobStatus(Box<Job>),
}

/// The kinds that the controllers watch.
#[derive(Clone)]
pub struct Views {
    pub pods: Watched<Pod>,
    pub deployments: Watched<Deployment>,
    pub replica_sets: Watched<ReplicaSet>,
    pub jobs: Watched<Job>,
}

/// See the module.
pub struct Workloads {
    client: Client,
    views: Views,
    recorder: Recorder,
    /// What owners of pods that were refused were told in an Event: UID → message.
    complaints: BTreeMap<String, String>,
}

/// Is `object` controlled by the owner of that UID?
fn owned_by(object: &impl Resource, uid: Option<&String>) -> bool {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    uid.is_some() && owners.iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == uid)
}

fn owned<K: Resource>(objects: &[Arc<K>], uid: Option<&String>) -> Vec<Arc<K>> {
    objects.iter().filter(|object| owned_by(object.as_ref(), uid)).cloned().collect()
}

impl Workloads {
    /// Controllers that have seen nothing yet.
    pub fn new(client: Client, views: Views) -> Self {
        let recorder = Recorder::new(client.clone(), "workload-controller");
        Self { client, views, recorder, complaints: BTreeMap::new() }
    }

    fn api<K>(&self, object: &K) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), object.meta().namespace.as_deref().unwrap_or("default"))
    }

    fn plan(&self, now: Timestamp) -> Vec<Effect> {
        let (pods, replica_sets) = (self.views.pods.list(), self.views.replica_sets.list());
        let mut effects = Vec::new();
        for deployment in self.views.deployments.list() {
            let replica_sets = owned(&replica_sets, deployment.metadata.uid.as_ref());
            effects.extend(deployment::plan(&deployment, &replica_sets, &pods, now));
        }
        for replica_set in &replica_sets {
            effects.extend(replica_set::plan(replica_set, &owned(&pods, replica_set.metadata.uid.as_ref())));
        }
        for job in self.views.jobs.list() {
            effects.extend(job::plan(&job, &owned(&pods, job.metadata.uid.as_ref()), now));
        }
        effects
    }

    async fn run(&mut self, effect: Effect) -> Result<(), kube::Error> {
        let post = PostParams::default();
        match effect {
            Effect::CreatePod(pod) => {
                if let Some(written) = self.create_pod(&pod).await? {
                    self.views.pods.wrote(&written);
                }
            }
            Effect::DeletePod(pod) => {
                if let Some(written) = self.delete(pod.as_ref()).await? {
                    self.views.pods.wrote(&written);
                }
            }
            Effect::CreateReplicaSet(replica_set) => {
                let created = self.api(replica_set.as_ref()).create(&post, &replica_set).await?;
                self.views.replica_sets.wrote(&created);
            }
            Effect::Scale { replica_set, replicas } => {
                let patch = json!({
                    "metadata": {"resourceVersion": replica_set.metadata.resource_version},
                    "spec": {"replicas": replicas},
                });
                let api = self.api(replica_set.as_ref());
                let name = replica_set.name_any();
                let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
                if let Some(written) = unless_moot(patched)? {
                    self.views.replica_sets.wrote(&written);
                }
            }
            Effect::DeleteReplicaSet(replica_set) => {
                if let Some(written) = self.delete(replica_set.as_ref()).await? {
                    self.views.replica_sets.wrote(&written);
                }
            }
            Effect::DeploymentStatus(object) => {
                let written = self.api(object.as_ref()).replace_status(&object.name_any(), &post, &object).await;
                if let Some(written) = unless_moot(written)? {
                    self.views.deployments.wrote(&written);
                }
            }
            Effect::ReplicaSetStatus(object) => {
                let written = self.api(object.as_ref()).replace_status(&object.name_any(), &post, &object).await;
                if let Some(written) = unless_moot(written)? {
                    self.views.replica_sets.wrote(&written);
                }
            }
            Effect::JobStatus(object) => {
                let written = self.api(object.as_ref()).replace_status(&object.name_any(), &post, &object).await;
                if let Some(written) = unless_moot(written)? {
                    self.views.jobs.wrote(&written);
                }
            }
        }
        Ok(())
    }

    /// A pod that the API refuses is said in an Event of its owner: nothing else would show why there is none.
    async fn create_pod(&mut self, pod: &Pod) -> Result<Option<Pod>, kube::Error> {
        let result = unless_moot(self.api(pod).create(&PostParams::default(), pod).await);
        if let Err(kube::Error::Api(status)) = &result {
            let message = format!("Error creating: {}", status.message);
            let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
            if let Some(owner) = owner
                && self.complaints.insert(owner.uid.clone(), message.clone()).as_ref() != Some(&message)
            {
                let namespace = pod.metadata.namespace.clone();
                self.recorder.warning_to(owner, namespace, "FailedCreate", message).await;
            }
        }
        result
    }

    async fn delete<K>(&self, object: &K) -> Result<Option<K>, kube::Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
            ..Default::default()
        };
        let deleted = self.api(object).delete(&object.name_any(), &params).await;
        Ok(unless_moot(deleted)?.and_then(|deleted| deleted.left()))
    }
}

impl Component for Workloads {
    const NAME: &'static str = "workloads";

    fn caught_up(&self) -> bool {
        let views = &self.views;
        views.pods.caught_up()
            && views.deployments.caught_up()
            && views.replica_sets.caught_up()
            && views.jobs.caught_up()
    }

    async fn pass(&mut self) -> Result<(), kube::Error> {
        let (replica_sets, jobs) = (self.views.replica_sets.list(), self.views.jobs.list());
        self.complaints.retain(|uid, _| {
            let is = |known: Option<&String>| known == Some(uid);
            replica_sets.iter().any(|rs| is(rs.metadata.uid.as_ref()))
                || jobs.iter().any(|j| is(j.metadata.uid.as_ref()))
        });
        let mut failed = None;
        for effect in self.plan(Timestamp::now()) {
            // One workload that cannot be served must not hold up the others.
            if let Err(error) = self.run(effect).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
