//! The actor runtime, over actix: supervision by factory, bounded mailboxes that outlive their actors, kill scopes,
//! readiness, metrics and a graceful end.
//!
//! actix runs the actors. What it does not do is here: its supervisor revives the same value and does not survive a
//! panic, its mailbox closes with the actor, and `do_send` ignores its bound.

mod actor;
mod address;
mod context;
mod effect;
mod http;
mod life;
mod mailbox;
mod metrics;
mod readiness;
mod scope;
mod shell;
mod signals;
mod supervise;
mod turn;
mod watchdog;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use heddle_core::fault::{Class, Fault};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use actor::{Actor, Backoff, Message, Overflow, Restart, Spec};
pub use address::{Addr, AskError, Reply, SendError};
pub use context::Cx;
pub use effect::{Task, progress};
pub use metrics::Metrics;
pub use readiness::{Readiness, ReadyHandle};
pub use scope::Scope;
pub use signals::signals;
pub use turn::Turn;

use http::Probes;
use scope::{Actors, Shared};
use watchdog::{Hand, Watchdog};

/// What a graceful shutdown may take. Below the 30 s that Kubernetes gives a pod, with room for the process around.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// One process's actors, with what they share. There may be several in one process (in tests there are).
pub struct Runtime {
    root: Scope,
    shared: Shared,
    blocked_limit: Duration,
    servers: Mutex<Vec<JoinHandle<io::Result<()>>>>,
}

impl Default for Runtime {
    fn default() -> Self {
        Self::new()
    }
}

impl Runtime {
    /// A runtime without actors.
    pub fn new() -> Self {
        let actors = Actors::default();
        let shared =
            Shared { metrics: Metrics::new(&actors), actors, readiness: Readiness::default(), hand: Hand::default() };
        Self {
            root: Scope::root(shared.clone()),
            shared,
            // Long enough for a machine that is busy beyond reason, well below the kubelet's patience with a probe.
            blocked_limit: Duration::from_secs(30),
            servers: Mutex::default(),
        }
    }

    /// How long one handler may block the thread before the process is ended.
    pub fn blocked_limit(mut self, limit: Duration) -> Self {
        self.blocked_limit = limit;
        self
    }

    /// The scope whose end is the end of the process.
    pub fn root(&self) -> Scope {
        self.root.clone()
    }

    /// The process's metrics.
    pub fn metrics(&self) -> Metrics {
        self.shared.metrics.clone()
    }

    /// The process's readiness.
    pub fn readiness(&self) -> Readiness {
        self.shared.readiness.clone()
    }

    /// Serves `/metrics`, `/readyz` and `/livez` until the runtime ends. Says where, as the port may be 0.
    pub async fn serve(&self, addr: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let probes = Probes { metrics: self.metrics(), readiness: self.readiness(), root: self.root.clone() };
        let server = tokio::spawn(async move { axum::serve(listener, http::router(probes)).await });
        self.servers.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        Ok(addr)
    }

    /// Runs until `until` ends, and then shuts down gracefully: not ready at once, the actors finished in reverse order
    /// of their start. Ends with an error as soon as the root scope is killed, by a fatal fault or by an actor that
    /// failed too often.
    pub async fn run(self, until: impl Future<Output = ()>) -> Result<(), Fault> {
        let _watchdog = Watchdog::start(self.blocked_limit, self.shared.hand.clone())
            .inspect_err(|error| tracing::warn!("the actors' thread is not watched: {error}"))
            .ok();
        tokio::select! {
            biased;
            cause = self.root.ended() => return self.escalated(cause).await,
            () = until => {}
        }
        self.shared.readiness.drain();
        tokio::select! {
            biased;
            cause = self.root.ended() => return self.escalated(cause).await,
            finished = tokio::time::timeout(SHUTDOWN, self.shared.actors.finish()) => if finished.is_err() {
                tracing::warn!("actors have not finished within {SHUTDOWN:?}; they are killed");
            }
        }
        self.root.stop();
        Ok(())
    }

    async fn escalated(&self, cause: Option<Fault>) -> Result<(), Fault> {
        self.shared.readiness.drain();
        // Their values are dropped by them, not by the end of the process: sockets and locks are given back in order.
        if tokio::time::timeout(SHUTDOWN, self.shared.actors.gone()).await.is_err() {
            tracing::warn!("killed actors have not gone within {SHUTDOWN:?}");
        }
        match cause {
            Some(cause) => Err(Fault { class: Class::Fatal, ..cause }),
            None => Ok(()),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.root.stop();
        for server in self.servers.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            server.abort();
        }
    }
}

/// Runs a future on an actix System of its own, on this thread.
pub fn block_on<F: Future>(f: F) -> F::Output {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // For file I/O and name look-ups. Their stacks are most of what an idle agent would hold otherwise.
            .max_blocking_threads(8)
            .thread_keep_alive(Duration::from_secs(2))
            .build()
            .expect("a tokio runtime needs an epoll instance and an eventfd; raise the limit on open files (ulimit -n)")
    };
    actix::System::with_tokio_rt(runtime).block_on(f)
}
