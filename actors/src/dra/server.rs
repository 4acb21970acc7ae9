//! The agent's face to the kubelet: sockets, registration, and one preparer per claim.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use heddle_core::api::IMEXNodeStatus;
use heddle_core::claim::ClaimKey;
use heddle_core::fault::{Class, Fault, reason};
use heddle_core::inventory::Inventory;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Client;

use super::cdi_store::CdiStore;
use super::checkpoint_store::CheckpointStore;
use super::claim_preparer::{self, ClaimPreparer, PrepareReply, UnprepareReply};
use super::context::{Context, Domains, Driver};
use super::endpoint::Endpoint;
use super::neighbours::Neighbours;
use super::standby::Standby;
use super::toolkit::ToolkitStore;
use super::{HealthBoard, events, sockets, watch};
use crate::channel_allocator;
use crate::nvml::devices::Devices;
use crate::runtime::{self, Actor, Addr, Cx, Overflow, Reply, Scope, SendError, Spec, Task, Turn};

/// Pause before a socket or folder that could not be put back is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What a [`DraServer`] is told of its node.
#[derive(Clone, Debug)]
pub struct DraSettings {
    /// Name of the Node, and of the pools.
    pub node_name: String,
    /// UID of the agent's pod, which tells the sockets of two agents apart; may be empty.
    pub pod_uid: String,
    /// `/var/lib/kubelet/plugins`.
    pub plugins_dir: PathBuf,
    /// `/var/lib/kubelet/plugins_registry`.
    pub registry_dir: PathBuf,
    /// `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// `/etc/cdi`, where the container toolkit may have put its own file.
    pub cdi_static_dir: PathBuf,
    /// Where checkpoints are kept.
    pub state_dir: PathBuf,
    /// Whether whole GPUs are served too.
    pub gpus: bool,
    /// The node's `/proc`.
    pub proc_root: PathBuf,
}

impl DraSettings {
    /// The drivers that are served.
    pub fn drivers(&self) -> Vec<Driver> {
        let mut drivers = vec![Driver::ComputeDomain];
        drivers.extend(self.gpus.then_some(Driver::Gpu));
        drivers
    }

    /// The service socket and the registration socket of a driver.
    pub(super) fn sockets(&self, driver: Driver) -> (PathBuf, PathBuf) {
        let (name, pod_uid) = (driver.name(), &self.pod_uid);
        let service = sockets::service_path(&self.plugins_dir.join(name), name, pod_uid);
        (service, sockets::registration_path(&self.registry_dir, name, pod_uid))
    }
}

/// What a [`DraServer`] is told.
#[derive(Debug)]
pub enum Message {
    /// From the kubelet.
    Prepare {
        /// Who was asked.
        driver: Driver,
        /// The claim.
        claim: ClaimKey,
        /// Others of the same pod are asked for in the same call.
        together: bool,
        /// Where the answer goes.
        reply: PrepareReply,
    },
    /// From the kubelet.
    Unprepare {
        /// Who was asked.
        driver: Driver,
        /// The claim.
        claim: ClaimKey,
        /// Where the answer goes.
        reply: UnprepareReply,
    },
    /// What a claim still waits for, in words.
    Missing {
        /// Who was asked.
        driver: Driver,
        /// UID of the claim.
        uid: String,
        /// Where the answer goes.
        reply: Reply<Fault>,
    },
    /// From the kubelet: it knows the driver now, or why it does not want it.
    Registered {
        /// Which one.
        driver: Driver,
        /// Why not.
        refused: Option<String>,
    },
    /// From the inventory.
    Inventory(Inventory),
    /// By which lost checkpoints are made anew.
    Rebuild {
        /// The node's own object.
        status: Box<IMEXNodeStatus>,
        /// All claims that exist.
        claims: Vec<ResourceClaim>,
    },
    /// From the ChannelAllocator: it has been built anew and does not know what the claims hold.
    Restore,
    /// No other agent acts for the node any more: this one does.
    Turn,
    /// Something may have happened to a CDI file or a socket.
    FilesChanged,
    /// A claim of an earlier boot does not exist any more.
    Leftover {
        /// Who prepared it.
        driver: Driver,
        /// The claim.
        claim: ClaimKey,
    },
    /// Nothing is under way for a claim.
    AtRest {
        /// Who was asked.
        driver: Driver,
        /// UID of the claim.
        uid: String,
        /// Calls that its preparer has taken.
        taken: u64,
    },
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "Prepare",
            Self::Unprepare { .. } => "Unprepare",
            Self::Missing { .. } => "Missing",
            Self::Registered { .. } => "Registered",
            Self::Inventory(_) => "Inventory",
            Self::Rebuild { .. } => "Rebuild",
            Self::Restore => "Restore",
            Self::Turn => "Turn",
            Self::FilesChanged => "FilesChanged",
            Self::Leftover { .. } => "Leftover",
            Self::AtRest { .. } => "AtRest",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::Inventory(_) | Self::Restore | Self::FilesChanged => Overflow::Replace,
            _ => Overflow::Reject,
        }
    }
}

/// What a [`DraServer`] is built from.
#[derive(Clone)]
pub struct DraDependencies {
    /// The node.
    pub settings: DraSettings,
    /// The API.
    pub client: Client,
    /// Who gives channels.
    pub allocator: Addr<channel_allocator::Message>,
    /// Who writes Events on claims.
    pub events: Addr<events::Message>,
    /// What the kubelet is told of the devices' health.
    pub health: HealthBoard,
    /// Below which the preparers run.
    pub scope: Scope,
    /// When this agent acts for the node. Before, it answers from checkpoints, and writes nothing.
    pub turn: Turn,
    /// What the inventory said last, for a server that is built while it runs.
    pub inventory: Option<Inventory>,
}

/// Owns the sockets of all drivers and finds the preparer of a claim.
pub struct DraServer {
    pub(super) context: Rc<Context>,
    pub(super) settings: DraSettings,
    health: HealthBoard,
    claims: Scope,
    pub(super) preparers: BTreeMap<(Driver, String), Preparer>,
    endpoints: Vec<Endpoint>,
    turn: Turn,
    /// While another agent acts for the node.
    standby: Option<Standby>,
    /// UIDs of claims whose checkpoints are lost. While there are any, a new ChannelAllocator is told nothing, and so
    /// leaves nothing: their containers may run.
    pub(super) lost: BTreeSet<String>,
    /// What tells of the lost claims is being asked for.
    pub(super) seeking: Option<Task>,
}

pub(super) struct Preparer {
    address: Addr<claim_preparer::Message>,
    scope: Scope,
    /// Calls that were sent to it.
    sent: u64,
}

impl DraServer {
    /// How a server is looked after. After a restart the kubelet may ask for the claims of all pods of a node at once: 256
    /// pods with a few claims each must find room.
    pub fn spec() -> Spec {
        Spec { mailbox: 2048, gates_readiness: true, ..Spec::default() }
    }

    /// A server that has looked at its folders.
    ///
    /// # Errors
    /// A fatal fault if one of them is missing or cannot be written.
    pub fn new(dependencies: DraDependencies) -> Result<Self, Fault> {
        let DraDependencies { settings, client, allocator, events, health, scope, turn, inventory } = dependencies;
        let mut checkpoints = BTreeMap::new();
        for driver in settings.drivers() {
            checkpoints.insert(driver, CheckpointStore::open(&settings.state_dir, driver.name())?);
        }
        let context = Context {
            node: settings.node_name.clone(),
            client,
            allocator,
            devices: Devices::new(&settings.proc_root),
            cdi: CdiStore::open(&settings.cdi_dir)?,
            toolkit: ToolkitStore::new(vec![settings.cdi_static_dir.clone(), settings.cdi_dir.clone()]),
            checkpoints,
            events,
            inventory: tokio::sync::watch::Sender::new(inventory),
            domains: Domains::default(),
            neighbours: Neighbours::default(),
            denied: Cell::default(),
            granted: RefCell::default(),
        };
        Ok(Self {
            context: Rc::new(context),
            settings,
            health,
            claims: scope.child("claims"),
            preparers: BTreeMap::new(),
            endpoints: Vec::new(),
            turn,
            standby: None,
            lost: BTreeSet::new(),
            seeking: None,
        })
    }

    fn listen(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        if !self.settings.registry_dir.is_dir() {
            return Err(Fault::fatal(
                reason::NODE_IO,
                format!(
                    "the kubelet's plugin registry {} does not exist; is the kubelet running, and is --kubelet-registry-dir right?",
                    self.settings.registry_dir.display()
                ),
            ));
        }
        for driver in self.settings.drivers() {
            let mut endpoint = Endpoint::new(&self.settings, driver, self.health.clone());
            endpoint.remove_dead();
            endpoint.open(cx).map_err(|fault| Fault { class: Class::Fatal, ..fault })?;
            self.endpoints.push(endpoint);
        }
        Ok(())
    }

    fn watch(&self, cx: &mut Cx<'_, Self>) {
        let state = &self.settings.state_dir;
        // Not the checkpoints themselves: each is read before it is used, and the agent writes them all the time.
        let mut folders = vec![state.clone(), state.join("claims")];
        folders.extend([self.context.cdi.path().to_owned(), self.settings.registry_dir.clone()]);
        folders.extend(self.settings.drivers().iter().map(|driver| self.settings.plugins_dir.join(driver.name())));
        let me = cx.address();
        cx.spawn("watch", async move {
            watch::watch(folders, || me.tell(Message::FilesChanged)).await;
            Ok(())
        });
        if !self.settings.gpus {
            return;
        }
        // Each by itself: one that does not exist is looked for every second, and the other one need not be.
        for folder in self.context.toolkit.folders().to_vec() {
            let context = self.context.clone();
            cx.spawn("watch toolkit", async move {
                watch::watch(vec![folder], || context.toolkit.look()).await;
                Ok(())
            });
        }
    }

    fn files_changed(&mut self, cx: &mut Cx<'_, Self>) {
        let mut failed = false;
        if self.standby.is_none() {
            if let Err(fault) = self.guard_state(cx) {
                tracing::warn!("the folder of the claims' checkpoints is gone: {fault}");
                failed = true;
            }
            for name in self.context.cdi.repair() {
                tracing::warn!(file = name, "a CDI file was wiped and is put back");
            }
        }
        for endpoint in self.endpoints.iter_mut().filter(|endpoint| !endpoint.stands()) {
            match endpoint.open(cx) {
                Ok(()) => tracing::warn!(driver = endpoint.driver().name(), "a socket was gone and is put back"),
                Err(fault) => {
                    tracing::warn!("a socket is gone: {fault}");
                    failed = true;
                }
            }
        }
        if failed {
            cx.after(RETRY, Message::FilesChanged);
        }
    }

    fn stand_by(&mut self, cx: &mut Cx<'_, Self>) {
        self.standby = Some(Standby::default());
        let turn = self.turn.clone();
        cx.spawn_then("turn", async move { turn.begun().await }, |()| Message::Turn);
    }

    /// The other agent's files are ours now, and so are the calls that waited for its end.
    fn take_over(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let Some(standby) = self.standby.take() else { return Ok(()) };
        self.recover(cx)?;
        for call in standby.calls() {
            self.handle(call, cx)?;
        }
        Ok(())
    }

    /// The claim's preparer, made if there is none.
    fn tell_preparer(
        &mut self,
        driver: Driver,
        claim: ClaimKey,
        mut message: claim_preparer::Message,
        cx: &mut Cx<'_, Self>,
    ) {
        let key = (driver, claim.uid.clone());
        if let Some(preparer) = self.preparers.get_mut(&key) {
            preparer.sent += 1;
            match preparer.address.send(message) {
                Ok(()) => return,
                Err(SendError::Stopped(refused)) => message = refused,
                // Its asker is told that the claim is busy by the reply that is dropped here.
                Err(SendError::Full(_)) => {
                    preparer.sent -= 1;
                    return;
                }
            }
        }
        let scope = self.claims.child(&claim.uid);
        let (context, server, taken) = (self.context.clone(), cx.address(), Rc::new(Cell::new(0)));
        let spec = Spec { name: claim.uid.clone(), mailbox: 64, ..Spec::default() };
        let address = scope.supervise(spec, move || {
            Ok(ClaimPreparer::new(context.clone(), server.clone(), driver, claim.clone(), taken.clone()))
        });
        address.tell(message);
        self.preparers.insert(key, Preparer { address, scope, sent: 1 });
    }

    fn at_rest(&mut self, driver: Driver, uid: String, taken: u64) {
        let key = (driver, uid);
        if self.preparers.get(&key).is_some_and(|preparer| preparer.sent == taken)
            && let Some(preparer) = self.preparers.remove(&key)
        {
            preparer.scope.stop();
        }
    }
}

impl Actor for DraServer {
    const KIND: &'static str = "DraServer";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match self.turn.has_begun() {
            true => self.recover(cx)?,
            false => self.stand_by(cx),
        }
        self.listen(cx)?;
        self.watch(cx);
        cx.ready();
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let message = match &mut self.standby {
            Some(standby) => match standby.hear(message, &self.context) {
                Some(message) => message,
                None => return Ok(()),
            },
            None => message,
        };
        match message {
            Message::Turn => self.take_over(cx)?,
            Message::Prepare { driver, claim, together, reply } => {
                self.tell_preparer(driver, claim, claim_preparer::Message::Prepare { together, reply }, cx);
            }
            Message::Unprepare { driver, claim, reply } => {
                // It undoes whatever there is; nothing must come back after it.
                self.lost.remove(&claim.uid);
                self.tell_preparer(driver, claim, claim_preparer::Message::Unprepare(reply), cx);
            }
            Message::Missing { driver, uid, reply } => {
                if let Some(preparer) = self.preparers.get(&(driver, uid)) {
                    preparer.address.tell(claim_preparer::Message::Missing(reply));
                }
            }
            Message::Registered { driver, refused: None } => {
                tracing::info!(driver = driver.name(), "registered with the kubelet");
            }
            Message::Registered { driver, refused: Some(why) } => {
                tracing::error!(driver = driver.name(), "the kubelet refuses the driver: {why:.500}");
            }
            Message::Inventory(inventory) => {
                let before = self.context.inventory.send_replace(Some(inventory));
                if before != *self.context.inventory.borrow()
                    && let Err(fault) = self.renew_files(cx)
                {
                    tracing::warn!("the claims' files could not be looked at after a change of the driver: {fault}");
                }
            }
            Message::Rebuild { status, claims } => self.rebuild(&status, &claims, cx)?,
            Message::Restore => self.restore(cx)?,
            Message::FilesChanged => self.files_changed(cx),
            Message::Leftover { driver, claim } => {
                tracing::info!(%claim, uid = claim.uid, "a claim that is gone is undone");
                let (reply, _) = Reply::channel();
                self.tell_preparer(driver, claim, claim_preparer::Message::Unprepare(reply), cx);
            }
            Message::AtRest { driver, uid, taken } => self.at_rest(driver, uid, taken),
        }
        Ok(())
    }

    fn stopping(&mut self) {
        // The kubelet forgets an agent whose registration socket goes; the next one's is there already, or comes.
        for endpoint in &mut self.endpoints {
            endpoint.close();
        }
    }
}

impl Drop for DraServer {
    fn drop(&mut self) {
        self.claims.stop();
    }
}
