//! What daemon, peers, control tool and CUDA say to each other: JSON in frames with a length in front.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::fabric::{Denied, Handle};
use super::state::{ConnectionState, DaemonState};

/// Revision of the peer protocol; peers of another one are refused (`!V!`).
pub const PROTOCOL: u32 = 1;

/// Largest frame: the row of a matrix of 1,024 members has some 80 KiB.
const MAX_FRAME: u32 = 256 * 1024;

/// First message each way on a connection between peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The sender's own id.
    pub node: u16,
    /// Whom the sender takes the receiver for.
    pub target: u16,
    /// Another at each start of a daemon.
    pub instance: u64,
    /// Hash of the sender's node map.
    pub map: u64,
}

/// From the daemon that opened the connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToPeer {
    /// Import for a process that holds this channel.
    Import { id: u64, instance: u64, export: u64, channel: u32 },
    /// The last import of this export here has ended.
    Release { export: u64 },
    /// Are you there?
    Ping,
    /// A new connection follows at once.
    Restarting,
    /// The daemon is about to end.
    ShuttingDown,
}

/// From the daemon that was connected to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromPeer {
    /// Answer to an import.
    Imported { id: u64, result: Result<(), Denied> },
    /// An export has ended; what was imported of it is gone.
    Ended { export: u64 },
    /// I am.
    Pong,
    /// The daemon is about to end.
    ShuttingDown,
}

/// From the control tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// The state, once.
    State,
    /// The state now and at every change.
    Subscribe,
    /// The daemon's row of the matrix.
    Node,
}

/// To the control tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Command::State`] and [`Command::Subscribe`].
    State(DaemonState),
    /// To [`Command::Node`].
    Node { state: DaemonState, version: String, connections: Vec<ConnectionState> },
}

/// From a CUDA process to its kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToKernel {
    /// First of all: the channel whose device node it has open.
    Subscribe { channel: u32 },
    /// Export memory.
    Export,
    /// Import memory.
    Import(Handle),
    /// Is imported memory still there?
    Holds(Handle),
}

/// From the kernel to a CUDA process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromKernel {
    /// To [`ToKernel::Export`].
    Exported(Handle),
    /// To the others.
    Done,
    /// It may not be.
    Denied(Denied),
}

/// Writes one frame.
pub async fn send<T: Serialize>(to: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|length| *length <= MAX_FRAME);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "frame too large"))?;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    to.write_all(&frame).await?;
    to.flush().await
}

/// Reads one frame; an error of kind `UnexpectedEof` when the other side has ended. Not to be given up half-way.
pub async fn receive<T: DeserializeOwned>(from: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = from.read_u32().await?;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {length} bytes")));
    }
    let mut frame = vec![0; length as usize];
    from.read_exact(&mut frame).await?;
    Ok(serde_json::from_slice(&frame)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_keep_their_borders() {
        let mut buffer = Vec::new();
        send(&mut buffer, &ToPeer::Ping).await.unwrap();
        send(&mut buffer, &ToPeer::Release { export: 7 }).await.unwrap();
        let mut from = buffer.as_slice();
        assert_eq!(receive::<ToPeer>(&mut from).await.unwrap(), ToPeer::Ping);
        assert_eq!(receive::<ToPeer>(&mut from).await.unwrap(), ToPeer::Release { export: 7 });
        assert_eq!(receive::<ToPeer>(&mut from).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_is_no_frame_is_refused_before_it_costs_memory() {
        let mut http = b"GET / HTTP/1.1\r\n\r\n".as_slice();
        assert_eq!(receive::<ToPeer>(&mut http).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
