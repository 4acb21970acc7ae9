//! The kernel's side of fabric memory: serves the CUDA processes of this node as long as the session is open.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::daemon::Daemon;
use super::fabric::{Denied, Handle, Import, Process};
use super::peer::Request;
use super::wire::{self, FromKernel, ToKernel};

/// How long the exporting node may take to decide.
const DECISION: Duration = Duration::from_secs(5);

/// Opens the socket. The caller holds the session, so whatever is in its place is left from a dead daemon.
pub fn serve(daemon: &Rc<Daemon>) -> Result<()> {
    let path = daemon.os.kernel_socket();
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).with_context(|| format!("Failed to open {}", path.display()))?;
    let daemon = Rc::clone(daemon);
    spawn_local(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(spawn_local(attend(Rc::clone(&daemon), stream))),
                Err(error) => {
                    daemon.log.error(&format!("Failed to accept a process: {error}"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn attend(daemon: Rc<Daemon>, mut stream: UnixStream) {
    // Any error means that the process has ended.
    let Ok(ToKernel::Subscribe { channel }) = wire::receive(&mut stream).await else { return };
    let process = daemon.fabric.borrow_mut().subscribe(channel);
    let _ = converse(&daemon, process, &mut stream).await;
    let farewell = daemon.fabric.borrow_mut().end(process);
    daemon.bid_farewell(farewell);
}

async fn converse(daemon: &Daemon, process: Process, stream: &mut UnixStream) -> io::Result<()> {
    wire::send(stream, &FromKernel::Done).await?;
    loop {
        let result = match wire::receive(stream).await? {
            // One channel for life.
            ToKernel::Subscribe { .. } => Err(Denied::NotPermitted),
            ToKernel::Export => daemon.fabric.borrow_mut().export(process).map(FromKernel::Exported),
            ToKernel::Import(handle) => import(daemon, process, handle).await.map(|()| FromKernel::Done),
            ToKernel::Holds(handle) => daemon.fabric.borrow().holds(process, handle).map(|()| FromKernel::Done),
        };
        wire::send(stream, &result.unwrap_or_else(FromKernel::Denied)).await?;
    }
}

async fn import(daemon: &Daemon, process: Process, handle: Handle) -> Result<(), Denied> {
    let decided = daemon.fabric.borrow_mut().import(process, handle)?;
    let Import::Ask { node, channel } = decided else { return Ok(()) };
    let (reply, decision) = oneshot::channel();
    let Handle { instance, export, .. } = handle;
    daemon.links[usize::from(node)].request(Request::Import { instance, export, channel, reply })?;
    match timeout(DECISION, decision).await {
        Ok(Ok(decision)) => decision?,
        Ok(Err(_)) | Err(_) => return Err(Denied::InvalidHandle),
    }
    daemon.fabric.borrow_mut().imported(process, handle);
    Ok(())
}
