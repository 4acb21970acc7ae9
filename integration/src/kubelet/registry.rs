//! The plugin registry directory: a plugin is registered while its registration socket is there.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{
    StreamExt,
    future::BoxFuture,
    stream::{BoxStream, FuturesUnordered},
};
use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::time::{self, Instant, MissedTickBehavior};
use tracing::{info, warn};

use super::{
    Machine,
    backoff::{Backoff, sleep_until},
    plugins::Plugins,
    registration::{Registration, register},
};

type Attempt = BoxFuture<'static, (PathBuf, u64, Result<Registration, String>)>;

/// Keeps the registered plugins in step with the directory.
pub struct Registry {
    machine: Arc<Machine>,
    plugins: Plugins,
    /// Sockets that are there; the number tells a socket from an earlier one of the same name.
    wanted: BTreeMap<PathBuf, u64>,
    registered: BTreeMap<PathBuf, (u64, Registration)>,
    attempts: FuturesUnordered<Attempt>,
    under_way: BTreeMap<PathBuf, u64>,
    failed: BTreeMap<PathBuf, (Backoff, Instant)>,
    generation: u64,
}

impl Registry {
    /// A registry with nothing registered.
    pub fn new(machine: Arc<Machine>, plugins: Plugins) -> Self {
        Self {
            machine,
            plugins,
            wanted: BTreeMap::new(),
            registered: BTreeMap::new(),
            attempts: FuturesUnordered::new(),
            under_way: BTreeMap::new(),
            failed: BTreeMap::new(),
            generation: 0,
        }
    }

    /// Watches the directory for ever.
    pub async fn run(mut self) {
        let root = self.machine.options.paths.registry();
        let mut folders = match Folders::watch(&root) {
            Ok(folders) => folders,
            Err(err) => {
                warn!(directory = %root.display(), %err, "cannot watch the plugin registry: no plugin will register");
                return;
            }
        };
        for socket in folders.scan(&root) {
            self.appeared(socket);
        }
        let mut reconcile = time::interval(self.machine.options.limits.registry_reconcile);
        reconcile.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = Instant::now();
            let retry = self.failed.values().map(|(_, next)| *next).filter(|next| *next > now).min();
            tokio::select! {
                changes = folders.next() => for change in changes {
                    match change {
                        Change::Appeared(socket) => self.appeared(socket),
                        Change::Vanished(socket) => { self.wanted.remove(&socket); }
                    }
                },
                Some((socket, generation, result)) = self.attempts.next() => self.ended(socket, generation, result),
                () = sleep_until(retry) => {}
                _ = reconcile.tick() => {}
            }
            self.reconcile();
        }
    }

    fn appeared(&mut self, socket: PathBuf) {
        self.generation += 1;
        self.wanted.insert(socket, self.generation);
    }

    /// Unregisters what is gone or was replaced, then registers what is new.
    fn reconcile(&mut self) {
        self.registered.retain(|socket, (generation, registration)| {
            let keep = self.wanted.get(socket) == Some(generation);
            if !keep {
                info!(socket = %socket.display(), driver = registration.driver, "unregistered plugin");
                self.plugins.remove(&registration.driver, &registration.endpoint);
            }
            keep
        });
        self.failed.retain(|socket, _| self.wanted.contains_key(socket));
        let now = Instant::now();
        for (socket, generation) in &self.wanted {
            let waits = self.failed.get(socket).is_some_and(|(_, next)| *next > now);
            if self.registered.contains_key(socket) || self.under_way.contains_key(socket) || waits {
                continue;
            }
            self.under_way.insert(socket.clone(), *generation);
            let (machine, plugins) = (self.machine.clone(), self.plugins.clone());
            let (socket, generation) = (socket.clone(), *generation);
            self.attempts.push(Box::pin(async move {
                let result = register(&machine, &plugins, &socket).await;
                (socket, generation, result)
            }));
        }
    }

    fn ended(&mut self, socket: PathBuf, generation: u64, result: Result<Registration, String>) {
        self.under_way.remove(&socket);
        match result {
            Ok(registration) => {
                info!(socket = %socket.display(), driver = registration.driver, "registered plugin");
                self.failed.remove(&socket);
                self.registered.insert(socket, (generation, registration));
            }
            Err(err) => {
                warn!(socket = %socket.display(), %err, "could not register plugin");
                let limits = &self.machine.options.limits;
                let (backoff, next) =
                    self.failed.entry(socket).or_insert_with(|| (Backoff::new(limits.register_retry), Instant::now()));
                *next = Instant::now() + backoff.next();
            }
        }
    }
}

/// A change in the directory.
enum Change {
    Appeared(PathBuf),
    Vanished(PathBuf),
}

/// The directory and those below it.
struct Folders {
    watches: Watches,
    paths: HashMap<WatchDescriptor, PathBuf>,
    events: BoxStream<'static, io::Result<inotify::EventOwned>>,
    root: PathBuf,
}

impl Folders {
    fn watch(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let inotify = Inotify::init()?;
        let watches = inotify.watches();
        let events = inotify.into_event_stream(vec![0; 4096])?.boxed();
        let mut folders = Self { watches, paths: HashMap::new(), events, root: root.to_owned() };
        folders.add(root)?;
        Ok(folders)
    }

    fn add(&mut self, folder: &Path) -> io::Result<()> {
        let mask = WatchMask::CREATE | WatchMask::MOVED_TO | WatchMask::DELETE | WatchMask::MOVED_FROM;
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

    /// The next changes. Pending for ever once the kernel delivers no more.
    async fn next(&mut self) -> Vec<Change> {
        let event = match self.events.next().await {
            Some(Ok(event)) => event,
            Some(Err(err)) => {
                warn!(%err, "cannot read changes of the plugin registry");
                return std::future::pending().await;
            }
            None => return std::future::pending().await,
        };
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
