use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use inotify::{EventStream, Inotify, WatchMask};

/// Events of one burst are one change.
const SETTLE: Duration = Duration::from_millis(5);
/// How often they are looked at while they cannot be watched: the user's inotify instances are used up.
const POLL: Duration = Duration::from_secs(1);
/// How often they are looked at without an event: a link may lead to a folder that nobody watches, and some file systems
/// tell of nothing.
const UNTOLD: Duration = Duration::from_secs(60);

/// Watches over some folders, begun before they are looked at: what changes after that is told by [`Watch::changed`].
pub struct Watch(Option<EventStream<[u8; 4096]>>);

impl Watch {
    /// Begins. Folders that cannot be watched are looked at every so often.
    pub fn start(folders: &BTreeSet<PathBuf>) -> Self {
        let start = || {
            let inotify = Inotify::init()?;
            let mask = WatchMask::CREATE
                | WatchMask::CLOSE_WRITE
                | WatchMask::DELETE
                | WatchMask::MOVE
                | WatchMask::DELETE_SELF
                | WatchMask::MOVE_SELF
                | WatchMask::ONLYDIR;
            for folder in folders {
                // One that has just gone is not there in the next look either, and the nearest one above it is.
                if let Err(error) = inotify.watches().add(folder, mask) {
                    tracing::debug!("{} is not watched: {error}", folder.display());
                }
            }
            inotify.into_event_stream([0; 4096])
        };
        Self(start().inspect_err(|error| tracing::debug!("folders are polled, not watched: {error}")).ok())
    }

    /// Ends when something in the folders may have changed.
    pub async fn changed(self) {
        let Some(mut events) = self.0 else { return tokio::time::sleep(POLL).await };
        let told = async {
            events.next().await;
            tokio::time::sleep(SETTLE).await;
            while let Some(Some(_)) = events.next().now_or_never() {}
        };
        let _ = tokio::time::timeout(UNTOLD, told).await;
    }
}
