use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::Stream;
use heddle_core::fault::{Fault, reason};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

/// Between two tries to take a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Where connections come in. It closes when it is dropped.
pub(super) struct Door {
    socket: PathBuf,
    /// What was made under that name, by device and inode.
    own: Option<(u64, u64)>,
    connections: mpsc::Sender<io::Result<UnixStream>>,
    porter: JoinHandle<()>,
}

impl Door {
    /// Opens it: connections of our own user to the socket, and of nobody else.
    pub(super) fn open(socket: &Path) -> Result<(Self, impl Stream<Item = io::Result<UnixStream>> + use<>), Fault> {
        let (connections, received) = mpsc::channel(16);
        let (listener, own) = listen(socket)?;
        let porter = tokio::spawn(admit(listener, connections.clone()));
        Ok((Self { socket: socket.into(), own, connections, porter }, ReceiverStream::new(received)))
    }

    /// Whether it is still there: not removed, and nothing else in its place.
    pub(super) fn is_in_place(&self) -> bool {
        self.own.is_some() && self.own == found_at(&self.socket)
    }

    /// Opens it anew where it is not there any more. Connections that were made stay.
    pub(super) fn open_anew(&mut self) -> Result<(), Fault> {
        let (listener, own) = listen(&self.socket)?;
        self.own = own;
        self.porter.abort();
        self.porter = tokio::spawn(admit(listener, self.connections.clone()));
        Ok(())
    }

    /// Takes its name away: nobody is to find the socket of a runner that has ended.
    pub(super) fn close(self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.socket);
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.porter.abort();
    }
}

/// The socket appears under its name when it can be used; with what it is.
fn listen(socket: &Path) -> Result<(UnixListener, Option<(u64, u64)>), Fault> {
    let fatal = |error: io::Error| {
        let text = format!("the runner's socket {} cannot be made: {error}", socket.display());
        Fault::fatal(reason::NODE_IO, text)
    };
    if answers(socket) {
        let text = format!(
            "somebody answers at {} already, perhaps another IMEX runner with a folder of its own: stop it or set another socket",
            socket.display()
        );
        return Err(Fault::fatal(reason::NODE_IO, text));
    }
    // The folder is locked by us, and nobody answers: what is left under either name is of a runner that has ended.
    let hidden = socket.with_extension("new");
    make_room(&hidden).map_err(fatal)?;
    let listener = UnixListener::bind(&hidden).map_err(fatal)?;
    fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(fatal)?;
    let own = found_at(&hidden);
    if socket.is_dir() {
        make_room(socket).map_err(fatal)?;
    }
    fs::rename(&hidden, socket).map_err(fatal)?;
    Ok((listener, own))
}

/// Whether a process listens there, also one that does not take connections now.
fn answers(socket: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(socket) else { return false };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let asked = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    asked.is_ok_and(|fd| matches!(connect(fd, &address), Ok(()) | Err(Errno::AGAIN)))
}

/// Removes what is there; a folder only if there is nothing in it.
fn make_room(path: &Path) -> io::Result<()> {
    let is_folder = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
    match if is_folder { fs::remove_dir(path) } else { fs::remove_file(path) } {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn found_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
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
        let failed = connection.is_err();
        if connections.send(connection).await.is_err() {
            return;
        }
        // Without room for another connection each try fails at once, until somebody goes.
        if failed {
            tokio::time::sleep(PAUSE).await;
        }
    }
}
