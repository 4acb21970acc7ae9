//! Keeps the node's IMEX daemon at what the node must serve, by way of its runner, and says how it is. Of a daemon that the
//! host runs it only says how it is.

mod host;
mod link;
mod message;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::api::{DaemonStatus, ImexMode};
use heddle_core::clique::CliqueId;
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::{
    Daemon, DaemonState, DomainConfig, HostDaemon, IDENTITY_CONTRACT, Identity, Sent, Shown, Standing, Step, desired,
    gss_settings, next, readiness, shared_domain_name,
};
use heddle_core::invariants::Life;
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::Guard;
use heddle_proto::runner::State;
use heddle_proto::runner::runner_client::RunnerClient;
use tonic::transport::Channel;

pub use host::{HostImex, HostSeen, HostTiming};
use link::Order;
pub use message::{Message, Stepped};

use crate::agent::Tell;
use crate::channel_allocator::{self, Ready};
use crate::node_link::DomainView;
use crate::peer_identity::Identities;
use crate::runtime::{Actor, Addr, Cx, Task};
use crate::slice_publisher::Usable;

/// Pause before a request that the runner failed is repeated.
const RETRY: Duration = Duration::from_millis(500);

/// What an [`ImexSupervisor`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// The runner's socket.
    pub socket: PathBuf,
    /// Where a daemon that the host runs is asked.
    pub host: HostImex,
    /// Who runs the daemon; none while that is not known.
    pub standing: Option<Standing>,
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
    /// Who watches over the invariants: the daemon's life, and the domain that it serves.
    pub running: Tell<Running>,
}

/// The daemon that a runner runs, by its word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Its life.
    pub life: Life,
    /// The IMEX domain that it serves; none while none runs.
    pub domain: Option<String>,
}

/// Owns the connection to the runner.
pub struct ImexSupervisor {
    settings: Settings,
    view: Option<DomainView>,
    inventory: Option<Inventory>,
    guard: Option<Guard>,
    identities: Identities,
    may_switch: Result<(), String>,
    standing: Option<Standing>,
    /// What speaks to the runner, or to the host's daemon.
    link: Option<Task>,
    host: Option<HostDaemon>,
    /// The last clique that was known: the shared domain of a host's daemon is its.
    clique: Option<CliqueId>,
    runner: Option<RunnerClient<Channel>>,
    /// Why the runner did not take what it was given last.
    refused: Option<String>,
    /// The runner's last word; after it is lost, its last word before.
    state: Option<State>,
    lost: String,
    sent: Sent,
    /// A request to the runner is on its way, or the pause after a failed one.
    busy: Option<Busy>,
    said_ready: Option<Ready>,
    said_status: Option<DaemonStatus>,
    said_at: Option<tokio::time::Instant>,
    /// Details are to be reported at the end of their pause.
    details_due: bool,
    said_usable: Option<Usable>,
    /// Since when the daemon is not READY.
    not_ready: Option<tokio::time::Instant>,
    /// Runners that were met.
    runners: u32,
    said_running: Option<Running>,
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
            standing: settings.standing.clone(),
            settings,
            link: None,
            host: None,
            clique: None,
            refused: None,
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
            said_at: None,
            details_due: false,
            said_usable: None,
            not_ready: None,
            runners: 0,
            said_running: None,
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
        self.state.as_ref().map(shown).unwrap_or_default()
    }

    /// What the runner says while it can be reached.
    fn daemon(&self) -> Option<Daemon> {
        self.runner.as_ref()?;
        self.state.as_ref().map(daemon)
    }

    /// Who runs the daemon.
    fn mode(&self) -> Option<ImexMode> {
        self.standing.as_ref().map(|standing| standing.acts)
    }

    /// The daemon that the host runs serves the shared domain of the clique, whatever its host calls that.
    fn host_ready(&self) -> Ready {
        let clique = self.clique.as_ref().ok_or("the NVLink clique of this node is not known yet")?;
        let host = self.host.as_ref().ok_or("the host's IMEX daemon has not been asked yet")?;
        host.readiness().map(|()| shared_domain_name(clique))
    }

    fn ready(&self) -> Ready {
        match self.mode() {
            None => return Err("it is not known yet who runs the IMEX daemon of this node".into()),
            Some(ImexMode::HostManaged) => return self.host_ready(),
            Some(ImexMode::DriverManaged) => {}
        }
        let wanted = self.desired()?;
        let daemon = self.daemon().ok_or_else(|| self.lost.clone())?;
        if let Some(why) = self.refused.as_ref().filter(|_| daemon.domain.as_deref() != Some(&wanted.domain)) {
            return Err(format!("the IMEX runner of this node has refused domain {}: {why}", wanted.domain));
        }
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

    /// Speaks to who runs the daemon.
    fn aim(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(link) = self.link.take() {
            link.cancel();
        }
        (self.runner, self.state, self.host, self.refused) = (None, None, None, None);
        self.not_ready = None;
        self.sent = Sent::Nothing;
        self.link = match self.mode() {
            None => None,
            Some(ImexMode::DriverManaged) => {
                let link = link::run(self.settings.socket.clone(), cx.address());
                Some(cx.spawn("runner link", link))
            }
            Some(ImexMode::HostManaged) => {
                Some(cx.spawn("host link", host::run(self.settings.host.clone(), cx.address())))
            }
        };
    }

    /// Does what is to be done, unless something is being done.
    fn step(&mut self, cx: &mut Cx<'_, Self>) {
        if self.mode() != Some(ImexMode::DriverManaged) {
            return;
        }
        let (Some(runner), Some(actual), None) = (&self.runner, self.daemon(), self.busy) else { return };
        let assigned = self.view.as_ref().is_some_and(|view| view.node.spec.domain.is_some());
        let wanted = match self.desired() {
            Ok(config) => Some(config),
            // Nothing is decided on half a view; but a node that is in no domain must serve none.
            Err(_) if assigned || self.view.is_none() => return,
            Err(_) => None,
        };
        let sent = self.sent_as_named();
        let (config, disruptive) = match next(wanted.as_ref(), &sent, &actual, self.may_switch.is_err()) {
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

    /// What was sent, where a certificate of another name has come since: that takes a restart, as the runner would say.
    fn sent_as_named(&self) -> Sent {
        match &self.sent {
            Sent::Applied(config) if self.shows() => {
                let (has, shown) = (self.identities.of(&config.domain), self.shown());
                let renamed = has.is_ok_and(|identity| !shown.name.is_empty() && shown.name != identity.name);
                if renamed { Sent::Refused(config.clone()) } else { self.sent.clone() }
            }
            sent => sent.clone(),
        }
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
        if self.mode() != Some(ImexMode::DriverManaged) {
            return;
        }
        if matches!(stepped, Stepped::Applied(..) | Stepped::Renewed(_) | Stepped::Refused(_)) {
            self.refused = None;
        }
        match stepped {
            Stepped::Applied(config, state) => {
                let given = config.map(|config| *config);
                self.sent = given.clone().map_or(Sent::Nothing, Sent::Applied);
                // A runner that says yes and is not as it was told is not told again at once.
                if next(given.as_ref(), &self.sent, &daemon(&state), false) != Step::Nothing {
                    self.pause(cx);
                }
                self.see(*state);
            }
            Stepped::Renewed(state) => {
                let given = self.identities.of(&state.domain);
                if given.is_ok_and(|identity| shown(&state).renews(identity, &DaemonState::parse(&state.daemon_state)))
                {
                    self.pause(cx);
                }
                self.see(*state);
            }
            Stepped::Refused(config) => self.sent = Sent::Refused(*config),
            // The allocator has said so unasked too, or will say when it has changed its mind.
            Stepped::Held(why) => {
                tracing::info!("the IMEX daemon cannot be switched yet: {why}");
                self.pause(cx);
            }
            Stepped::Failed(why) => {
                if self.refused.as_ref() != Some(&why) {
                    tracing::warn!("the IMEX runner refused its domain: {why}");
                }
                self.refused = Some(why);
                self.pause(cx);
            }
        }
    }

    fn tell_what_runs(&mut self) {
        let Some(state) = self.state.as_ref().filter(|_| self.mode() == Some(ImexMode::DriverManaged)) else { return };
        let life = Life { runner: self.runners, pid: state.daemon_pid, ended: state.ended };
        let domain = Some(state.domain.clone()).filter(|domain| life.pid != 0 && !domain.is_empty());
        let running = Running { life, domain };
        if self.said_running.as_ref() != Some(&running) {
            (self.settings.running)(running.clone());
            self.said_running = Some(running);
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
}

fn shown(state: &State) -> Shown {
    Shown {
        contract: state.contract,
        name: state.identity.clone(),
        hash: state.identity_sha256.clone(),
        not_after: state.identity_not_after_unix,
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

impl Actor for ImexSupervisor {
    const KIND: &'static str = "ImexSupervisor";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.aim(cx);
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::View(view) => self.view = Some(view),
            Message::Inventory(inventory) => {
                if let Fabric::Ready(clique) = &inventory.fabric {
                    self.clique = Some(*clique);
                }
                self.inventory = Some(inventory);
            }
            Message::Guard(guard) => self.guard = Some(guard),
            Message::Identities(identities) => self.identities = identities,
            Message::MaySwitch(may) => self.may_switch = may,
            Message::Standing(standing) => {
                let before = self.mode();
                self.standing = Some(standing);
                if self.mode() != before {
                    self.aim(cx);
                }
            }
            // Of a link that was cancelled a last word may still arrive.
            Message::Host(_) if self.mode() != Some(ImexMode::HostManaged) => {}
            Message::Connected(_) | Message::State(_) | Message::Lost(_)
                if self.mode() != Some(ImexMode::DriverManaged) => {}
            Message::Host(seen) => {
                self.state = Some(seen.state);
                self.host = Some(seen.daemon);
            }
            Message::Connected(runner) => {
                tracing::info!("the IMEX runner is reached");
                self.runner = Some(runner);
                self.runners += 1;
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
            Message::Details => self.details_due = false,
            Message::Again => self.busy = None,
        }
        self.tell_what_runs();
        self.step(cx);
        self.report(cx);
        Ok(())
    }
}
