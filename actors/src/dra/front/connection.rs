//! One accepted connection, as tonic reads and writes it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};
use tonic::transport::server::{Connected, UdsConnectInfo};

use super::frame::ServerSettings;
use super::repair::Repair;

/// A connection on which nothing is said for longer is closed, so that its place is another's. The kubelet opens one for
/// each call, and gives GetInfo one second and NotifyRegistrationStatus five.
const IDLE: Duration = Duration::from_secs(30);
/// Bytes read from the socket at a time. A registration call is smaller.
const READ: usize = 4096;

/// A connection whose header blocks are repaired while they are read.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    repair: Repair,
    /// Read from the socket and not yet repaired.
    input: Portion,
    /// Repaired and not yet read by the server.
    output: Portion,
    settings: ServerSettings,
    /// Ends when nothing was said for too long.
    idle: Pin<Box<Sleep>>,
    /// Its place among the connections that may be open.
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, Default)]
struct Portion {
    bytes: Vec<u8>,
    taken: usize,
}

impl Portion {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.taken..]
    }

    fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken == self.bytes.len() {
            self.taken = 0;
            self.bytes.clear();
        }
    }
}

impl Connection {
    pub(super) fn new(stream: UnixStream, permit: OwnedSemaphorePermit) -> Self {
        Self {
            stream,
            repair: Repair::default(),
            input: Portion::default(),
            output: Portion::default(),
            settings: ServerSettings::default(),
            idle: Box::pin(tokio::time::sleep(IDLE)),
            _permit: permit,
        }
    }

    /// Fills `input`; says whether the client has more to say.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut buffer = [0; READ];
        let mut buffer = ReadBuf::new(&mut buffer);
        match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
            Poll::Ready(read) => read?,
            Poll::Pending => {
                ready!(self.idle.as_mut().poll(cx));
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        self.idle.as_mut().reset(Instant::now() + IDLE);
        self.input.bytes.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(!buffer.filled().is_empty()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let ready = this.output.rest();
            if !ready.is_empty() {
                let count = ready.len().min(buf.remaining());
                buf.put_slice(&ready[..count]);
                this.output.take(count);
                return Poll::Ready(Ok(()));
            }
            if this.input.rest().is_empty() && !ready!(this.poll_input(cx))? {
                return Poll::Ready(Ok(()));
            }
            let taken = this.repair.feed(this.input.rest(), &mut this.output.bytes).map_err(|malformed| {
                tracing::warn!("registration socket: connection closed: {malformed}");
                io::Error::new(io::ErrorKind::InvalidData, malformed)
            })?;
            this.input.take(taken);
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes))?;
        if let Some(size) = this.settings.see(&bytes[..written]) {
            this.repair.allow_table_size(size);
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}
