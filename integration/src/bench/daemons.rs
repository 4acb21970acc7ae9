//! IMEX daemons by their own word, and what they take without Heddle.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use serde_json::Value;
use tokio::net::UnixStream;

use super::Shared;
use super::rack::PATIENCE;
use crate::demo::cluster::{free_network, words};
use crate::demo::process::{Process, Start};
use crate::imex::os::OS_ENV;
use crate::imex::state::{ConnectionState, DaemonState};
use crate::imex::{make_domain, wire};

/// How often each daemon is asked. Figures of a start are that coarse.
const LOOK: Duration = Duration::from_millis(10);
/// The socket of a daemon that has a root of its own, in there.
const SOCKET: &str = "/run/imex.sock";

/// Where a daemon is asked.
#[derive(Clone, Debug)]
pub enum Place {
    /// At this socket.
    Socket(PathBuf),
    /// By its runner, with this folder. A daemon that has a root of its own has its socket there.
    Runner(PathBuf),
}

impl Place {
    /// The socket; none while it is not known, or no daemon runs.
    fn socket(&self) -> Option<PathBuf> {
        match self {
            Self::Socket(socket) => Some(socket.clone()),
            Self::Runner(folder) => {
                let socket = folder.join("imex.sock");
                if socket.exists() {
                    return Some(socket);
                }
                let record: Value = serde_json::from_slice(&std::fs::read(folder.join("daemon.json")).ok()?).ok()?;
                Some(PathBuf::from(format!("/proc/{}/root{SOCKET}", record["pid"].as_u64()?)))
            }
        }
    }
}

/// When a daemon was first seen to be so.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// It answers.
    pub answers: Instant,
    /// It is READY.
    pub ready: Instant,
    /// It is READY and connected with all others that are asked about.
    pub connected: Instant,
}

/// Asks daemons at their control sockets until each is READY and connected with all the others.
///
/// # Errors
/// When that takes too long, or `check` finds something broken.
pub async fn connected(daemons: &[Place], check: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<Vec<Seen>> {
    let began = Instant::now();
    let mut seen = vec![(None, None, None); daemons.len()];
    loop {
        for (daemon, (answers, ready, connected)) in daemons.iter().zip(&mut seen) {
            if connected.is_some() {
                continue;
            }
            let Some((state, peers)) = ask(daemon).await else { continue };
            let now = Instant::now();
            answers.get_or_insert(now);
            if state == DaemonState::Ready {
                ready.get_or_insert(now);
                if peers >= daemons.len() {
                    *connected = Some(now);
                }
            }
        }
        let done: Option<Vec<_>> = seen
            .iter()
            .map(|(answers, ready, connected)| {
                Some(Seen { answers: (*answers)?, ready: (*ready)?, connected: (*connected)? })
            })
            .collect();
        if let Some(done) = done {
            return Ok(done);
        }
        check()?;
        if began.elapsed() > PATIENCE {
            let left = seen.iter().filter(|(_, _, connected)| connected.is_none()).count();
            bail!("{left} of {} daemons are not connected with all others after {} s", seen.len(), PATIENCE.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The state of a daemon, and how many members of its domain it is connected with, itself among them.
async fn ask(daemon: &Place) -> Option<(DaemonState, usize)> {
    let mut stream = UnixStream::connect(daemon.socket()?).await.ok()?;
    wire::send(&mut stream, &wire::Command::Node).await.ok()?;
    match wire::receive(&mut stream).await.ok()? {
        wire::Answer::Node { state, connections, .. } => {
            Some((state, connections.iter().filter(|state| **state == ConnectionState::Connected).count()))
        }
        wire::Answer::State(_) => None,
    }
}

/// What so many daemons take from their start until all are connected, when their configuration is there beforehand
/// and nobody but they runs.
///
/// # Errors
/// When they cannot be started, or do not find each other.
pub async fn alone(shared: &Shared, folder: &Path, count: usize) -> anyhow::Result<Duration> {
    let (binary, _) = shared.binaries()?;
    let network = free_network()?;
    let address = |node: usize| Ok(IpAddr::from(Ipv4Addr::new(127, network, 1, u8::try_from(node + 1)?)));
    let addresses = (0..count).map(address).collect::<anyhow::Result<Vec<_>>>()?;
    make_domain(folder, &addresses, !shared.insecure_peers)?;
    let folders: Vec<_> = (0..count).map(|node| folder.join(node.to_string())).collect();
    let places: Vec<_> = folders.iter().map(|os| Place::Socket(os.join("run/imex.sock"))).collect();
    let began = Instant::now();
    let mut daemons = Vec::new();
    for (node, os) in folders.iter().enumerate() {
        daemons.push(Process::start(Start {
            name: format!("daemon {node}"),
            command: binary.command(words(["fake", "nvidia-imex"])),
            environment: vec![(OS_ENV, os.into())],
            log: os.join("daemon.log"),
        })?);
    }
    let check = || match daemons.iter().find_map(Process::broken) {
        Some(broken) => bail!("{broken}"),
        None => Ok(()),
    };
    let seen = connected(&places, check).await;
    let ended = seen.map(|seen| seen.iter().map(|seen| seen.connected).max().unwrap_or(began));
    futures::future::join_all(daemons.into_iter().map(Process::stop)).await;
    Ok(ended?.duration_since(began))
}
