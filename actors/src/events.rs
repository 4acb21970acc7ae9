//! Kubernetes Events that the API server takes, whatever they are about.

use std::collections::VecDeque;
use std::time::Duration;

use heddle_core::fault::plain;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::events::{self, Event, EventType, Reporter};
use kube::{Api, Client};

/// An Event that takes longer is given up.
const REQUEST: Duration = Duration::from_secs(5);
/// Longest note that the API server takes, in bytes.
const NOTE: usize = 1024;
/// Longest name of a reporter's instance that it takes.
const INSTANCE: usize = 128;
/// Longest name of an object.
const NAME: usize = 253;

/// What an actor has to write, one after the other: whoever has much to say is no load on the API server.
pub(crate) struct Outbox<N> {
    pub(crate) waiting: VecDeque<N>,
    room: usize,
    writing: bool,
}

impl<N> Outbox<N> {
    /// An empty one, in which `room` may wait.
    pub(crate) fn new(room: usize) -> Self {
        Self { waiting: VecDeque::new(), room, writing: false }
    }

    /// Whether one more may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < self.room
    }

    /// What is to be written now: nothing until [`Self::written`] is told of the one before.
    pub(crate) fn next(&mut self) -> Option<N> {
        let next = if self.writing { None } else { self.waiting.pop_front() };
        self.writing |= next.is_some();
        next
    }

    /// The last one has been written, or given up.
    pub(crate) fn written(&mut self) {
        self.writing = false;
    }
}

/// Waits for the write of an Event, and whether there was an answer in time. Why it could not be written is logged.
pub(crate) async fn in_time(write: impl Future<Output = kube::Result<()>>) -> bool {
    match tokio::time::timeout(REQUEST, write).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::info!("an Event could not be written: {error}");
            true
        }
        Err(_) => {
            tracing::info!("an Event could not be written in time");
            false
        }
    }
}

/// Writes Events, and counts repetitions on the first one.
#[derive(Clone)]
pub(crate) struct Recorder {
    client: Client,
    reporter: Reporter,
    counting: events::Recorder,
}

impl Recorder {
    /// For what `controller` has to say; `instance` is which of them it is.
    pub(crate) fn new(client: Client, controller: &str, instance: Option<String>) -> Self {
        let instance = instance.map(|instance| instance.chars().take(INSTANCE).collect());
        let reporter = Reporter { controller: controller.into(), instance };
        Self { counting: events::Recorder::new(client.clone(), reporter.clone()), client, reporter }
    }

    /// Writes an Event about an object. Its note is cut to what the API server takes.
    pub(crate) async fn publish(&self, event: &Event, about: &ObjectReference) -> kube::Result<()> {
        let note = event.note.as_deref().map(cut);
        let event = Event {
            type_: event.type_,
            reason: event.reason.clone(),
            note,
            action: event.action.clone(),
            secondary: event.secondary.clone(),
        };
        let now = Timestamp::now();
        match short_name(about.name.as_deref().unwrap_or_default(), now) {
            None => self.counting.publish(&event, about).await,
            Some(name) => {
                let namespace = about.namespace.as_deref().unwrap_or("default");
                let object = self.object(&event, about, name, now);
                Api::<v1::Event>::namespaced(self.client.clone(), namespace)
                    .create(&PostParams::default(), &object)
                    .await?;
                Ok(())
            }
        }
    }

    fn object(&self, event: &Event, about: &ObjectReference, name: String, now: Timestamp) -> v1::Event {
        let Reporter { controller, instance } = &self.reporter;
        let word = match event.type_ {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        v1::Event {
            metadata: ObjectMeta { name: Some(name), namespace: about.namespace.clone(), ..Default::default() },
            action: Some(event.action.clone()),
            event_time: Some(MicroTime(now)),
            note: event.note.clone(),
            reason: Some(event.reason.clone()),
            regarding: Some(about.clone()),
            related: event.secondary.clone(),
            reporting_controller: Some(controller.clone()),
            reporting_instance: Some(instance.as_ref().unwrap_or(controller).clone()),
            type_: Some(word.into()),
            ..Default::default()
        }
    }
}

/// An Event is named by what it is about and the time. The name for it where that is too long for a name; kube's own recorder
/// does not shorten it.
fn short_name(about: &str, now: Timestamp) -> Option<String> {
    let time = format!(".{:x}", now.as_nanosecond());
    let room = NAME - time.len();
    (about.len() > room).then(|| {
        let about: String = about.chars().take(room).collect();
        format!("{}{time}", about.trim_end_matches(['.', '-']))
    })
}

/// Texts of tenants may be in it: no control characters, and not too long.
fn cut(text: &str) -> String {
    let mut cut = String::new();
    for shown in plain(text) {
        if cut.len() + shown.len_utf8() > NOTE {
            break;
        }
        cut.push(shown);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_and_has_no_control_characters() {
        assert_eq!(cut("a\nb\u{1b}[31m"), "a b [31m");
        assert_eq!(cut(&"\u{e9}".repeat(2000)).len(), 1024);
    }

    #[test]
    fn only_a_name_that_is_too_long_is_cut_and_stays_a_name() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(short_name(&"a".repeat(236), now), None);
        let name = short_name(&"a".repeat(237), now).unwrap();
        assert_eq!(name, format!("{}.{:x}", "a".repeat(236), now.as_nanosecond()));
        assert_eq!(name.len(), 253);
        let ends_oddly = format!("{}-.{}", "a".repeat(234), "b".repeat(17));
        assert_eq!(short_name(&ends_oddly, now).unwrap(), format!("{}.{:x}", "a".repeat(234), now.as_nanosecond()));
    }
}
