use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use heddle_core::controller::{Cd, Note};
use heddle_core::fault::Fault;
use heddle_core::names;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};

use super::Effects;
use crate::events::Recorder;
use crate::reference;

/// Before each Event a recorder looks through all that it has written in the last six minutes. ComputeDomains that come and
/// go by the thousand have one of these between them and not all the others.
const RECORDERS: usize = 256;

/// Recorders of Events, each for some of the objects.
#[derive(Clone)]
pub(super) struct Recorders(Rc<[Recorder]>);

impl Recorders {
    pub(super) fn new(client: &Client) -> Self {
        let instance = std::env::var("POD_NAME").ok();
        Self((0..RECORDERS).map(|_| Recorder::new(client.clone(), names::CONTROLLER, instance.clone())).collect())
    }

    /// The one that counts repetitions about this object.
    fn of(&self, object: &ObjectReference) -> &Recorder {
        let mut hasher = DefaultHasher::new();
        (&object.kind, &object.namespace, &object.name).hash(&mut hasher);
        #[allow(clippy::cast_possible_truncation)]
        &self.0[hasher.finish() as usize % self.0.len()]
    }
}

impl Effects {
    /// An Event about a ComputeDomain. Repetitions are counted on the first one.
    pub(super) async fn note(&self, cd: &Cd, note: Note) {
        let reference = ObjectReference {
            api_version: Some(names::COMPUTE_DOMAIN_API_VERSION.into()),
            kind: Some("ComputeDomain".into()),
            namespace: Some(cd.reference.namespace.clone()),
            name: Some(cd.reference.name.clone()),
            uid: Some(cd.reference.uid.clone()),
            ..Default::default()
        };
        self.publish(&reference, note.warning, note.reason, note.message).await;
    }

    /// An Event about a Node that cannot serve its clique.
    pub async fn note_node(&self, node: &str, fault: &Fault) -> Result<(), Fault> {
        self.publish(&reference::node(node), true, fault.reason.into(), fault.message.clone()).await;
        Ok(())
    }

    /// An Event that cannot be written is no reason to do anything again.
    async fn publish(&self, reference: &ObjectReference, warning: bool, reason: String, message: String) {
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason,
            note: Some(message),
            action: "Reconcile".into(),
            secondary: None,
        };
        if let Err(error) = self.recorders.of(reference).publish(&event, reference).await {
            tracing::warn!(object = reference.name, reason = event.reason, "an Event could not be written: {error}");
        }
    }
}
