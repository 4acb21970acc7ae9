//! Events about pods, counted up instead of repeated.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference, Pod},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tracing::debug;

/// Events that are remembered for counting.
const MAX_REMEMBERED: usize = 4096;
/// The API's limit for an event's message.
const MAX_MESSAGE: usize = 1024;

/// Writes events about pods.
pub struct Events {
    client: Client,
    node: String,
    remembered: Mutex<BTreeMap<Key, (String, i32)>>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    pod_uid: String,
    reason: String,
    message: String,
}

/// How serious an event is.
#[derive(Clone, Copy)]
pub enum Severity {
    /// Told for information.
    Normal,
    /// Somebody should look.
    Warning,
}

impl Events {
    /// Events of this node's kubelet.
    pub fn new(client: Client, node: String) -> Self {
        Self { client, node, remembered: Mutex::default() }
    }

    /// Writes an event, or counts it up. A failure to write is logged and forgotten, as events are.
    pub async fn tell(&self, pod: &Pod, severity: Severity, reason: &str, message: &str) {
        let key = Key {
            pod_uid: pod.metadata.uid.clone().unwrap_or_default(),
            reason: reason.to_owned(),
            message: message.chars().take(MAX_MESSAGE).collect(),
        };
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let now = Time(Timestamp::now());
        let (name, count) = self.count(&key, pod);
        let result = if count > 1 {
            let patch = json!({"count": count, "lastTimestamp": now});
            events.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
        } else {
            let event = self.event(&name, key, pod, severity, now);
            events.create(&PostParams::default(), &event).await.map(drop)
        };
        if let Err(err) = result {
            debug!(node = self.node, reason, %err, "could not write an event");
        }
    }

    /// The event's name and how often it has happened, this time included.
    fn count(&self, key: &Key, pod: &Pod) -> (String, i32) {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MAX_REMEMBERED && !remembered.contains_key(key) {
            remembered.clear();
        }
        let pod = pod.metadata.name.as_deref().unwrap_or("pod");
        let (name, count) =
            remembered.entry(key.clone()).or_insert_with(|| (format!("{pod}.{:016x}", fastrand::u64(..)), 0));
        *count += 1;
        (name.clone(), *count)
    }

    fn event(&self, name: &str, key: Key, pod: &Pod, severity: Severity, now: Time) -> Event {
        let metadata = &pod.metadata;
        Event {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: metadata.namespace.clone(),
                ..Default::default()
            },
            involved_object: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                name: metadata.name.clone(),
                namespace: metadata.namespace.clone(),
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
                ..Default::default()
            },
            reason: Some(key.reason),
            message: Some(key.message),
            type_: Some(match severity {
                Severity::Normal => "Normal".into(),
                Severity::Warning => "Warning".into(),
            }),
            source: Some(EventSource { component: Some("kubelet".into()), host: Some(self.node.clone()) }),
            reporting_component: Some("kubelet".into()),
            reporting_instance: Some(self.node.clone()),
            first_timestamp: Some(now.clone()),
            last_timestamp: Some(now),
            count: Some(1),
            ..Default::default()
        }
    }
}
