//! What a test wants to go wrong on a node, and what nobody outside NVIDIA has verified about the real programs.
//!
//! A JSON file in the node's folder. It is read at the start of a program; only `unreachable` is followed while a daemon runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::VERSION;
use super::os::Os;
use super::state::{ConnectionState, DaemonState};
use super::wire::PROTOCOL;

/// Place of the file in the node's folder.
pub const FILE: &str = "imex/scenario.json";

/// The file's content. Without a file all is as by default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Version of daemon and tool. The kernel driver of the node must be of the same, if it has one.
    pub version: String,
    /// Revision of the protocol between peers; another one is a version mismatch.
    pub protocol: u32,
    /// Milliseconds that a state takes.
    pub delay_ms: BTreeMap<DaemonState, u64>,
    /// The state that is never left. In `SHUTTING_DOWN` the daemon has to be killed.
    pub hang_in: Option<DaemonState>,
    /// The state in which the daemon gives up with an error.
    pub fail_in: Option<DaemonState>,
    /// The state in which the daemon dies as if it were killed.
    pub crash_in: Option<DaemonState>,
    /// Somebody else holds the kernel's session (`NV_ERR_IN_USE`).
    pub session_in_use: bool,
    /// Nodes to and from which nothing gets through.
    pub unreachable: BTreeSet<u16>,
    /// How long a daemon waits between attempts to connect.
    pub reconnect: Reconnect,
    /// Milliseconds after which a connection without traffic is tried; after three times as many without an answer it is
    /// lost. A process that ends closes its connections, so this only finds a peer that hangs or is cut off; it is seldom by
    /// default, as 4 cliques of 18 members have 1,224 connections.
    pub keepalive_ms: u64,
    /// What a key does that the configuration file does not know.
    pub unknown_keys: UnknownKeys,
    /// `IMEX_WAIT_FOR_QUORUM=FULL` is known, as to older releases.
    pub full_quorum: bool,
    /// The control tool.
    pub ctl: Ctl,
}

/// Two figures are reported of the real daemon, for different releases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reconnect {
    /// 0.5 s, growing to 3 s.
    #[default]
    Short,
    /// 15 s, doubled each time up to 125 s.
    Long,
}

impl Reconnect {
    /// First wait, factor, longest wait.
    pub fn backoff(self) -> (Duration, f32, Duration) {
        match self {
            Self::Short => (Duration::from_millis(500), 1.5, Duration::from_secs(3)),
            Self::Long => (Duration::from_secs(15), 2.0, Duration::from_secs(125)),
        }
    }
}

/// Not documented.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownKeys {
    /// The log names it.
    #[default]
    Warn,
    /// The daemon does not start.
    Refuse,
}

/// What is not documented of `nvidia-imex-ctl`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ctl {
    /// Actions that never end: `q`, `s`, `N`, `n`.
    pub hang: BTreeSet<char>,
    /// Exit code of `-q` when the daemon answers and is not READY.
    pub not_ready_exit: u8,
    /// Exit code of `-N` and `-n` without a node map.
    pub no_node_map_exit: u8,
    /// `-t` bounds every action, not only `-s`.
    pub time_bounds_all: bool,
    /// `-j` is indented.
    pub pretty: bool,
    /// Other spellings of connections in JSON.
    pub spelling: BTreeMap<ConnectionState, String>,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            version: VERSION.to_owned(),
            protocol: PROTOCOL,
            delay_ms: BTreeMap::new(),
            hang_in: None,
            fail_in: None,
            crash_in: None,
            session_in_use: false,
            unreachable: BTreeSet::new(),
            reconnect: Reconnect::default(),
            keepalive_ms: 30_000,
            unknown_keys: UnknownKeys::default(),
            full_quorum: false,
            ctl: Ctl::default(),
        }
    }
}

impl Scenario {
    /// When a connection without traffic is tried.
    pub fn keepalive(&self) -> Duration {
        Duration::from_millis(self.keepalive_ms.max(1))
    }

    /// The one of a node.
    pub fn read(os: &Os) -> Result<Self> {
        let path = os.path(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        serde_json::from_str(&text).with_context(|| format!("scenario {}", path.display()))
    }

    /// Gives it to a node, in one step: a running daemon sees either the old one or the new one.
    pub fn write(&self, os: &Os) -> Result<()> {
        let path = os.path(FILE);
        let folder = path.parent().context("the scenario has no folder")?;
        std::fs::create_dir_all(folder)?;
        let new = folder.join("scenario.json.new");
        std::fs::write(&new, serde_json::to_string_pretty(self)?)?;
        Ok(std::fs::rename(new, path)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_says_only_what_differs() {
        let folder = tempfile::tempdir().unwrap();
        let os = Os::at(folder.path());
        assert_eq!(Scenario::read(&os).unwrap(), Scenario::default());
        let path = os.path(FILE);
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        let text = r#"{"delay_ms": {"INIT_GPU": 20}, "unreachable": [1], "ctl": {"spelling": {"MAP_MISMATCH": "X"}}}"#;
        std::fs::write(&path, text).unwrap();
        let read = Scenario::read(&os).unwrap();
        assert_eq!(read.delay_ms[&DaemonState::InitGpu], 20);
        assert_eq!(read.ctl.spelling[&ConnectionState::MapMismatch], "X");
        read.write(&os).unwrap();
        assert_eq!(Scenario::read(&os).unwrap(), read);
        std::fs::write(&path, r#"{"delay": 1}"#).unwrap();
        assert!(format!("{:#}", Scenario::read(&os).unwrap_err()).contains("delay"));
    }
}
