//! The outgoing connection to one peer: made, kept, made anew; imports go over it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{BufReader, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::daemon::Daemon;
use super::peer::{HANDSHAKE, Inbox, QUEUE, Request, unreachable};
use super::state::{ConnectionState, DaemonState};
use super::transport::{self, Stream};
use super::wire::{self, FromPeer, Hello, ToPeer};

/// Why a connection is no more, or never was.
enum Lost {
    /// It failed; it may work later.
    Failed(io::Error),
    /// It was refused, and will be until something changes.
    Refused(ConnectionState),
    /// It was given up to be made anew.
    Restarted,
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Keeps the connection to a peer for the daemon's life.
pub async fn keep_connected(daemon: Rc<Daemon>, id: u16, inbox: Inbox) {
    let mut restarts = daemon.restarts.subscribe();
    let mut outgoing = Outgoing {
        id,
        inbox,
        waiting: VecDeque::new(),
        asked: BTreeMap::new(),
        attempt: 0,
        backoff: daemon.scenario.reconnect.backoff().0,
        lost_at: None,
        stranger: None,
    };
    loop {
        restarts.mark_unchanged();
        let lost = outgoing.connect_and_serve(&daemon, &mut restarts).await;
        let state = &daemon.link(id).state;
        match lost {
            Lost::Restarted => {
                state.send_replace(ConnectionState::Recovering);
                continue;
            }
            Lost::Failed(error) => {
                if outgoing.attempt == 0 {
                    let why = match error.kind() {
                        io::ErrorKind::UnexpectedEof => "it has closed it".to_owned(),
                        _ => error.to_string(),
                    };
                    daemon.log.warning(&format!("Lost the connection to node {id}: {why}"));
                } else if transport::is_about_identity(&error) {
                    outgoing.stranger(&daemon, &error);
                }
                let met = daemon.link(id).instance.get().is_some();
                state.send_replace(if met { ConnectionState::Recovering } else { ConnectionState::NeverConnected });
            }
            Lost::Refused(why) => {
                daemon.log.error(&format!("Connection to node {id} is refused: {}", why.letters()));
                state.send_replace(why);
            }
        }
        outgoing.pause(&daemon, &mut restarts).await;
    }
}

/// The state of one outgoing connection's task.
struct Outgoing {
    id: u16,
    inbox: Inbox,
    /// Requests that have not been sent.
    waiting: VecDeque<Request>,
    /// Imports that have been sent, by number.
    asked: BTreeMap<u64, Request>,
    /// Attempts since the last connection.
    attempt: u64,
    backoff: Duration,
    /// When the last connection was lost, if what it brought may still be valid.
    lost_at: Option<Instant>,
    /// Why the peer was no member at the last attempt.
    stranger: Option<String>,
}

impl Outgoing {
    async fn connect_and_serve(&mut self, daemon: &Daemon, restarts: &mut watch::Receiver<u64>) -> Lost {
        self.attempt += 1;
        let connected = tokio::select! {
            connected = self.connect(daemon) => connected,
            () = daemon.cut_off(self.id) => Err(Lost::Failed(unreachable())),
            _ = restarts.changed() => return Lost::Restarted,
        };
        let stream = match connected {
            Ok(stream) => stream,
            Err(lost) => {
                self.refuse_all();
                return lost;
            }
        };
        daemon.log.info(&format!("Connected to node {}", self.id));
        daemon.link(self.id).state.send_replace(ConnectionState::Connected);
        self.attempt = 0;
        self.backoff = daemon.scenario.reconnect.backoff().0;
        self.lost_at = None;
        self.stranger = None;
        let id = self.id;
        let (read, write) = tokio::io::split(stream);
        let answers = RefCell::new(std::mem::take(&mut self.asked));
        let lost = tokio::select! {
            error = hear(daemon, id, read, &answers) => Lost::Failed(error),
            lost = self.speak(daemon, write, &answers, restarts) => lost,
            () = daemon.cut_off(id) => Lost::Failed(unreachable()),
        };
        match lost {
            // Asking twice does no harm.
            Lost::Restarted => self.waiting.extend(answers.into_inner().into_values()),
            _ => drop(answers),
        }
        self.lost_at = Some(Instant::now());
        lost
    }

    /// Whether the log hears of this attempt. A member that is not there is tried for ever: the real daemon fills its log
    /// with that, this one thins it out.
    fn is_told(&self) -> bool {
        self.attempt.is_power_of_two()
    }

    /// Says that the peer is not who it should be, or takes us for somebody else.
    fn stranger(&mut self, daemon: &Daemon, error: &io::Error) {
        let why = format!("Authentication with node {} failed: {error}", self.id);
        let new = self.stranger.as_ref() != Some(&why);
        if new || self.is_told() {
            daemon.log.error(&why);
            self.stranger = Some(why);
        }
    }

    async fn connect(&self, daemon: &Daemon) -> Result<Box<dyn Stream>, Lost> {
        let entry = &daemon.map.entries[usize::from(self.id)];
        let line = format!("Attempting connection for target node {} - {entry}:{}", self.id, daemon.config.server_port);
        if self.is_told() {
            daemon.log.info(&format!("{line}, attempt #{}", self.attempt));
        } else {
            daemon.log.verbose(&format!("{line}, attempt #{}", self.attempt));
        }
        let resolved = daemon.os.resolve(entry);
        if resolved.is_empty() {
            return Err(io::Error::other(format!("cannot resolve {entry}")).into());
        }
        let at = |address| transport::at(address, daemon.config.server_port, daemon.config.interface.as_deref());
        let addresses: Vec<SocketAddr> = resolved.into_iter().map(at).collect::<io::Result<_>>()?;
        let stream = transport::connect(&addresses).await?;
        daemon.link(self.id).state.send_if_modified(|state| {
            // The first connection shows its handshake; one that is made anew keeps saying so.
            let first = *state == ConnectionState::NeverConnected;
            if first {
                *state = ConnectionState::Authenticating;
            }
            first
        });
        let mut stream = daemon.transport.introduce(stream, entry).await?;
        let hello = Hello {
            protocol: daemon.scenario.protocol,
            node: daemon.id,
            target: self.id,
            instance: daemon.instance,
            map: daemon.map.hash(),
        };
        wire::send(&mut stream, &hello).await?;
        let theirs: Hello = timeout(HANDSHAKE, wire::receive(&mut stream)).await.map_err(io::Error::from)??;
        if theirs.protocol != hello.protocol {
            return Err(Lost::Refused(ConnectionState::VersionMismatch));
        }
        if theirs.map != hello.map {
            return Err(Lost::Refused(ConnectionState::MapMismatch));
        }
        if theirs.node != self.id {
            return Err(io::Error::other(format!("{entry} is node {}", theirs.node)).into());
        }
        daemon.met(self.id, theirs.instance);
        Ok(stream)
    }

    /// Sends what is asked of this connection, and looks after its life.
    async fn speak(
        &mut self,
        daemon: &Daemon,
        mut write: WriteHalf<Box<dyn Stream>>,
        asked: &RefCell<BTreeMap<u64, Request>>,
        restarts: &mut watch::Receiver<u64>,
    ) -> Lost {
        let mut state = daemon.state.subscribe();
        let mut number = 0;
        let mut keepalive = tokio::time::interval(daemon.scenario.keepalive());
        keepalive.reset();
        loop {
            let message = if let Some(request) = self.waiting.pop_front() {
                number += 1;
                message(request, number, asked)
            } else {
                tokio::select! {
                    Some(request) = self.inbox.recv() => {
                        self.waiting.push_back(request);
                        continue;
                    }
                    _ = keepalive.tick() => ToPeer::Ping,
                    _ = restarts.changed() => ToPeer::Restarting,
                    _ = state.wait_for(|state| *state == DaemonState::ShuttingDown) => ToPeer::ShuttingDown,
                }
            };
            if let Err(error) = wire::send(&mut write, &message).await {
                return Lost::Failed(error);
            }
            match message {
                ToPeer::Restarting => return Lost::Restarted,
                ToPeer::ShuttingDown => {
                    daemon.link(self.id).state.send_replace(ConnectionState::Disconnected);
                    return std::future::pending().await;
                }
                _ => {}
            }
        }
    }

    /// Waits until the next attempt is due: after a while, at a sign of life from the peer, when everything is to
    /// be made anew, or when somebody needs it. After a refusal only a sign of life or a restart helps.
    async fn pause(&mut self, daemon: &Daemon, restarts: &mut watch::Receiver<u64>) {
        let link = daemon.link(self.id);
        let refused = matches!(link.state(), ConnectionState::MapMismatch | ConnectionState::VersionMismatch);
        let next = Instant::now() + self.backoff.mul_f32(0.8 + 0.4 * fastrand::f32());
        let (first, factor, longest) = daemon.scenario.reconnect.backoff();
        self.backoff = self.backoff.mul_f32(factor).min(longest);
        loop {
            let over = self.lost_at.zip(daemon.config.grace).map(|(lost, grace)| lost + grace);
            tokio::select! {
                () = sleep_until(next), if !refused => return,
                () = link.kick.notified() => return,
                _ = restarts.changed() => {
                    self.backoff = first;
                    return;
                }
                () = sleep_until(over.unwrap_or(next)), if over.is_some() => {
                    self.lost_at = None;
                    daemon.invalidate(self.id, None, "has been away for longer than the grace time");
                    link.state.send_if_modified(|state| {
                        let over = *state == ConnectionState::Recovering;
                        if over {
                            *state = ConnectionState::Disconnected;
                        }
                        over
                    });
                }
                Some(request) = self.inbox.recv() => {
                    if self.waiting.len() < QUEUE {
                        self.waiting.push_back(request);
                    }
                    if refused {
                        self.refuse_all();
                    } else if self.waiting.iter().any(|request| matches!(request, Request::Import { .. })) {
                        return;
                    }
                }
            }
        }
    }

    /// Imports fail when the peer cannot be reached; what was released is told once it can.
    fn refuse_all(&mut self) {
        self.waiting.retain(|request| matches!(request, Request::Release { .. }));
    }
}

/// The message for a request. An import's reply is kept under its number; dropping it says no.
fn message(request: Request, number: u64, asked: &RefCell<BTreeMap<u64, Request>>) -> ToPeer {
    match request {
        Request::Release { export } => ToPeer::Release { export },
        Request::Import { instance, export, channel, .. } => {
            asked.borrow_mut().insert(number, request);
            ToPeer::Import { id: number, instance, export, channel }
        }
    }
}

/// Takes what the peer says on this connection, until it ends.
async fn hear(
    daemon: &Daemon,
    id: u16,
    read: ReadHalf<Box<dyn Stream>>,
    asked: &RefCell<BTreeMap<u64, Request>>,
) -> io::Error {
    let mut read = BufReader::with_capacity(512, read);
    loop {
        let silence = daemon.scenario.keepalive() * 3;
        let message = match timeout(silence, wire::receive(&mut read)).await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => return error,
            Err(_) => return io::Error::new(io::ErrorKind::TimedOut, "no sign of life"),
        };
        match message {
            FromPeer::Imported { id, result } => {
                if let Some(Request::Import { reply, .. }) = asked.borrow_mut().remove(&id) {
                    let _ = reply.send(result);
                }
            }
            FromPeer::Ended { export } => daemon.fabric.borrow_mut().ended(id, export),
            FromPeer::Pong => {}
            FromPeer::ShuttingDown => daemon.leaves(id),
        }
    }
}
