//! The agent of a node: its settings and the wiring of its actors.

mod lock;
mod metrics;
mod tell;
mod wiring;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;

use heddle_core::api::ImexMode;
use heddle_core::fault::{Fault, reason};
use heddle_core::identity::Authentication;
use heddle_core::inventory::Access;
use heddle_core::runtime_guard::Mode;
use kube::Client;

use lock::Lock;
pub use tell::{Later, Tell};

use crate::api_requests::ApiRequests;
use crate::dra::DiskSyncs;
use crate::host_root::HostRoot;
use crate::runtime::{Runtime, Turn};
use crate::runtime_guard::Places;

/// What an agent is started with.
#[derive(Clone)]
pub struct Settings {
    /// Name of the Node.
    pub node_name: String,
    /// Addresses at which peers may reach the node's IMEX daemon, of either family, the preferred one first.
    pub node_addresses: Vec<IpAddr>,
    /// The API.
    pub client: Client,
    /// Where its requests are counted.
    pub requests: ApiRequests,
    /// Where the driver's programs and libraries are: `/` or `/run/nvidia/driver`.
    pub driver_root: PathBuf,
    /// The command that starts one of those programs in that root, see [`crate::imex_supervisor::HostImex::enter`].
    pub enter: Vec<String>,
    /// The node's `/proc`.
    pub proc_root: PathBuf,
    /// The node's `/sys`.
    pub sys_root: PathBuf,
    /// `/var/lib/kubelet/plugins`.
    pub plugins_dir: PathBuf,
    /// `/var/lib/kubelet/plugins_registry`.
    pub registry_dir: PathBuf,
    /// `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// `/etc/cdi`.
    pub cdi_static_dir: PathBuf,
    /// Where checkpoints are kept.
    pub state_dir: PathBuf,
    /// Where the IMEX runner is reached.
    pub runner_socket: PathBuf,
    /// Who runs the node's IMEX daemon.
    pub imex_mode: ImexMode,
    /// Control socket of a daemon that the host runs.
    pub control_socket: PathBuf,
    /// Configuration file of a daemon that the host runs, on the host.
    pub host_imex_config: String,
    /// How IMEX daemons know that a peer is one.
    pub authentication: Authentication,
    /// Life of a peer certificate that is asked for, in seconds.
    pub certificate_seconds: u32,
    /// Folder with `tls.crt`, `tls.key` and `ca.crt`, where somebody else makes the certificates.
    pub certificates_dir: PathBuf,
    /// Slots to publish.
    pub slots: u32,
    /// Whether whole GPUs are published too.
    pub gpus: bool,
    /// The kind of access over NVLink whose partition is the clique.
    pub fabric_access: Access,
    /// XIDs that make no GPU unhealthy, beside those of applications.
    pub ignored_xids: Vec<u64>,
    /// The host's `/`.
    pub host: HostRoot,
    /// Where the container runtime's and the container toolkit's files are on the host.
    pub places: Places,
    /// Its version, where an operator says it.
    pub container_runtime_version: Option<String>,
    /// What is done where the container runtime gives pods channels by itself.
    pub runtime_guard: Mode,
    /// UID of the agent's pod.
    pub pod_uid: String,
    /// Where metrics and probes are served.
    pub metrics: Option<SocketAddr>,
    /// Where gRPC health is served, which calls the sockets that the kubelet calls.
    pub health: Option<SocketAddr>,
}

/// Longest path of a Unix socket, without the closing zero.
const LONGEST_SOCKET: usize = 107;

/// Runs the agent until `until` ends. Claims and daemons go on without it.
///
/// # Errors
/// Fatal, in one sentence with what to do: a folder that is missing or cannot be written, or an actor that failed for
/// good. An API server or a runner that is away is waited for.
pub async fn run(settings: Settings, until: impl Future<Output = ()>) -> Result<(), Fault> {
    if settings.runner_socket.as_os_str().len() > LONGEST_SOCKET {
        let path = settings.runner_socket.display();
        let text = format!(
            "the runner's socket {path} has a path of more than {LONGEST_SOCKET} bytes, which no socket can have; set --runner-socket"
        );
        return Err(Fault::fatal(reason::SETTINGS, text));
    }
    let lock = Lock::open(&settings.state_dir)?;
    let turn = Turn::default();
    if lock.try_take()? {
        turn.begin();
    }
    let runtime = Runtime::new();
    runtime.metrics().register(|registry| {
        settings.requests.register(registry);
        registry.register_collector(Box::new(DiskSyncs));
    });
    if let Some(address) = settings.metrics {
        let address = runtime.serve(address).await.map_err(|error| {
            let text = format!("metrics cannot be served at {address}: {error}; free the port or set another one");
            Fault::fatal(reason::SETTINGS, text)
        })?;
        tracing::info!(%address, "serving metrics and probes");
    }
    let probes = settings.health.map(probe_listener).transpose()?;
    wiring::wire(&runtime, &settings, &turn, probes);
    tracing::info!(node = settings.node_name, version = env!("CARGO_PKG_VERSION"), "agent");
    let mut failed = Ok(());
    let ends = async {
        tokio::select! {
            () = until => {}
            fault = wait(&lock, &turn) => failed = Err(fault),
        }
    };
    runtime.run(ends).await?;
    failed
}

fn probe_listener(address: SocketAddr) -> Result<TcpListener, Fault> {
    let listen = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|error: std::io::Error| {
        let text = format!("health cannot be served at {address}: {error}; free the port or set --health-address");
        Fault::fatal(reason::SETTINGS, text)
    })
}

/// Begins the turn when no other agent acts for the node any more, and sees to it that it stays so. Ends only if that
/// cannot be known or is not so.
async fn wait(lock: &Lock, turn: &Turn) -> Fault {
    if !turn.has_begun() {
        tracing::info!("another agent acts for this node; until its end this one answers from checkpoints");
        if let Err(fault) = lock.take().await {
            return fault;
        }
        tracing::info!("the other agent has ended; this one acts for the node now");
        turn.begin();
    }
    lock.keep().await
}
