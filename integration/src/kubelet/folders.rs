//! What appears in and vanishes from the plugin registry directory.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use futures::StreamExt;
use futures::stream::BoxStream;
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tracing::warn;

/// How often a directory that was removed is looked for.
const AWAY: Duration = Duration::from_millis(10);

/// A change in the directory.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A socket is there that was not, or is another one of the same name.
    Appeared(PathBuf),
    /// A socket is gone.
    Vanished(PathBuf),
}

/// The directory and those below it.
pub enum Folders {
    /// The kernel tells of changes.
    Told(Told),
    /// It has no inotify instance left for this user (the default is 128, and one process may play many kubelets): the
    /// directory is read every so often.
    Read(Read),
}

impl Folders {
    /// Watches a directory, which is made if it is missing, and says which sockets are there already.
    pub fn watch(root: &Path, period: Duration) -> io::Result<(Self, Vec<PathBuf>)> {
        fs::create_dir_all(root)?;
        match Told::new(root) {
            Ok(mut told) => {
                let sockets = told.scan(root);
                Ok((Self::Told(told), sockets))
            }
            Err(err) if err.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
                let mut read = Read::new(root, period);
                let sockets = read.changes().into_iter().filter_map(|change| match change {
                    Change::Appeared(socket) => Some(socket),
                    Change::Vanished(_) => None,
                });
                let sockets = sockets.collect();
                Ok((Self::Read(read), sockets))
            }
            Err(err) => Err(err),
        }
    }

    /// The next changes; may be none.
    pub async fn next(&mut self) -> Vec<Change> {
        match self {
            Self::Told(told) => told.next().await,
            Self::Read(read) => {
                tokio::time::sleep(read.period).await;
                read.changes()
            }
        }
    }
}

/// A directory whose changes the kernel tells.
pub struct Told {
    watches: Watches,
    paths: HashMap<WatchDescriptor, PathBuf>,
    events: BoxStream<'static, io::Result<inotify::EventOwned>>,
    root: PathBuf,
}

impl Told {
    fn new(root: &Path) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream(vec![0; 4096])?.boxed();
        let mut told = Self { watches, paths: HashMap::new(), events, root: root.to_owned() };
        told.add(root)?;
        Ok(told)
    }

    fn add(&mut self, folder: &Path) -> io::Result<()> {
        let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE | WatchMask::MOVED_FROM;
        let mask = mask | WatchMask::MOVE_SELF;
        let watch = self.watches.add(folder, mask)?;
        self.paths.insert(watch, folder.to_owned());
        Ok(())
    }

    /// The sockets in a folder and below; folders on the way are watched from now on.
    fn scan(&mut self, folder: &Path) -> Vec<PathBuf> {
        let mut sockets = Vec::new();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            self.look(&entry.path(), &mut sockets);
        }
        sockets
    }

    fn look(&mut self, path: &Path, sockets: &mut Vec<PathBuf>) {
        let hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        let Ok(meta) = fs::symlink_metadata(path) else { return };
        if hidden {
            return;
        }
        if meta.is_dir() {
            if let Err(err) = self.add(path) {
                warn!(directory = %path.display(), %err, "cannot watch a folder of the plugin registry");
            }
            sockets.extend(self.scan(path));
        } else if meta.file_type().is_socket() {
            sockets.push(path.to_owned());
        }
    }

    /// The directory itself is gone: what is at its path next is watched instead.
    async fn again(&mut self) -> Vec<Change> {
        for (watch, _) in self.paths.drain() {
            // Those of removed folders are gone already.
            let _ = self.watches.remove(watch);
        }
        let root = self.root.clone();
        while self.add(&root).is_err() {
            tokio::time::sleep(AWAY).await;
        }
        self.scan(&root).into_iter().map(Change::Appeared).collect()
    }

    /// The next changes; pending for ever once the kernel delivers no more.
    async fn next(&mut self) -> Vec<Change> {
        let event = match self.events.next().await {
            Some(Ok(event)) => event,
            Some(Err(err)) => {
                warn!(%err, "cannot read changes of the plugin registry");
                return std::future::pending().await;
            }
            None => return std::future::pending().await,
        };
        if self.paths.get(&event.wd) == Some(&self.root)
            && event.mask.intersects(EventMask::IGNORED | EventMask::MOVE_SELF)
        {
            return self.again().await;
        }
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            let root = self.root.clone();
            return self.scan(&root).into_iter().map(Change::Appeared).collect();
        }
        let Some(path) = self.paths.get(&event.wd).zip(event.name).map(|(folder, name)| folder.join(name)) else {
            self.paths.remove(&event.wd);
            return Vec::new();
        };
        if event.mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
            return vec![Change::Vanished(path)];
        }
        let mut sockets = Vec::new();
        self.look(&path, &mut sockets);
        sockets.into_iter().map(Change::Appeared).collect()
    }
}

/// A directory that is read every so often.
pub struct Read {
    root: PathBuf,
    period: Duration,
    /// Inode of each socket: a new socket of an old name is another one.
    seen: BTreeMap<PathBuf, u64>,
}

impl Read {
    fn new(root: &Path, period: Duration) -> Self {
        Self { root: root.to_owned(), period, seen: BTreeMap::new() }
    }

    fn changes(&mut self) -> Vec<Change> {
        let mut now = BTreeMap::new();
        sockets(&self.root, &mut now);
        let vanished = self.seen.keys().filter(|socket| !now.contains_key(*socket)).cloned().map(Change::Vanished);
        let appeared = now.iter().filter(|(socket, inode)| self.seen.get(*socket) != Some(inode));
        let changes = vanished.chain(appeared.map(|(socket, _)| Change::Appeared(socket.clone()))).collect();
        self.seen = now;
        changes
    }
}

fn sockets(folder: &Path, found: &mut BTreeMap<PathBuf, u64>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if meta.is_dir() {
            sockets(&entry.path(), found);
        } else if meta.file_type().is_socket() {
            found.insert(entry.path(), meta.ino());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_read_directory_tells_what_a_watched_one_tells() {
        let root = tempfile::tempdir().unwrap();
        let mut read = Read::new(root.path(), Duration::ZERO);
        assert_eq!(read.changes(), []);
        let below = root.path().join("below");
        fs::create_dir(&below).unwrap();
        let (one, two, hidden) = (root.path().join("a.sock"), below.join("b.sock"), root.path().join(".c.sock"));
        let first = UnixListener::bind(&one).unwrap();
        let _others = (UnixListener::bind(&two).unwrap(), UnixListener::bind(&hidden).unwrap());
        fs::write(root.path().join("file"), "").unwrap();
        assert_eq!(read.changes(), [Change::Appeared(one.clone()), Change::Appeared(two.clone())]);
        assert_eq!(read.changes(), []);
        // Bound anew before the old inode is given back, so that the number is another one.
        fs::rename(&one, root.path().join(".old")).unwrap();
        let _second = UnixListener::bind(&one).unwrap();
        drop(first);
        assert_eq!(read.changes(), [Change::Appeared(one.clone())]);
        fs::remove_file(&two).unwrap();
        assert_eq!(read.changes(), [Change::Vanished(two)]);
    }
}
