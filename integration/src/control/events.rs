//! Events that a person reads in `kubectl describe`.

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{Api, PostParams};
use kube::{Client, Resource};

/// Longest message that the API accepts.
const MAX_MESSAGE: usize = 1024;

/// Records Events in the name of one component.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    component: &'static str,
}

/// Tells two Events of one nanosecond apart.
static COUNT: AtomicU64 = AtomicU64::new(0);

impl Recorder {
    /// Events will say that `component` reports them.
    pub fn new(client: Client, component: &'static str) -> Self {
        Self { client, component }
    }

    /// All is well.
    pub async fn normal<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: String) {
        self.record(about.object_ref(&()), "Normal", reason, message).await;
    }

    /// Something a person may have to act on.
    pub async fn warning<K: Resource<DynamicType = ()>>(&self, about: &K, reason: &str, message: String) {
        self.record(about.object_ref(&()), "Warning", reason, message).await;
    }

    /// The same, about an object of which only a reference is at hand.
    pub async fn warning_to(&self, about: &OwnerReference, namespace: Option<String>, reason: &str, message: String) {
        let regarding = ObjectReference {
            api_version: Some(about.api_version.clone()),
            kind: Some(about.kind.clone()),
            name: Some(about.name.clone()),
            uid: Some(about.uid.clone()),
            namespace,
            ..Default::default()
        };
        self.record(regarding, "Warning", reason, message).await;
    }

    async fn record(&self, regarding: ObjectReference, kind: &str, reason: &str, mut message: String) {
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let name = regarding.name.clone().unwrap_or_default();
        let now = Timestamp::now();
        let suffix = now.as_nanosecond().unsigned_abs() + u128::from(COUNT.fetch_add(1, Ordering::Relaxed));
        if message.len() > MAX_MESSAGE {
            let end = (0..=MAX_MESSAGE - 3).rev().find(|&i| message.is_char_boundary(i)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
        }
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{suffix:x}")),
                namespace: Some(namespace.clone()),
                ..Default::default()
            },
            involved_object: regarding,
            type_: Some(kind.into()),
            reason: Some(reason.into()),
            message: Some(message),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: Some(self.component.into()), ..Default::default() }),
            reporting_component: Some(self.component.into()),
            ..Default::default()
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = events.create(&PostParams::default(), &event).await {
            tracing::debug!(%error, object = %name, reason, "an Event was not recorded");
        }
    }
}
