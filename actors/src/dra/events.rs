//! Kubernetes Events on claims that cannot be prepared, and on their pods. Best effort, and never many.

use std::time::Duration;

use heddle_core::claim::ClaimKey;
use heddle_core::fault::{Fault, reason};
use heddle_core::names;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use tokio::time::Instant;

use crate::events::Recorder;
use crate::runtime::{self, Actor, Cx, Overflow};
use crate::said::Said;

/// Pods that are told of one claim. A claim has one, or a few that share it; 256 are possible.
const PODS: usize = 8;
/// An Event that takes longer is given up.
const REQUEST: Duration = Duration::from_secs(5);

/// What [`ClaimEvents`] is told.
#[derive(Debug)]
pub enum Message {
    /// The claim cannot be prepared.
    Refused {
        /// The claim.
        claim: ClaimKey,
        /// The pods that it is reserved for, as far as they are known.
        pods: Vec<ObjectReference>,
        /// Why.
        fault: Fault,
    },
    /// Checkpoints are corrupt; all that is known of their claims is the UIDs.
    Quarantined {
        /// UIDs of the claims.
        claims: Vec<String>,
    },
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "Refused",
            Self::Quarantined { .. } => "Quarantined",
        }
    }

    /// What is refused is said again at the next attempt; what is in quarantine is in the log too.
    fn overflow(&self) -> Overflow {
        Overflow::DropOldest
    }
}

/// Writes Events on claims and their pods, and on the node where the claim is not known.
pub struct ClaimEvents {
    node: String,
    recorder: Recorder,
    /// UIDs of claims, and reasons.
    said: Said<(String, &'static str)>,
    in_flight: Option<runtime::Task>,
}

impl ClaimEvents {
    /// For the agent of `node`.
    pub fn new(client: Client, node: &str) -> Self {
        let recorder = Recorder::new(client, names::AGENT, Some(node.to_owned()));
        Self { node: node.to_owned(), recorder, said: Said::default(), in_flight: None }
    }
}

impl Actor for ClaimEvents {
    const KIND: &'static str = "ClaimEvents";
    type Message = Message;

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let (claim, pods, fault) = match message {
            Message::Refused { claim, pods, fault } => (claim, pods, fault),
            Message::Quarantined { claims } => {
                // Rare, and said by nobody again: it does not wait for others.
                let about = vec![crate::reference::node(&self.node)];
                cx.spawn("event", publish(self.recorder.clone(), about, "Recover", quarantined(&claims)));
                return Ok(());
            }
        };
        // One at a time: when the API server is slow, the newest attempts are worth no more than this one.
        let busy = self.in_flight.as_ref().is_some_and(|task| !task.is_finished());
        if busy || !self.said.is_news((claim.uid.clone(), fault.reason), Instant::now()) {
            return Ok(());
        }
        let about = std::iter::once(reference(claim)).chain(pods.into_iter().take(PODS)).collect();
        self.in_flight = Some(cx.spawn("event", publish(self.recorder.clone(), about, "Prepare", fault)));
        Ok(())
    }
}

async fn publish(
    recorder: Recorder,
    about: Vec<ObjectReference>,
    action: &'static str,
    fault: Fault,
) -> Result<(), Fault> {
    let event = Event {
        type_: EventType::Warning,
        reason: fault.reason.into(),
        note: Some(fault.message),
        action: action.into(),
        secondary: None,
    };
    for about in about {
        match tokio::time::timeout(REQUEST, recorder.publish(&event, &about)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!("an Event could not be written: {error}"),
            Err(_) => tracing::info!("an Event could not be written in time"),
        }
    }
    Ok(())
}

fn quarantined(claims: &[String]) -> Fault {
    Fault::retryable(
        reason::CHECKPOINT_CORRUPT,
        format!(
            "{} checkpoints of claims were corrupt and are in the folder quarantine of the agent's state directory; what the \
             claims hold is taken from the API and their CDI files; look at the node's disk; UIDs of the claims: {}",
            claims.len(),
            claims.join(", ")
        ),
    )
}

fn reference(claim: ClaimKey) -> ObjectReference {
    ObjectReference {
        api_version: Some("resource.k8s.io/v1".into()),
        kind: Some("ResourceClaim".into()),
        namespace: Some(claim.namespace),
        name: Some(claim.name),
        uid: Some(claim.uid),
        ..ObjectReference::default()
    }
}
