//! What a daemon knows of one peer, and what their meeting means for imports.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::daemon::Daemon;
use super::fabric::Denied;
use super::state::ConnectionState;
use super::wire::FromPeer;

/// How long the other side may take to say hello.
pub const HANDSHAKE: Duration = Duration::from_secs(3);

/// Requests that wait for one connection. A process asks one thing at a time, so this is a bound on processes.
pub const QUEUE: usize = 1024;

/// What others of the daemon ask of the task that keeps a connection.
#[derive(Debug)]
pub enum Request {
    /// May a process that holds this channel import it?
    Import { instance: u64, export: u64, channel: u32, reply: oneshot::Sender<Result<(), Denied>> },
    /// The last import of it has ended.
    Release { export: u64 },
}

/// Where a connection's task gets its requests.
pub type Inbox = mpsc::Receiver<Request>;

/// What the daemon knows of one peer.
pub struct Link {
    /// How our connection to it stands.
    pub state: watch::Sender<ConnectionState>,
    requests: mpsc::Sender<Request>,
    /// Set while the peer's own connection to us stands: what it must be told.
    pub incoming: RefCell<Option<mpsc::Sender<FromPeer>>>,
    /// The peer's life that was connected last, by either connection.
    pub instance: Cell<Option<u64>>,
    /// The peer has shown that it is there.
    pub kick: Notify,
}

impl Link {
    /// Not connected yet.
    pub fn new() -> (Self, Inbox) {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let link = Self {
            state: watch::Sender::new(ConnectionState::NeverConnected),
            requests,
            incoming: RefCell::default(),
            instance: Cell::new(None),
            kick: Notify::new(),
        };
        (link, inbox)
    }

    /// How the connection stands.
    pub fn state(&self) -> ConnectionState {
        *self.state.borrow()
    }

    /// Waits until it stands.
    pub async fn connected(&self) {
        // The sender is our own field, so it cannot have gone.
        let _ = self.state.subscribe().wait_for(|state| *state == ConnectionState::Connected).await;
    }

    /// Hands a request to the connection's task; refused when its queue is full.
    pub fn request(&self, request: Request) -> Result<(), Denied> {
        self.requests.try_send(request).map_err(|_| Denied::InvalidHandle)
    }

    /// Tells the peer over its own connection to us, if that stands.
    pub fn tell(&self, message: FromPeer) {
        if let Some(incoming) = &*self.incoming.borrow() {
            let _ = incoming.try_send(message);
        }
    }
}

impl Daemon {
    /// What is known of this line of the map.
    pub fn link(&self, id: u16) -> &Link {
        &self.links[usize::from(id)]
    }

    /// A life of a peer has been seen with a map like ours: nothing that came from an earlier one is valid any more.
    /// A refusal was meant for that earlier life too.
    pub fn met(&self, id: u16, instance: u64) {
        let link = self.link(id);
        if link.instance.replace(Some(instance)) != Some(instance) {
            self.invalidate(id, Some(instance), "runs as a new instance");
            self.fabric.borrow_mut().forget_importer(id);
            self.persist();
        }
        if !matches!(link.state(), ConnectionState::Connected | ConnectionState::Authenticating) {
            link.kick.notify_one();
        }
    }

    /// A peer is about to end, and its exports with it.
    pub fn leaves(&self, id: u16) {
        self.log.info(&format!("Node {id} is shutting down"));
        self.invalidate(id, None, "is shutting down");
        self.fabric.borrow_mut().forget_importer(id);
        self.persist();
    }

    /// Imports from a node have become invalid.
    pub fn invalidate(&self, id: u16, but: Option<u64>, why: &str) {
        let lost = self.fabric.borrow_mut().invalidate(id, but);
        if lost > 0 {
            self.log.warning(&format!("{lost} imports from node {id} are invalid: it {why}"));
        }
    }
}

/// Tells all peers that the daemon is about to end.
pub async fn farewell(daemon: &Daemon, at_most: Duration) {
    // Each connection's own task writes it, when it sees the state. Ours must not end before.
    let gone = async {
        for link in &daemon.links {
            let mut state = link.state.subscribe();
            let _ = state.wait_for(|state| *state != ConnectionState::Connected).await;
            if let Some(incoming) = link.incoming.take() {
                let _ = incoming.try_send(FromPeer::ShuttingDown);
                incoming.closed().await;
            }
        }
    };
    let _ = timeout(at_most, gone).await;
}

/// What the system says of a node that packets do not reach.
pub fn unreachable() -> io::Error {
    io::ErrorKind::HostUnreachable.into()
}
