//! The plugin registry directory: a plugin is registered while its registration socket is there.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::{self, Instant, MissedTickBehavior};
use tracing::{info, warn};

use super::{
    Machine,
    backoff::{Backoff, sleep_until},
    folders::{Change, Folders},
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
        let period = self.machine.options.limits.registry_reconcile;
        let (mut folders, sockets) = match Folders::watch(&root, period) {
            Ok(watched) => watched,
            Err(err) => {
                warn!(directory = %root.display(), %err, "cannot read the plugin registry: no plugin will register");
                return;
            }
        };
        for socket in sockets {
            self.appeared(socket);
        }
        let mut reconcile = time::interval(period);
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
