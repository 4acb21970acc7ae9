//! Tells that something happened in one of a few folders.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};

/// How often the folders are looked at while they cannot be watched: one is missing, or the user's inotify instances
/// (128 by default) are used up.
const POLL: Duration = Duration::from_secs(1);
/// Events of one burst are told once. Short: a container may be starting whose file has just been wiped.
const SETTLE: Duration = Duration::from_millis(5);

/// Calls `changed` at once, and whenever something in the folders may have changed; for ever.
pub(crate) async fn watch(folders: Vec<PathBuf>, changed: impl Fn()) {
    loop {
        let watched = start(&folders);
        // After the watches stand: what changed before is seen by this look, what changes after it by an event.
        changed();
        match watched {
            Ok(stream) => follow(stream, &changed).await,
            Err(error) => {
                tracing::debug!("folders are polled, not watched: {error}");
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

fn start(folders: &[PathBuf]) -> std::io::Result<EventStream<[u8; 4096]>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CREATE
        | WatchMask::CLOSE_WRITE
        | WatchMask::DELETE
        | WatchMask::MOVE
        | WatchMask::DELETE_SELF
        | WatchMask::MOVE_SELF
        | WatchMask::ONLYDIR;
    for folder in folders {
        inotify.watches().add(folder, mask)?;
    }
    inotify.into_event_stream([0; 4096])
}

/// Ends when a folder itself is gone: what is at its path now must be watched anew.
async fn follow(mut events: EventStream<[u8; 4096]>, changed: &impl Fn()) {
    let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED | EventMask::UNMOUNT;
    while let Some(event) = events.next().await {
        let mut lost = event.is_ok_and(|event| event.mask.intersects(gone));
        tokio::time::sleep(SETTLE).await;
        while let Some(Some(more)) = futures::FutureExt::now_or_never(events.next()) {
            lost |= more.is_ok_and(|event| event.mask.intersects(gone));
        }
        if lost {
            return;
        }
        changed();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_folder_is_watched_over_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("f");
        std::fs::create_dir(&folder).unwrap();
        let (told, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let watched = folder.clone();
        let watcher = watch(vec![watched], move || told.send(()).unwrap());
        let steps = async {
            changes.recv().await.unwrap();
            std::fs::write(folder.join("a"), "x").unwrap();
            changes.recv().await.unwrap();
            std::fs::remove_dir_all(&folder).unwrap();
            std::fs::create_dir(&folder).unwrap();
            changes.recv().await.unwrap();
            while changes.try_recv().is_ok() {}
            std::fs::write(folder.join("b"), "x").unwrap();
            changes.recv().await.unwrap();
        };
        tokio::select! {
            () = watcher => unreachable!("it watches for ever"),
            done = tokio::time::timeout(Duration::from_secs(10), steps) => done.unwrap(),
        }
    }
}
