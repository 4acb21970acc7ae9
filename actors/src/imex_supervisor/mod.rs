//! Keeps the node's IMEX daemon at what the node must serve, by way of its runner, and says how it is.

mod link;
mod message;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::api::{DaemonStatus, LinksState, MissingPeer, PeerLinks};
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::{
    Daemon, DaemonState, DomainConfig, IDENTITY_CONTRACT, Identity, Sent, Shown, Step, desired, gss_settings, next,
    readiness, refusal,
};
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::Guard;
use heddle_proto::runner::State;
use heddle_proto::runner::runner_client::RunnerClient;
use tonic::transport::Channel;

use link::Order;
pub use message::{Message, Stepped};

use crate::agent::Tell;
use crate::channel_allocator::{self, Ready};
use crate::node_link::DomainView;
use crate::peer_identity::Identities;
use crate::runtime::{Actor, Addr, Cx};
use crate::slice_publisher::Usable;

/// How long a daemon that is not READY may stay so before it is reported: the states of a start pass by without a write
/// each, and an agent that has just begun does not withdraw what the one before it offered.
const SETTLE: Duration = Duration::from_millis(500);
/// Pause before a request that the runner failed is repeated.
const RETRY: Duration = Duration::from_millis(500);

/// What an [`ImexSupervisor`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// The runner's socket.
    pub socket: PathBuf,
    /// Whose word it takes to end a daemon.
    pub allocator: Addr<channel_allocator::Message>,
    /// How the daemon knows that a peer is one.
    pub authentication: Authentication,
    /// Who reports the daemon.
    pub status: Tell<DaemonStatus>,
    /// Who waits for the daemon.
    pub ready: Tell<Ready>,
    /// Who offers slots.
    pub usable: Tell<Usable>,
}

/// Owns the connection to the runner.
pub struct ImexSupervisor {
    settings: Settings,
    view: Option<DomainView>,
    inventory: Option<Inventory>,
    guard: Option<Guard>,
    identities: Identities,
    may_switch: Result<(), String>,
    runner: Option<RunnerClient<Channel>>,
    /// The runner's last word; after it is lost, its last word before.
    state: Option<State>,
    lost: String,
    sent: Sent,
    /// A request to the runner is on its way, or the pause after a failed one.
    busy: Option<Busy>,
    said_ready: Option<Ready>,
    said_status: Option<DaemonStatus>,
    said_usable: Option<Usable>,
    /// Since when the daemon is not READY.
    not_ready: Option<tokio::time::Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    Harmless,
    /// The allocator grants nothing until it hears of the daemon again: it must not hear of the old one.
    Disruptive,
}

impl ImexSupervisor {
    /// A supervisor that has not met its runner yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            view: None,
            inventory: None,
            guard: None,
            identities: Identities::default(),
            may_switch: Err("the claims of this node are not known yet".into()),
            runner: None,
            state: None,
            lost: "the IMEX runner of this node has not been reached yet".into(),
            sent: Sent::Nothing,
            busy: None,
            said_ready: None,
            said_status: None,
            said_usable: None,
            not_ready: None,
        }
    }

    fn desired(&self) -> Result<DomainConfig, String> {
        let view = self.view.as_ref().ok_or("this node's IMEXNode has not been read yet")?;
        let mut config = desired(&view.node, view.domain.as_deref())?;
        if self.settings.authentication == Authentication::Gss {
            config.settings.extend(gss_settings());
        }
        Ok(config)
    }

    /// Whether the daemon shows its peers a certificate that it is given.
    fn shows(&self) -> bool {
        matches!(self.settings.authentication, Authentication::DomainCa | Authentication::Files)
    }

    /// What the daemon shows its peers, by its runner's word.
    fn shown(&self) -> Shown {
        let Some(state) = &self.state else { return Shown::default() };
        Shown {
            contract: state.contract,
            name: state.identity.clone(),
            hash: state.identity_sha256.clone(),
            not_after: state.identity_not_after_unix,
        }
    }

    /// What the runner says while it can be reached.
    fn daemon(&self) -> Option<Daemon> {
        self.runner.as_ref()?;
        self.state.as_ref().map(daemon)
    }

    fn ready(&self) -> Ready {
        let wanted = self.desired()?;
        let daemon = self.daemon().ok_or_else(|| self.lost.clone())?;
        if !self.shows() {
            return readiness(&wanted, Some(&daemon)).map(|()| wanted.domain);
        }
        let (has, shown) = (self.identities.of(&wanted.domain), self.shown());
        match &has {
            // It is this that the start waits for.
            Err(why) if daemon.domain.as_deref() != Some(&wanted.domain) && shown.contract >= IDENTITY_CONTRACT => {
                return Err(why.clone());
            }
            _ if shown.contract >= IDENTITY_CONTRACT => readiness(&wanted, Some(&daemon))?,
            _ => {}
        }
        let now = jiff::Timestamp::now().as_second();
        shown.meets(&wanted.domain, has.map(|identity| &**identity), now).map(|()| wanted.domain)
    }

    /// Does what is to be done, unless something is being done.
    fn step(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(runner), Some(actual), None) = (&self.runner, self.daemon(), self.busy) else { return };
        let assigned = self.view.as_ref().is_some_and(|view| view.node.spec.domain.is_some());
        let wanted = match self.desired() {
            Ok(config) => Some(config),
            // Nothing is decided on half a view; but a node that is in no domain must serve none.
            Err(_) if assigned || self.view.is_none() => return,
            Err(_) => None,
        };
        let (config, disruptive) = match next(wanted.as_ref(), &self.sent, &actual, self.may_switch.is_err()) {
            Step::Nothing => return self.renew(cx),
            Step::WaitForLeave(why) => {
                tracing::debug!("{why}");
                return self.renew(cx);
            }
            Step::Stop => (Order::Stop, true),
            Step::Apply { config, disruptive } => match self.identity(&config.domain) {
                Ok(identity) => (Order::Serve(config, identity), disruptive),
                // A daemon without an identity would take any peer. What runs is left alone.
                Err(why) => return tracing::debug!("{why}"),
            },
        };
        let domain = match &config {
            Order::Serve(config, _) => config.domain.as_str(),
            Order::Stop => "none",
        };
        tracing::info!(domain, disruptive, "giving the IMEX runner its domain");
        self.busy = Some(if disruptive { Busy::Disruptive } else { Busy::Harmless });
        let apply = link::apply(runner.clone(), self.settings.allocator.clone(), config, disruptive);
        cx.spawn_then("apply", apply, Message::Stepped);
    }

    /// What the daemon is to show in the domain, if it is to show anything.
    fn identity(&self, domain: &str) -> Result<Option<Arc<Identity>>, String> {
        if !self.shows() {
            return Ok(None);
        }
        let contract = self.shown().contract;
        if contract < IDENTITY_CONTRACT {
            return Err(format!("the IMEX runner speaks contract {contract} and knows of no identities"));
        }
        self.identities.of(domain).map(|identity| Some(identity.clone()))
    }

    /// Gives the daemon another certificate in the domain that it serves, where it has one of the same name.
    fn renew(&mut self, cx: &mut Cx<'_, Self>) {
        let (Some(runner), Some(actual)) = (&self.runner, self.daemon()) else { return };
        let Some(domain) = actual.domain.clone().filter(|_| self.shows()) else { return };
        let Ok(identity) = self.identities.of(&domain) else { return };
        if !self.shown().renews(identity, &actual.state) {
            return;
        }
        tracing::info!(domain, "giving the IMEX runner another certificate");
        let renew = link::renew(runner.clone(), domain, identity.clone());
        self.busy = Some(Busy::Harmless);
        cx.spawn_then("renew", renew, Message::Stepped);
    }

    fn stepped(&mut self, stepped: Stepped, cx: &mut Cx<'_, Self>) {
        if self.busy.take() == Some(Busy::Disruptive) {
            // Said in any case, for it lifts the allocator's suspension.
            self.said_ready = None;
        }
        match stepped {
            Stepped::Applied(config, state) => {
                self.sent = config.map_or(Sent::Nothing, |config| Sent::Applied(*config));
                self.see(*state);
            }
            Stepped::Renewed(state) => self.see(*state),
            Stepped::Refused(config) => self.sent = Sent::Refused(*config),
            // The allocator has said so unasked too, or will say when it has changed its mind.
            Stepped::Held(why) => {
                tracing::info!("the IMEX daemon cannot be switched yet: {why}");
                self.pause(cx);
            }
            Stepped::Failed(why) => {
                tracing::warn!("the IMEX runner refused its domain: {why}");
                self.pause(cx);
            }
        }
    }

    fn pause(&mut self, cx: &mut Cx<'_, Self>) {
        self.busy = Some(Busy::Harmless);
        cx.after(RETRY, Message::Again);
    }

    /// Takes the runner's word, unless it is older than one known: requests and the watch answer side by side.
    fn see(&mut self, state: State) {
        if self.state.as_ref().is_none_or(|known| state.starts >= known.starts) {
            self.state = Some(state);
        }
    }

    /// Says what is to be said, where it differs from what was said.
    fn report(&mut self, cx: &mut Cx<'_, Self>) {
        if self.busy == Some(Busy::Disruptive) {
            return;
        }
        let ready = self.ready();
        if self.said_ready.as_ref() != Some(&ready) {
            match &ready {
                Ok(domain) => tracing::info!(domain, "the IMEX daemon is READY"),
                Err(why) => tracing::info!("IMEX cannot be used on this node: {why}"),
            }
            (self.settings.ready)(ready.clone());
            self.said_ready = Some(ready.clone());
        }
        let now = tokio::time::Instant::now();
        if ready.is_ok() {
            self.not_ready = None;
        } else if self.not_ready.is_none() {
            self.not_ready = Some(now);
            cx.after(SETTLE, Message::Due);
        }
        let since = self.not_ready.map_or(Duration::MAX, |since| now.duration_since(since));
        if since >= SETTLE {
            self.report_status(&ready);
            self.report_usable(ready);
        }
    }

    fn report_status(&mut self, ready: &Ready) {
        // A runner that was never met says nothing, and the object keeps what it said before the agent's start.
        let Some(state) = &self.state else { return };
        let mut status = DaemonStatus {
            message: ready.as_ref().err().cloned(),
            recovery_action: self.inventory.as_ref().and_then(|inventory| inventory.recovery_action.clone()),
            ..daemon_status(state)
        };
        if self.runner.is_none() {
            self.unhear_links(&mut status);
            status.state = DaemonState::Unavailable.to_string();
            status.since = self
                .said_status
                .as_ref()
                .filter(|said| said.state == status.state)
                .map_or_else(|| jiff::Timestamp::now().to_string(), |said| said.since.clone());
        }
        if self.said_status.as_ref() != Some(&status) {
            (self.settings.status)(status.clone());
            self.said_status = Some(status);
        }
    }

    /// Nobody can be asked for the connections while the runner is away; what it said last stays.
    fn unhear_links(&self, status: &mut DaemonStatus) {
        let Some(links) = &mut status.links else { return };
        let said = self.said_status.as_ref().and_then(|said| said.links.as_ref());
        let said = said.filter(|said| said.state == LinksState::Unknown).map(|said| said.since.clone());
        links.since = said.unwrap_or_else(|| jiff::Timestamp::now().to_string());
        links.state = LinksState::Unknown;
        links.message = Some(self.lost.clone());
    }

    /// A slot can be used where the fabric and the daemon can and the second door is closed, and where there is no
    /// fabric: it then gives no channel.
    fn report_usable(&mut self, ready: Ready) {
        let Some(inventory) = &self.inventory else { return };
        // What another agent has published stays until it is known whether it may.
        let Some(guard) = self.guard.as_ref().filter(|guard| !guard.awaits_look()) else { return };
        let view = self.view.as_ref();
        let refused =
            || view.and_then(|view| refusal(&view.node)).filter(|_| matches!(inventory.fabric, Fabric::Ready(_)));
        let withheld = guard.withholds().filter(|_| inventory.fabric != Fabric::None).or_else(refused);
        let reason = match (&inventory.fabric, ready) {
            (Fabric::None, _) | (Fabric::Ready(_), Ok(_)) => None,
            (Fabric::Ready(_), Err(why)) => Some(why),
            (Fabric::Pending(what), _) => Some(format!("the NVLink fabric is coming up: {what}")),
            (Fabric::Unhealthy(why), _) => Some(format!("the NVLink fabric is not healthy: {why}")),
        };
        let withheld_for = withheld.as_ref().map(|fault| fault.reason);
        let reason = withheld.map(|fault| fault.message).or(reason);
        let usable = Usable {
            usable: reason.is_none(),
            withheld: withheld_for,
            domain: view.and_then(|view| view.node.spec.domain.clone()),
            kind: view.and_then(|view| view.domain.as_ref()).map(|domain| domain.spec.kind),
            reason: reason.unwrap_or_default(),
        };
        if self.said_usable.as_ref() != Some(&usable) {
            (self.settings.usable)(usable.clone());
            self.said_usable = Some(usable);
        }
    }
}

fn daemon(state: &State) -> Daemon {
    Daemon {
        domain: Some(state.domain.clone()).filter(|domain| !domain.is_empty()),
        state: DaemonState::parse(&state.daemon_state),
        index: state.daemon_index,
        node_map_hash: state.node_map_sha256.clone(),
        message: state.message.clone(),
        listens_at: state.listens_at.parse().ok(),
    }
}

fn daemon_status(state: &State) -> DaemonStatus {
    DaemonStatus {
        state: state.daemon_state.clone(),
        domain: Some(state.domain.clone()).filter(|domain| !domain.is_empty()),
        index: state.daemon_index,
        since: time(state.since_unix_ms),
        version: state.daemon_version.clone(),
        peers_connected: state.peers_connected,
        links: peer_links(state),
        certificate_not_after: Some(state.identity_not_after_unix)
            .filter(|until| *until > 0)
            .and_then(|until| jiff::Timestamp::from_second(until).ok().map(|until| until.to_string())),
        ..DaemonStatus::default()
    }
}

/// None before the daemon was asked, and from a runner that cannot tell.
fn peer_links(state: &State) -> Option<PeerLinks> {
    if state.links_since_unix_ms == 0 {
        return None;
    }
    let missing = state.missing.iter().map(|(index, word)| MissingPeer { index: *index, state: word.clone() });
    let mut missing: Vec<_> = missing.collect();
    missing.sort();
    let mut connected = state.connected.clone();
    connected.sort_unstable();
    let unknown = Some(state.links_unknown.clone()).filter(|why| !why.is_empty());
    Some(PeerLinks {
        state: if unknown.is_some() { LinksState::Unknown } else { LinksState::Known },
        since: time(state.links_since_unix_ms),
        message: unknown,
        connected,
        missing,
    })
}

fn time(unix_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(unix_ms).map(|at| at.to_string()).unwrap_or_default()
}

impl Actor for ImexSupervisor {
    const KIND: &'static str = "ImexSupervisor";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let link = link::run(self.settings.socket.clone(), cx.address());
        cx.spawn("runner link", link);
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::View(view) => self.view = Some(view),
            Message::Inventory(inventory) => self.inventory = Some(inventory),
            Message::Guard(guard) => self.guard = Some(guard),
            Message::Identities(identities) => self.identities = identities,
            Message::MaySwitch(may) => self.may_switch = may,
            Message::Connected(runner) => {
                tracing::info!("the IMEX runner is reached");
                self.runner = Some(runner);
                // Another runner counts its starts anew, and may run another configuration.
                self.state = None;
                self.sent = Sent::Nothing;
            }
            Message::State(state) => self.see(*state),
            Message::Lost(why) => {
                self.runner = None;
                self.lost = why;
            }
            Message::Stepped(stepped) => self.stepped(stepped, cx),
            Message::Due => {}
            Message::Again => self.busy = None,
        }
        self.step(cx);
        self.report(cx);
        Ok(())
    }
}
