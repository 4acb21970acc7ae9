//! A watch being read.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures::StreamExt;
use tokio::sync::mpsc;

use super::represent::View;
use super::watch::Delivery;

/// The events of one watch, on their way to its reader.
pub struct Follow {
    /// What had happened when the watch began.
    pub backlog: VecDeque<Delivery>,
    /// The version at which the initial events end, until that has been said.
    pub end: Option<u64>,
    /// What happens. It ends when the reader has become too slow, or on a disconnection.
    pub receiver: mpsc::Receiver<Delivery>,
    /// The form that was asked for.
    pub view: View,
}

impl Follow {
    async fn next(&mut self) -> Option<Bytes> {
        let delivery = match self.backlog.pop_front() {
            Some(delivery) => delivery,
            None => match self.end.take() {
                Some(version) => return Some(self.view.bookmark(version, true)),
                None => self.receiver.recv().await?,
            },
        };
        Some(match delivery {
            Delivery::Event(change, event) => self.view.event(&change, event),
            Delivery::Bookmark(version) => self.view.bookmark(version, false),
        })
    }

    /// A body of lines, which ends after `timeout`.
    pub fn into_body(self, timeout: Option<Duration>) -> Body {
        let lines = futures::stream::unfold(self, |mut follow| async move {
            let line = follow.next().await?;
            Some((Ok::<_, Infallible>(line), follow))
        });
        match timeout {
            Some(timeout) => Body::from_stream(lines.take_until(tokio::time::sleep(timeout))),
            None => Body::from_stream(lines),
        }
    }
}
