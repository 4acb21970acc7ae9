//! The byte stream between two peers: the one place that knows whether it is encrypted.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

/// How long a connection attempt may take before it counts as failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A stream to a peer, whose identity has been checked as far as the configuration asks for it.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// Connects to a peer.
pub async fn dial(to: SocketAddr) -> io::Result<Box<dyn Stream>> {
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(Box::new(stream))
}

/// Takes the next connection of a peer.
pub async fn accept(listener: &TcpListener) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
    let (stream, from) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((Box::new(stream), from))
}
