//! The IMEX runner: a process of its own that owns the node's `nvidia-imex`, so that agents come and go without it.

mod child;
mod ctl;
mod door;
pub mod enter;
mod files;
mod foreign;
mod identity;
mod keeper;
mod launch;
mod log;
mod metrics;
mod peers;
pub(crate) mod question;
mod service;
mod signal;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt as _;
use heddle_core::fault::{Fault, reason};
use heddle_core::imex::settings_warnings;
use heddle_proto::runner::runner_server::RunnerServer;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tonic::transport::Server;

use crate::runtime::Runtime;

use door::Door;
pub(crate) use files::CONFIG;
use files::Files;
use keeper::Keeper;
use metrics::DaemonMetrics;
use service::Service;

/// What a runner is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where configuration, node map and the last domain are kept; a tmpfs of the node, so that it outlives the
    /// container and not the boot.
    pub dir: PathBuf,
    /// Where the agent reaches the runner.
    pub socket: PathBuf,
    /// Where the driver's programs and libraries are: `/` or `/run/nvidia/driver`.
    pub driver_root: PathBuf,
    /// What the daemon sees of the node.
    pub isolation: Isolation,
    /// Settings of the daemon, by the keys of its configuration file.
    pub settings: BTreeMap<String, String>,
    /// The daemon's port for peers.
    pub peer_port: u16,
    /// Where metrics are served.
    pub metrics: Option<SocketAddr>,
    /// How patient the runner is.
    pub timing: Timing,
}

/// What the daemon sees of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    /// A root of its own, put together from the driver root and from what the runner has for it.
    MountNamespace(MountNamespace),
    /// What the runner sees. The driver's libraries must be where its programs look for them here.
    None {
        /// The hosts file that the daemon resolves names with.
        #[serde(rename = "hostsFile")]
        hosts_file: PathBuf,
        /// The daemon's control socket.
        #[serde(rename = "commandSocket")]
        command_socket: PathBuf,
    },
}

/// How the daemon's own root is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountNamespace {
    /// The command that does what [`enter::Entry::argument`] says, which becomes its last argument.
    pub enter: Vec<String>,
    /// Files and folders that the daemon sees too, where they are.
    pub also: Vec<PathBuf>,
    /// Whom the daemon asks for names that are not of its domain; usually nobody.
    pub nameservers: Vec<IpAddr>,
}

/// The runner's patience. Tests have less.
#[derive(Clone, Debug)]
pub struct Timing {
    /// No less than the time in which the daemon honours one SIGUSR1 and drops the others (5 s).
    pub signal_window: Duration,
    /// How long a daemon may take to end after SIGTERM.
    pub stop_limit: Duration,
    /// The pause before a daemon that has ended is started again, doubling…
    pub backoff_min: Duration,
    /// …up to this.
    pub backoff_max: Duration,
    /// A daemon that lived this long is not failing at its start: the pause begins anew.
    pub stable: Duration,
    /// How long a daemon may say nothing after its start before that is told.
    pub answer_limit: Duration,
    /// How long one question to the daemon may take.
    pub query_limit: Duration,
    /// Pause between questions while it is not READY.
    pub poll_starting: Duration,
    /// Pause between questions while it is.
    pub poll_ready: Duration,
    /// Pause between questions about its peers while all of them are connected.
    pub poll_peers: Duration,
    /// The same while one is not.
    pub poll_missing_peers: Duration,
    /// The shortest of these pauses, whatever happens.
    pub poll_peers_least: Duration,
    /// How long peers may be missing after a start, and after names were to be read anew, before it is said.
    pub peers_settle: Duration,
    /// How often the state is said at least, so that a runner which hangs is known by its silence.
    pub beat: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // The daemon counts from when it comes to a signal, which is a little later than it was sent.
            signal_window: Duration::from_secs(6),
            stop_limit: Duration::from_secs(10),
            backoff_min: Duration::from_millis(250),
            backoff_max: Duration::from_secs(15),
            stable: Duration::from_secs(60),
            answer_limit: Duration::from_secs(5),
            query_limit: Duration::from_secs(2),
            poll_starting: Duration::from_millis(100),
            poll_ready: Duration::from_secs(2),
            poll_peers: Duration::from_secs(30),
            poll_missing_peers: Duration::from_secs(5),
            poll_peers_least: Duration::from_secs(1),
            peers_settle: Duration::from_secs(10),
            beat: Duration::from_secs(5),
        }
    }
}

/// Whether the driver's programs are where the settings say. One that goes away later, as under an update of the driver,
/// is waited for.
///
/// # Errors
/// Fatal: the program that is missing.
pub fn preflight(settings: &Settings) -> Result<(), Fault> {
    match settings.programs().iter().find_map(|program| absent(program, settings)) {
        Some(what) => Err(Fault::fatal(reason::SETTINGS, what)),
        None => Ok(()),
    }
}

/// That a program of the driver is not there, in words.
fn absent(program: &Path, settings: &Settings) -> Option<String> {
    let (name, driver_root) = (program.file_name().unwrap_or_default().display(), &settings.driver_root);
    let is_there = match &settings.isolation {
        Isolation::None { .. } => program.is_file(),
        Isolation::MountNamespace(_) => {
            enter::is_there(driver_root, program.strip_prefix(driver_root).unwrap_or(program))
        }
    };
    (!is_there).then(|| {
        format!(
            "no {name} below {}: {} does not exist; install the driver's nvidia-imex package or set the driver root",
            driver_root.display(),
            program.display()
        )
    })
}

/// Runs until `until` ends; the daemon ends with it. Without an agent it serves the domain that it served last.
///
/// # Errors
/// Fatal, in one sentence: the folder or the socket cannot be used, or another runner has them.
pub async fn run(settings: Settings, until: impl Future<Output = ()>) -> Result<(), Fault> {
    let files = Files::open(&settings)?;
    // A mistyped setting is said at the start, not when the first domain comes.
    files.daemon_settings(&Default::default())?;
    for warning in settings_warnings(&settings.settings) {
        tracing::warn!(reason = reason::SETTINGS, "{warning}");
    }
    let (door, connections) = Door::open(&settings.socket)?;
    tracing::info!(socket = %settings.socket.display(), driver_root = %settings.driver_root.display(), "IMEX runner");
    let address = settings.metrics;
    let keeper = Keeper::new(settings, files, door);
    let shown = show(address, DaemonMetrics::new(keeper.state())).await;
    // Orders wait for each other, and there is one agent.
    let (orders, received) = mpsc::channel(16);
    let service = Service { orders, state: keeper.state() };
    let server = Server::builder().add_service(RunnerServer::new(service)).serve_with_incoming(connections);
    let server = tokio::spawn(server);
    // A panic in the keeper is not the daemon's: the process is left running and this one ends with an error.
    let kept = std::panic::AssertUnwindSafe(keeper.run(received, until)).catch_unwind().await;
    server.abort();
    drop(shown);
    let failed = |_| Fault::fatal(reason::ACTOR_FAILED, "the IMEX runner has failed; its daemon is left running");
    // What a runner that has failed leaves of its socket is replaced by the next.
    kept.map(Door::close).map_err(failed)
}

/// Serves metrics until what it gives is dropped. A port that is taken must not keep the daemon from its work.
async fn show(address: Option<SocketAddr>, metrics: DaemonMetrics) -> Option<Runtime> {
    let address = address?;
    let runtime = Runtime::new();
    runtime.metrics().register(|registry| registry.register_collector(Box::new(metrics)));
    match runtime.serve(address).await {
        Ok(address) => tracing::info!(%address, "serving metrics"),
        Err(error) => {
            tracing::error!(
                reason = reason::SETTINGS,
                "metrics cannot be served at {address}: {error}; free the port or set another one, and start the runner anew once the node is drained"
            );
        }
    }
    Some(runtime)
}
