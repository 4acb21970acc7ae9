//! The server port: connections that peers made to us; they ask for imports over them.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::daemon::Daemon;
use super::peer::{HANDSHAKE, Request, unreachable};
use super::transport::{self, Stream};
use super::wire::{self, FromPeer, Hello, ToPeer};

/// Messages that wait to be written to one peer. One that does not read them is disconnected.
const QUEUE: usize = 256;

/// Grace for a peer that said that it only makes its connection anew.
const RESTART_GRACE: Duration = Duration::from_secs(5);

/// Takes connections for the daemon's life.
pub async fn serve(daemon: Rc<Daemon>, listener: TcpListener) {
    loop {
        match transport::accept(&listener).await {
            Ok((stream, from)) => {
                let daemon = Rc::clone(&daemon);
                spawn_local(async move {
                    let attended = match daemon.transport.greet(stream).await {
                        Ok(stream) => attend(&daemon, stream).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = attended {
                        daemon.log.warning(&format!("Connection from {from}: {error}"));
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: others may close theirs.
                daemon.log.error(&format!("Failed to accept a connection: {error}"));
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn attend(daemon: &Rc<Daemon>, mut stream: Box<dyn Stream>) -> io::Result<()> {
    let theirs: Hello = timeout(HANDSHAKE, wire::receive(&mut stream)).await??;
    let ours = Hello {
        protocol: daemon.scenario.protocol,
        node: daemon.id,
        target: theirs.node,
        instance: daemon.instance,
        map: daemon.map.hash(),
    };
    if daemon.unreachable.borrow().contains(&theirs.node) {
        return Err(unreachable());
    }
    // Said in every case, so that the other side knows why.
    wire::send(&mut stream, &ours).await?;
    if theirs.protocol != ours.protocol {
        return Err(io::Error::other(format!("node {} speaks another version (!V!)", theirs.node)));
    }
    if theirs.map != ours.map {
        return Err(io::Error::other(format!("node {} has another node map (!M!)", theirs.node)));
    }
    if theirs.target != daemon.id || theirs.node == daemon.id || usize::from(theirs.node) >= daemon.links.len() {
        return Err(io::Error::other(format!("node {} takes this one for node {}", theirs.node, theirs.target)));
    }
    let (tell, told) = mpsc::channel(QUEUE);
    let link = &daemon.links[usize::from(theirs.node)];
    *link.incoming.borrow_mut() = Some(tell.clone());
    daemon.met(theirs.node, theirs.instance);

    let (read, write) = tokio::io::split(stream);
    let mut restarting = false;
    let ended = tokio::select! {
        ended = hear(daemon, theirs.node, read, &tell, &mut restarting) => ended,
        ended = speak(write, told) => ended,
        () = daemon.cut_off(theirs.node) => Err(unreachable()),
    };
    let current = link.incoming.borrow().as_ref().is_some_and(|incoming| incoming.same_channel(&tell));
    if current {
        *link.incoming.borrow_mut() = None;
        spawn_local(forget_later(Rc::clone(daemon), theirs.node, restarting));
    }
    match ended {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        ended => ended,
    }
}

/// A peer's connection is gone: what it imported counts as released, unless it is back inside the grace time.
async fn forget_later(daemon: Rc<Daemon>, id: u16, restarting: bool) {
    let Some(grace) = daemon.config.grace else { return };
    sleep(if restarting { grace.max(RESTART_GRACE) } else { grace }).await;
    if daemon.links[usize::from(id)].incoming.borrow().is_none() {
        daemon.fabric.borrow_mut().forget_importer(id);
        daemon.persist();
    }
}

async fn hear(
    daemon: &Daemon,
    node: u16,
    read: impl tokio::io::AsyncRead + Unpin,
    tell: &mpsc::Sender<FromPeer>,
    restarting: &mut bool,
) -> io::Result<()> {
    let mut read = BufReader::with_capacity(512, read);
    loop {
        let answer = match wire::receive(&mut read).await? {
            ToPeer::Import { id, instance, export, channel } => {
                let result = daemon.fabric.borrow_mut().import_for(node, instance, export, channel);
                daemon.persist();
                FromPeer::Imported { id, result }
            }
            ToPeer::Release { export } => {
                daemon.fabric.borrow_mut().release(node, export);
                daemon.persist();
                continue;
            }
            ToPeer::Restarting => {
                *restarting = true;
                continue;
            }
            ToPeer::ShuttingDown => {
                daemon.leaves(node);
                continue;
            }
            ToPeer::Ping => FromPeer::Pong,
        };
        tell.try_send(answer).map_err(|_| io::Error::other(format!("node {node} does not read its answers")))?;
    }
}

async fn speak(mut write: impl tokio::io::AsyncWrite + Unpin, mut told: mpsc::Receiver<FromPeer>) -> io::Result<()> {
    while let Some(message) = told.recv().await {
        wire::send(&mut write, &message).await?;
        if message == FromPeer::ShuttingDown {
            break;
        }
    }
    Ok(())
}

impl Daemon {
    /// Tells other nodes what a process's end means for them.
    pub fn bid_farewell(&self, farewell: super::fabric::Farewell) {
        for (node, export) in farewell.ended {
            self.links[usize::from(node)].tell(FromPeer::Ended { export });
        }
        for (node, export) in farewell.released {
            // A full queue only means that the exporter keeps its note for longer.
            let _ = self.links[usize::from(node)].request(Request::Release { export });
        }
        self.persist();
    }
}
