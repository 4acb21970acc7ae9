//! Kubernetes Events on the Node. Best effort, each once in a while, and never many.

use heddle_core::fault::Fault;
use heddle_core::inventory::Notice;
use heddle_core::names;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Client};
use tokio::time::Instant;

use crate::events::{Outbox, Recorder, in_time};
use crate::runtime::{self, Actor, Cx, Overflow};
use crate::said::Said;

/// Events that wait while one is being written; what is too much is in the log.
const WAITING: usize = 32;

/// What [`NodeEvents`] is told.
#[derive(Debug)]
pub enum Message {
    /// People should read this.
    Notice(Notice),
    /// The Event has been written, or not.
    Written,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Notice(_) => "Notice",
            Self::Written => "Written",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::Notice(_) => Overflow::DropOldest,
            Self::Written => Overflow::Reject,
        }
    }
}

/// Writes Events on the Node, one at a time.
pub struct NodeEvents {
    client: Client,
    recorder: Recorder,
    node: String,
    said: Said<Notice>,
    outbox: Outbox<Notice>,
}

impl NodeEvents {
    /// For the agent of `node`.
    pub fn new(client: Client, node: &str) -> Self {
        Self {
            recorder: Recorder::new(client.clone(), names::AGENT, Some(node.to_owned())),
            client,
            node: node.to_owned(),
            said: Said::default(),
            outbox: Outbox::new(WAITING),
        }
    }

    fn notice(&mut self, notice: Notice, now: Instant) {
        if self.said.lately(&notice, now) {
            return;
        }
        if notice.warning {
            tracing::warn!(reason = notice.reason, "{}", notice.note);
        } else {
            tracing::info!(reason = notice.reason, "{}", notice.note);
        }
        if self.outbox.has_room() && self.said.is_news(notice.clone(), now) {
            self.outbox.waiting.push_back(notice);
        }
    }

    fn write(&mut self, cx: &mut Cx<'_, Self>) {
        let Some(notice) = self.outbox.next() else { return };
        let write = publish(self.client.clone(), self.recorder.clone(), self.node.clone(), notice);
        cx.spawn_then("event", write, |()| Message::Written);
    }
}

impl Actor for NodeEvents {
    const KIND: &'static str = "NodeEvents";
    type Message = Message;

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Notice(notice) => self.notice(notice, Instant::now()),
            Message::Written => self.outbox.written(),
        }
        self.write(cx);
        Ok(())
    }
}

async fn publish(client: Client, recorder: Recorder, node: String, notice: Notice) {
    let written = async {
        // `kubectl describe node` finds Events by the Node's UID, and there must be one to be found.
        let found = Api::<Node>::all(client).get(&node).await?;
        let reference = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node),
            uid: found.metadata.uid,
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if notice.warning { EventType::Warning } else { EventType::Normal },
            reason: notice.reason.into(),
            note: Some(notice.note),
            action: "Inventory".into(),
            secondary: None,
        };
        recorder.publish(&event, &reference).await
    };
    in_time(written).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::said::REPEAT;

    #[tokio::test(start_paused = true)]
    async fn the_same_words_are_said_once_in_a_while() {
        let nobody = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let mut events = NodeEvents::new(Client::try_from(nobody).unwrap(), "n0");
        let notice = |note: &str| Notice { reason: "GpuUnhealthy", note: note.into(), warning: true };
        for _ in 0..3 {
            events.notice(notice("GPU 0: XID 79"), Instant::now());
        }
        events.notice(notice("GPU 1: XID 79"), Instant::now());
        assert_eq!(events.outbox.waiting.len(), 2);
        events.outbox.waiting.clear();
        tokio::time::advance(REPEAT).await;
        events.notice(notice("GPU 0: XID 79"), Instant::now());
        assert_eq!(events.outbox.waiting.len(), 1);
        for number in 0..1000 {
            events.notice(notice(&number.to_string()), Instant::now());
        }
        assert_eq!(events.outbox.waiting.len(), WAITING);
    }
}
