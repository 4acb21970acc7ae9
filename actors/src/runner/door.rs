use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use futures::{Stream, StreamExt as _, future};
use heddle_core::fault::{Fault, reason};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;

/// Connections of our own user to the socket, which appears under its name when it can be used, and by nobody else.
pub(super) fn open(socket: &Path) -> Result<impl Stream<Item = io::Result<UnixStream>> + use<>, Fault> {
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
    let own = rustix::process::geteuid().as_raw();
    Ok(UnixListenerStream::new(listener).filter(move |connection| {
        let welcome = match connection {
            Ok(stream) => stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0),
            Err(_) => true,
        };
        if !welcome {
            tracing::warn!("a process of another user was turned away from the runner's socket");
        }
        future::ready(welcome)
    }))
}
