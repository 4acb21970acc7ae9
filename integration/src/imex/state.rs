//! The words of the daemon and of its control tool.

use std::fmt;

use serde::{Deserialize, Serialize};

/// State of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DaemonState {
    /// Reads its files, finds itself.
    Initializing,
    /// Opens its ports.
    StartingAuthServer,
    /// Begins to connect to its peers; no quorum setting of today makes it stay here.
    WaitingForPeers,
    /// Was stopped uncleanly and waits for those that held imports from it.
    WaitingForRecovery,
    /// Opens the kernel's session.
    InitGpu,
    /// Serves imports and exports.
    Ready,
    /// Was told to end.
    ShuttingDown,
    /// Does not answer: only ever said by the tool.
    Unavailable,
}

impl fmt::Display for DaemonState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initializing => "INITIALIZING",
            Self::StartingAuthServer => "STARTING_AUTH_SERVER",
            Self::WaitingForPeers => "WAITING_FOR_PEERS",
            Self::WaitingForRecovery => "WAITING_FOR_RECOVERY",
            Self::InitGpu => "INIT_GPU",
            Self::Ready => "READY",
            Self::ShuttingDown => "SHUTTING_DOWN",
            Self::Unavailable => "UNAVAILABLE",
        })
    }
}

/// A daemon's view of its connection to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ConnectionState {
    /// Nothing is known of it.
    Invalid,
    /// Never since the daemon's start.
    NeverConnected,
    /// Stood once, is being made again.
    Recovering,
    /// Stood once; the grace time is over.
    Disconnected,
    /// The handshake is under way.
    Authenticating,
    /// Refused: another protocol version.
    VersionMismatch,
    /// Refused: another node map.
    MapMismatch,
    /// Stands.
    Connected,
}

impl ConnectionState {
    /// Its spelling in the tool's matrix.
    pub fn letters(self) -> &'static str {
        match self {
            Self::Invalid => "I",
            Self::NeverConnected => "N",
            Self::Recovering => "R",
            Self::Disconnected => "D",
            Self::Authenticating => "A",
            Self::VersionMismatch => "!V!",
            Self::MapMismatch => "!M!",
            Self::Connected => "C",
        }
    }
}

/// State of a whole IMEX domain, over **all** lines of the node map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum DomainState {
    /// Every daemon is READY and connected to every other.
    Up,
    /// Some are.
    Degraded,
    /// None is READY.
    Down,
}

impl fmt::Display for DomainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "UP",
            Self::Degraded => "DEGRADED",
            Self::Down => "DOWN",
        })
    }
}
