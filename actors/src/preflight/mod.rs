//! Gathers what is to be known of a node before, and while, an agent serves it.

mod actor;
mod api;
mod driver;
mod node;
mod processes;

use std::collections::BTreeSet;
use std::path::PathBuf;

use heddle_core::api::ImexMode;
use heddle_core::inventory::Access;
use heddle_core::preflight::{CdiFacts, Facts, PolicyFacts};
use heddle_core::runtime_guard::{Guard, Mode, judge};
use kube::Client;

pub use actor::{Message, Preflight, Settings as ActorSettings};

use crate::host_root::HostRoot;
use crate::runtime_guard::{Places, Reader};

/// Where things are on the node, as the agent is told too.
#[derive(Clone)]
pub struct Settings {
    /// The API; where there is none, what it would tell is not known.
    pub client: Option<Client>,
    /// Name of the Node, where it is known.
    pub node_name: Option<String>,
    /// UID of the agent's own pod, if this is an agent: its sockets are no rivals.
    pub pod_uid: Option<String>,
    /// Where the driver's programs and libraries are.
    pub driver_root: PathBuf,
    /// The node's `/proc`.
    pub proc_root: PathBuf,
    /// The kind of access over NVLink whose partition is the clique.
    pub access: Access,
    /// `/var/lib/kubelet/plugins`.
    pub plugins_dir: PathBuf,
    /// `/var/lib/kubelet/plugins_registry`.
    pub registry_dir: PathBuf,
    /// `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// Where checkpoints are kept.
    pub state_dir: PathBuf,
    /// Where the IMEX runner is reached; its configuration is in the same folder.
    pub runner_socket: PathBuf,
    /// Who runs the IMEX daemon.
    pub imex_mode: ImexMode,
    /// Slots to publish.
    pub slots: u32,
    /// The host's `/`.
    pub host: HostRoot,
    /// Where the container runtime's and the container toolkit's files are.
    pub places: Places,
    /// What is done where the container runtime gives pods channels by itself.
    pub runtime_guard: Mode,
    /// The container runtime's version, where an operator says it.
    pub container_runtime_version: Option<String>,
}

/// Looks at everything. What takes long or may hang is done on threads that may block.
///
/// # Errors
/// A thread has panicked; in words.
pub async fn gather(settings: &Settings) -> Result<Facts, String> {
    let node = settings.node_name.as_deref();
    let told = match (&settings.client, node) {
        (Some(client), Some(node)) => api::ask(client.clone(), node).await,
        _ => api::Told::default(),
    };
    let settings = settings.clone();
    let looked = tokio::task::spawn_blocking(move || look(&settings, told));
    looked.await.map_err(|panic| format!("the node could not be looked at: {panic}"))
}

fn look(settings: &Settings, told: api::Told) -> Facts {
    let mut reader = Reader::new(settings.host.clone(), settings.places.clone());
    let guard = match settings.runtime_guard {
        Mode::Off => Guard::Off,
        mode => Guard::new(mode).seen(judge(&reader.read().facts)),
    };
    let channels = node::channels(settings);
    let version = settings.container_runtime_version.clone().or(told.container_runtime);
    let (driver, inventory) = driver::look(settings);
    Facts {
        driver,
        inventory,
        programs: driver::programs(settings),
        guard,
        cdi: CdiFacts {
            files: reader.container_runtime(&mut BTreeSet::new()),
            version: version.or_else(|| node::containerd_version(&settings.host)),
            folder: settings.host.host_path(&settings.cdi_dir),
            unwritable: node::unwritable(&settings.cdi_dir).err(),
        },
        kubelet: node::kubelet(settings),
        rival: node::rivals(settings, told.foreign_devices),
        policies: PolicyFacts { missing: told.missing_policies },
        daemon: processes::daemons(settings, channels.capability.as_ref().ok().copied()),
        host: node::host(settings),
        channels,
    }
}
