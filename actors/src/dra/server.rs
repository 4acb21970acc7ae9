//! The agent's face to the kubelet: sockets, registration, and one preparer per claim.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use heddle_core::claim::ClaimKey;
use heddle_core::fault::{Class, Fault, reason};

use super::cdi_store::CdiStore;
use super::checkpoint_store::CheckpointStore;
use super::claim_preparer::{self, ClaimPreparer};
use super::context::{Context, Domains, Driver};
use super::endpoint::Endpoint;
use super::message::Message;
use super::neighbours::Neighbours;
use super::settings::{DraDependencies, DraSettings};
use super::standby::Standby;
use super::toolkit::ToolkitStore;
use super::{HealthBoard, watch};
use crate::nvml::devices::Devices;
use crate::runtime::{Actor, Addr, Cx, Reply, Scope, SendError, Spec, Task, Turn};

/// Pause before a socket or folder that could not be put back is tried again.
const RETRY: Duration = Duration::from_secs(1);

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
