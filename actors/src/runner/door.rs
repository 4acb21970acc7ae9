use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use futures::Stream;
use heddle_core::fault::{Fault, reason};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

/// Where connections come in. It closes when it is dropped.
pub(super) struct Door {
    connections: mpsc::Sender<io::Result<UnixStream>>,
    porter: JoinHandle<()>,
}

impl Door {
    /// Opens it: connections of our own user to the socket, and of nobody else.
    pub(super) fn open(socket: &Path) -> Result<(Self, impl Stream<Item = io::Result<UnixStream>> + use<>), Fault> {
        let (connections, received) = mpsc::channel(16);
        let porter = tokio::spawn(admit(listen(socket)?, connections.clone()));
        Ok((Self { connections, porter }, ReceiverStream::new(received)))
    }

    /// Opens it anew where somebody has taken the socket away. Connections that were made stay.
    pub(super) fn open_anew(&mut self, socket: &Path) -> Result<(), Fault> {
        let listener = listen(socket)?;
        self.porter.abort();
        self.porter = tokio::spawn(admit(listener, self.connections.clone()));
        Ok(())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.porter.abort();
    }
}

/// The socket appears under its name when it can be used.
fn listen(socket: &Path) -> Result<UnixListener, Fault> {
    let fatal = |error: io::Error| {
        let text = format!("the runner's socket {} cannot be made: {error}", socket.display());
        Fault::fatal(reason::NODE_IO, text)
    };
    // The folder is locked by us: what is left under either name is of a runner that has ended.
    let hidden = socket.with_extension("new");
    match fs::remove_file(&hidden) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fatal(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&hidden).map_err(fatal)?;
    fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(fatal)?;
    fs::rename(&hidden, socket).map_err(fatal)?;
    Ok(listener)
}

async fn admit(listener: UnixListener, connections: mpsc::Sender<io::Result<UnixStream>>) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let connection = listener.accept().await.map(|(stream, _)| stream);
        let is_welcome = |stream: &UnixStream| stream.peer_cred().is_ok_and(|peer| [own, 0].contains(&peer.uid()));
        if connection.as_ref().is_ok_and(|stream| !is_welcome(stream)) {
            tracing::warn!("a process of another user was turned away from the runner's socket");
            continue;
        }
        if connections.send(connection).await.is_err() {
            return;
        }
    }
}
