//! The command port and socket, where the control tool asks.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::spawn_local;

use super::daemon::Daemon;
use super::transport;
use super::wire::{self, Answer, Command};

/// Takes its socket's file away when the daemon ends in order.
pub struct Sockets(Option<PathBuf>);

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Opens what the configuration names.
pub fn open(daemon: &Rc<Daemon>) -> Result<Sockets> {
    let config = &daemon.config;
    if !config.command_enabled {
        return Ok(Sockets(None));
    }
    if let Some(port) = config.command_port {
        // Simulated nodes share one machine: "all interfaces" are those of the simulated OS.
        let addresses = config.command_bind.map_or_else(|| daemon.os.addresses(), |address| Ok(vec![address]))?;
        for address in addresses {
            let at = transport::at(address, port, config.interface.as_deref())?;
            let listener = std::net::TcpListener::bind(at).with_context(|| format!("Failed to bind to {at}"))?;
            listener.set_nonblocking(true)?;
            let listener = TcpListener::from_std(listener)?;
            let daemon = Rc::clone(daemon);
            spawn_local(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    spawn_local(attend(Rc::clone(&daemon), stream));
                }
            });
        }
    }
    if let Some(path) = &config.command_socket {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            bail!("Failed to open {}: another daemon serves it", path.display());
        }
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path).with_context(|| format!("Failed to open {}", path.display()))?;
        let daemon = Rc::clone(daemon);
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(attend(Rc::clone(&daemon), stream));
            }
        });
    }
    Ok(Sockets(config.command_socket.clone()))
}

async fn attend(daemon: Rc<Daemon>, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    // The tool ends when it has what it wanted.
    let _ = answer(&daemon, &mut stream).await;
}

async fn answer(daemon: &Daemon, stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let mut state = daemon.state.subscribe();
    loop {
        match wire::receive(stream).await? {
            Command::State => {
                let now = *state.borrow_and_update();
                wire::send(stream, &Answer::State(now)).await?;
            }
            Command::Node => {
                let (version, connections) = (daemon.version().to_owned(), daemon.connections());
                let now = *state.borrow_and_update();
                wire::send(stream, &Answer::Node { state: now, version, connections }).await?;
            }
            Command::Subscribe => loop {
                let now = *state.borrow_and_update();
                wire::send(stream, &Answer::State(now)).await?;
                let mut one = [0];
                tokio::select! {
                    changed = state.changed() => if changed.is_err() { return Ok(()) },
                    // The tool says nothing more: whatever comes is its end.
                    _ = tokio::io::AsyncReadExt::read(stream, &mut one) => return Ok(()),
                }
            },
        }
    }
}
