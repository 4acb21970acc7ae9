//! Tells that something happened in one of a few folders, or to them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use inotify::{Event, EventMask, EventStream, Inotify, WatchDescriptor, WatchMask};

/// How often the folders are looked at while they cannot be watched: the user's inotify instances (128 by default) are
/// used up.
const POLL: Duration = Duration::from_secs(1);
/// Events of one burst are told once. Short: a container may be starting whose file has just been wiped.
const SETTLE: Duration = Duration::from_millis(5);
/// Pause after a look. Our own writes are events too: hundreds of claims a second must not mean hundreds of looks at every file.
const REST: Duration = Duration::from_millis(50);

/// Calls `changed` at once, and whenever something in the folders may have changed; for ever. A folder that is missing
/// is waited for.
pub(crate) async fn watch(folders: Vec<PathBuf>, changed: impl Fn()) {
    loop {
        let watches = Watches::start(&folders);
        // After the watches stand: what changed before is seen by this look, what changes after it by an event.
        changed();
        match watches {
            Ok(watches) => watches.follow(&changed).await,
            Err(error) => {
                tracing::debug!("folders are polled, not watched: {error}");
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

struct Watches {
    events: EventStream<[u8; 4096]>,
    /// The folders, in which everything counts.
    folders: BTreeSet<WatchDescriptor>,
    /// The folders above them, in which one entry each is the way to them.
    ways: BTreeMap<WatchDescriptor, BTreeSet<OsString>>,
}

/// What an event, or a burst of them, comes down to.
#[derive(Clone, Copy, Default)]
struct News {
    /// Something may have changed in a folder.
    changed: bool,
    /// At the path of a folder there may be another one than is watched, or none, or one at last.
    moved: bool,
}

impl Watches {
    fn start(paths: &[PathBuf]) -> std::io::Result<Self> {
        let inotify = Inotify::init()?;
        let (mut folders, mut ways) = (BTreeSet::new(), BTreeMap::<_, BTreeSet<OsString>>::new());
        // Added to what is watched there already: one folder may be the way to another.
        let way = WatchMask::MASK_ADD
            | WatchMask::ONLYDIR
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE;
        let add = |path, mask| match inotify.watches().add(path, mask) {
            Ok(watch) => Ok(Some(watch)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        };
        for path in paths {
            // From the top: what comes after it was found missing is an event of the folder above.
            let down: Vec<_> = path.ancestors().collect();
            for step in down.windows(2).rev() {
                let [below, above] = step else { continue };
                let (Some(watch), Some(name)) = (add(*above, way)?, below.file_name()) else { break };
                ways.entry(watch).or_default().insert(name.to_owned());
            }
            folders.extend(add(path, way | WatchMask::CLOSE_WRITE)?);
        }
        Ok(Self { events: inotify.into_event_stream([0; 4096])?, folders, ways })
    }

    /// Ends when other folders must be watched.
    async fn follow(mut self, changed: &impl Fn()) {
        while let Some(event) = self.events.next().await {
            let mut news = self.news(event);
            if !news.changed && !news.moved {
                continue;
            }
            tokio::time::sleep(SETTLE).await;
            while let Some(Some(more)) = futures::FutureExt::now_or_never(self.events.next()) {
                let more = self.news(more);
                news = News { changed: news.changed | more.changed, moved: news.moved | more.moved };
            }
            if news.moved {
                return;
            }
            changed();
            tokio::time::sleep(REST).await;
        }
    }

    fn news(&self, event: std::io::Result<Event<OsString>>) -> News {
        let gone = EventMask::DELETE_SELF | EventMask::MOVE_SELF | EventMask::IGNORED | EventMask::UNMOUNT;
        // Events that were lost may have been any.
        let Ok(event) = event else { return News { changed: true, moved: true } };
        let is_way = |name: &OsStr| self.ways.get(&event.wd).is_some_and(|names| names.contains(name));
        News {
            changed: self.folders.contains(&event.wd),
            moved: event.mask.intersects(gone | EventMask::Q_OVERFLOW) || event.name.as_deref().is_some_and(is_way),
        }
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
        within(watcher, steps).await;
    }

    #[tokio::test]
    async fn a_folder_that_is_missing_is_waited_for_without_polling() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b/f");
        let (told, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let watched = folder.clone();
        let watcher = watch(vec![dir.path().join("a"), watched], move || told.send(()).unwrap());
        let steps = async {
            changes.recv().await.unwrap();
            // No time passes, so no poll comes.
            tokio::time::pause();
            std::fs::create_dir_all(&folder).unwrap();
            changes.recv().await.unwrap();
            while changes.try_recv().is_ok() {}
            std::fs::write(folder.join("x"), "x").unwrap();
            changes.recv().await.unwrap();
            // The folder is at another place, its parent's name at none.
            std::fs::rename(dir.path().join("a"), dir.path().join("c")).unwrap();
            changes.recv().await.unwrap();
            std::fs::create_dir_all(&folder).unwrap();
            changes.recv().await.unwrap();
        };
        within(watcher, steps).await;
    }

    #[tokio::test]
    async fn what_happens_beside_the_way_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let watches = Watches::start(&[dir.path().join("f")]).unwrap();
        let told = std::cell::Cell::new(0);
        let changed = || told.set(told.get() + 1);
        std::fs::create_dir(dir.path().join("g")).unwrap();
        std::fs::write(dir.path().join("h"), "x").unwrap();
        std::fs::create_dir(dir.path().join("f")).unwrap();
        watches.follow(&changed).await;
        assert_eq!(told.get(), 0, "only the end of the way counts");
    }

    async fn within(watcher: impl Future<Output = ()>, steps: impl Future<Output = ()>) {
        tokio::select! {
            () = watcher => unreachable!("it watches for ever"),
            done = tokio::time::timeout(Duration::from_secs(10), steps) => done.unwrap(),
        }
    }
}
