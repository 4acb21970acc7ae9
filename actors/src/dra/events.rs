//! Kubernetes Events on claims that cannot be prepared, and on their pods. Best effort, and never many.

use std::time::Duration;

use heddle_core::claim::ClaimKey;
use heddle_core::fault::{Fault, reason};
use heddle_core::names;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType};
use tokio::time::Instant;

use crate::events::{Outbox, Recorder, in_time};
use crate::runtime::{self, Actor, Cx, Overflow};
use crate::said::Said;

/// Pods that are told of one claim. A claim has one, or a few that share it; 256 are possible.
const PODS: usize = 8;
/// Claims whose Events wait for each other's; what comes beyond is said at a later attempt. More than a node has slots.
const WAITING: usize = 64;
/// What has waited longer is told no more: the claim may be prepared by now.
const NEWS: Duration = Duration::from_secs(60);

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
    /// The Events of one claim have been written, or given up.
    Written,
}

/// What is to be written, and on which objects.
#[derive(Debug)]
struct Notice {
    about: Vec<ObjectReference>,
    action: &'static str,
    fault: Fault,
    /// When it is no news any more.
    until: Option<Instant>,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "Refused",
            Self::Quarantined { .. } => "Quarantined",
            Self::Written => "Written",
        }
    }

    /// What is refused is said again at the next attempt; what is in quarantine is in the log too.
    fn overflow(&self) -> Overflow {
        match self {
            Self::Refused { .. } | Self::Quarantined { .. } => Overflow::DropOldest,
            Self::Written => Overflow::Reject,
        }
    }
}

/// Writes Events on claims and their pods, and on the node where the claim is not known.
pub struct ClaimEvents {
    node: String,
    recorder: Recorder,
    /// UIDs of claims, and reasons.
    said: Said<(String, &'static str)>,
    outbox: Outbox<Notice>,
}

impl ClaimEvents {
    /// For the agent of `node`.
    pub fn new(client: Client, node: &str) -> Self {
        let recorder = Recorder::new(client, names::AGENT, Some(node.to_owned()));
        Self { node: node.to_owned(), recorder, said: Said::default(), outbox: Outbox::new(WAITING) }
    }

    fn refused(&mut self, claim: ClaimKey, pods: Vec<ObjectReference>, fault: Fault, now: Instant) {
        if self.outbox.has_room() && self.said.is_news((claim.uid.clone(), fault.reason), now) {
            let about = std::iter::once(reference(claim)).chain(pods.into_iter().take(PODS)).collect();
            self.outbox.waiting.push_back(Notice { about, action: "Prepare", fault, until: Some(now + NEWS) });
        }
    }

    fn next(&mut self, now: Instant) -> Option<Notice> {
        self.outbox.waiting.retain(|notice| notice.until.is_none_or(|until| now < until));
        self.outbox.next()
    }

    fn write(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(notice) = self.next(Instant::now()) else { return };
        cx.spawn_then("event", publish(self.recorder.clone(), notice), |()| Message::Written);
    }
}

impl Actor for ClaimEvents {
    const KIND: &'static str = "ClaimEvents";
    type Message = Message;

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Refused { claim, pods, fault } => self.refused(claim, pods, fault, Instant::now()),
            Message::Quarantined { claims } => {
                // Rare, and said by nobody again: it goes before others.
                let about = vec![crate::reference::node(&self.node)];
                self.outbox.waiting.push_front(Notice {
                    about,
                    action: "Recover",
                    fault: quarantined(&claims),
                    until: None,
                });
            }
            Message::Written => self.outbox.written(),
        }
        self.write(cx);
        Ok(())
    }
}

async fn publish(recorder: Recorder, notice: Notice) {
    let event = Event {
        type_: EventType::Warning,
        reason: notice.fault.reason.into(),
        note: Some(notice.fault.message),
        action: notice.action.into(),
        secondary: None,
    };
    for about in notice.about {
        if !in_time(recorder.publish(&event, &about)).await {
            // The others would take as long, and there are claims behind these.
            return;
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with several claims has them refused in the same moment.
    #[tokio::test]
    async fn claims_that_are_refused_at_once_are_all_told() {
        let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let mut events = ClaimEvents::new(Client::try_from(nobody).unwrap(), "n0");
        let claim =
            |number: usize| ClaimKey { namespace: "a".into(), name: format!("c{number}"), uid: format!("u{number}") };
        let mut refused = |number: usize| {
            events.refused(
                claim(number),
                Vec::new(),
                Fault::retryable(reason::DAEMON_NOT_READY, "wait"),
                Instant::now(),
            );
            events.outbox.waiting.len()
        };
        assert_eq!((refused(0), refused(1), refused(2)), (1, 2, 3));
        assert_eq!(refused(1), 3, "it waits already");
        assert_eq!((3..WAITING + 9).map(&mut refused).max(), Some(WAITING));
        // What has waited too long is no news, and what was found in quarantine is at any time.
        events.outbox.waiting.push_back(Notice {
            about: Vec::new(),
            action: "Recover",
            fault: quarantined(&[]),
            until: None,
        });
        assert!(events.next(Instant::now()).is_some_and(|notice| notice.action == "Prepare"));
        assert!(events.next(Instant::now()).is_none(), "one at a time");
        events.outbox.written();
        assert!(events.next(Instant::now() + NEWS).is_some_and(|notice| notice.action == "Recover"));
        assert!(events.outbox.waiting.is_empty());
        // What found no place was not told, and is at its next attempt.
        let beyond = claim(WAITING + 8);
        events.refused(beyond, Vec::new(), Fault::retryable(reason::DAEMON_NOT_READY, "wait"), Instant::now());
        assert_eq!(events.outbox.waiting.len(), 1);
    }
}
