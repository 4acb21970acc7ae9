//! The life of a daemon. What it is asked, and how its answers are told, is in `asking`; what the agent wants, in `orders`.

mod asking;
mod orders;

use std::io;
use std::net::{IpAddr, TcpListener};
use std::time::{Duration, SystemTime};

use heddle_core::fault::Fault;
use heddle_core::imex::{BEAT_CONTRACT, BIND, DaemonState, DomainConfig, Identity, OwnRow, shown_name};
use heddle_proto::runner::State;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::child::{Daemon, Record, start_time};
use super::ctl;
use super::door::Door;
use super::enter::Join;
use super::files::Files;
use super::launch::{DOMAIN_ENV, INDEX_ENV};
use super::peers::{self, Peers};
use super::service::Order;
use super::signal::Signal;
use super::{Isolation, Settings, Timing, foreign};

/// Revision of the contract that this runner speaks.
const CONTRACT: u32 = BEAT_CONTRACT;

/// Owns the daemon: starts it, restarts it, asks it how it is, ends it.
pub(super) struct Keeper {
    /// Those of the daemon that runs: one of an earlier runner may see something else than the next will.
    settings: Settings,
    /// What a daemon is started with.
    isolation: Isolation,
    files: Files,
    door: Door,
    config: Option<DomainConfig>,
    /// What the daemon is to show, to be written as often as it takes.
    identity: Option<Identity>,
    daemon: Option<Daemon>,
    signal: Signal,
    state: watch::Sender<State>,
    /// Failed starts and early ends in a row.
    failures: u32,
    start_at: Option<Instant>,
    /// When to ask for the state; none while a question is under way.
    ask_at: Option<Instant>,
    peers: Peers,
    /// The one address at which the daemon listens.
    listens_at: Option<IpAddr>,
    /// When to read the daemon's log.
    log_at: Option<Instant>,
    /// When to see whether the runner's folder is still there.
    look_at: Instant,
    /// When to say the state again, whether it has changed or not.
    beat_at: Instant,
    /// The daemon may see a folder that is no longer the runner's.
    astray: bool,
    /// What is wrong with the runner's folder, as it was told last.
    trouble: Option<String>,
    answers: mpsc::Sender<(u32, Answer)>,
    heard: mpsc::Receiver<(u32, Answer)>,
}

enum Answer {
    State(Result<DaemonState, String>),
    Row(Result<Option<OwnRow>, String>),
}

impl Keeper {
    /// A keeper that starts with the domain that was remembered.
    pub(super) fn new(settings: Settings, files: Files, door: Door) -> Self {
        let (answers, heard) = mpsc::channel(4);
        let config = files.remembered();
        let state = State {
            runner_version: env!("CARGO_PKG_VERSION").into(),
            contract: CONTRACT,
            daemon_state: DaemonState::Down.to_string(),
            since_unix_ms: unix_ms(),
            message: "the agent has not said which IMEX domain to serve yet".into(),
            beat_ms: u32::try_from(settings.timing.beat.as_millis()).unwrap_or(u32::MAX),
            ..Default::default()
        };
        if let Some(config) = &config {
            tracing::info!(domain = config.domain, "serving the domain of before");
        }
        Self {
            signal: Signal::new(settings.timing.signal_window),
            start_at: config.is_some().then(Instant::now),
            look_at: Instant::now() + settings.timing.poll_ready,
            beat_at: Instant::now() + settings.timing.beat,
            isolation: settings.isolation.clone(),
            settings,
            identity: files.identity(),
            files,
            door,
            astray: false,
            trouble: None,
            config,
            daemon: None,
            state: watch::Sender::new(state),
            failures: 0,
            ask_at: None,
            peers: Peers::new(),
            listens_at: None,
            log_at: None,
            answers,
            heard,
        }
    }

    /// The state, and every change of it.
    pub(super) fn state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// Keeps the daemon until `until` ends, and then ends it; the door is the last that closes.
    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>, until: impl Future<Output = ()>) -> Door {
        let mut until = std::pin::pin!(until);
        self.meet_orphan().await;
        loop {
            let wake = self.wake();
            tokio::select! {
                biased;
                () = &mut until => break,
                how = end_of(&mut self.daemon) => self.ended(how),
                Some(order) = orders.recv() => self.obey(order).await,
                Some((start, answer)) = self.heard.recv() => self.hear(start, answer),
                () = tokio::time::sleep_until(wake) => self.act().await,
            }
        }
        orders.close();
        self.end_daemon().await;
        self.door
    }

    fn timing(&self) -> &Timing {
        &self.settings.timing
    }

    fn starts(&self) -> u32 {
        self.state.borrow().starts
    }

    /// When something is to be done by itself.
    fn wake(&self) -> Instant {
        let others = [self.start_at, self.signal_at(), self.ask_at, self.peers.due(), self.log_at];
        others.into_iter().flatten().fold(self.look_at.min(self.beat_at), Instant::min)
    }

    /// A daemon that has just begun has not set up its handlers: SIGUSR1 would end it. Once it has said anything about
    /// itself it has.
    fn signal_at(&self) -> Option<Instant> {
        let speaks = self.daemon.as_ref().is_some_and(|daemon| daemon.log.clues.index.is_some());
        if speaks || self.is_ready() { self.signal.due() } else { None }
    }

    async fn act(&mut self) {
        let now = Instant::now();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.start_at) {
            self.start_at = None;
            self.start();
        }
        if is_due(self.signal_at())
            && let Some(daemon) = &self.daemon
        {
            tracing::info!("hosts or certificates have changed: SIGUSR1 to nvidia-imex");
            daemon.signal();
            self.signal.sent(now);
            self.peers.disturb(now, &self.settings.timing);
        }
        if is_due(self.ask_at) {
            self.ask_at = None;
            self.ask();
        }
        if is_due(self.peers.due()) {
            self.ask_about_peers();
        }
        if is_due(self.log_at) {
            self.read_log();
        }
        if is_due(Some(self.look_at)) {
            self.look_at = now + self.timing().poll_ready;
            self.look().await;
        }
        if is_due(Some(self.beat_at)) {
            self.beat();
        }
    }

    /// It is said from here, and nowhere else: it means that the daemon is kept.
    fn beat(&mut self) {
        self.beat_at = Instant::now() + self.timing().beat;
        self.publish(|state| state.beats += 1);
    }

    /// Waits for what takes long, which is no silence.
    async fn wait_for<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep_until(self.beat_at) => self.beat(),
            }
        }
    }

    /// Somebody may have removed the runner's folder under it, or changed what is in it. The daemon must not end for that: what it
    /// reads is written anew and shown to it again.
    async fn look(&mut self) {
        let is_whole = self.files.are_in_place() && self.door.is_in_place();
        let restored = self.restore().await;
        if restored.is_ok() && !is_whole {
            let dir = self.settings.dir.display();
            tracing::warn!(%dir, "somebody has removed the runner's folder, or something in it; it is there again");
        }
        // Once, however often it is tried.
        let trouble = restored.err();
        if let Some(why) = trouble.as_ref().filter(|why| self.trouble.as_ref() != Some(why)) {
            tracing::error!("the runner's folder is not as it should be, and this is tried again: {why}");
        }
        self.trouble = trouble;
        // Whatever was in the way of a start: one that serves a domain has a daemon, or is about to start it.
        if self.config.is_some() && self.daemon.is_none() {
            self.start_at.get_or_insert_with(Instant::now);
        }
    }

    async fn restore(&mut self) -> Result<(), String> {
        let told = |fault: Fault| fault.message;
        if !self.files.are_in_place() {
            self.astray = self.daemon.is_some();
            self.files.restore().map_err(told)?;
        }
        // Each by itself: what has no room or no folder keeps nothing else from being put right.
        let parts = [
            self.write_record().map_err(told),
            self.files.remember(self.config.as_ref()).map_err(told),
            self.mend().map_err(told),
            self.show_again().await,
            self.open_again().map_err(told),
        ];
        parts.into_iter().collect()
    }

    /// Puts right what the daemon reads, where somebody has changed or removed it.
    fn mend(&mut self) -> Result<(), Fault> {
        let Some(config) = &self.config else { return Ok(()) };
        let written = self.files.write_config(config)?;
        if self.keep_identity(config)? || written {
            tracing::info!("what nvidia-imex reads was not as it should be, and is again");
            self.signal.want(Instant::now());
        }
        // Keys that no runner knows any more the agent sees missing, and brings them again.
        self.publish_identity();
        Ok(())
    }

    /// Puts what the daemon is to show where it looks for it; whether it was not there.
    fn keep_identity(&self, config: &DomainConfig) -> Result<bool, Fault> {
        if shown_name(&config.settings).is_none() {
            return self.files.write_identity(None).map(|()| false);
        }
        let Some(identity) = &self.identity else { return Ok(false) };
        if self.files.identity_note().is_some_and(|note| note.hash == identity.hash()) {
            return Ok(false);
        }
        self.files.write_identity(Some(identity)).map(|()| true)
    }

    /// A daemon that sees a folder which is no longer the runner's.
    async fn show_again(&mut self) -> Result<(), String> {
        if let Some(daemon) = self.daemon.as_ref().filter(|_| self.astray).map(Daemon::id) {
            let settings = self.settings.clone();
            self.wait_for(async { ctl::renew(&settings, &daemon).await }).await?;
            self.signal.want(Instant::now());
        }
        self.astray = false;
        Ok(())
    }

    fn open_again(&mut self) -> Result<(), Fault> {
        if self.door.is_in_place() { Ok(()) } else { self.door.open_anew() }
    }

    /// A daemon whose runner was killed is served on with: ending it would end jobs. Unless another domain was
    /// remembered meanwhile, which takes the word that no claim is prepared. That its index is not known is no reason: what it
    /// said in its log may be thrown away, and have been recorded nowhere. Where no domain is remembered its file may be lost as
    /// well as given up: the agent says again that the daemon may end.
    async fn meet_orphan(&mut self) {
        let recorded = self.files.read_record().and_then(|record| Some((Daemon::adopt(&record)?, record)));
        let Some((daemon, mut record)) = recorded.or_else(|| self.unrecorded()) else { return };
        if let Some(isolation) = record.isolation.clone().filter(|isolation| *isolation != self.isolation) {
            tracing::warn!(pid = daemon.pid, "nvidia-imex runs with other --isolation; the next start has that of now");
            self.sees(isolation);
        }
        record.config = self.files.with_own_paths(record.config);
        self.config = self.config.take().map(|config| self.files.with_own_paths(config));
        if self.config.is_none() && heddle_core::imex::validate(&record.config).is_ok() {
            self.config = Some(record.config.clone());
        }
        match self.config.clone().filter(|config| config.needs_no_restart(&record.config)) {
            Some(config) => {
                tracing::warn!(
                    pid = daemon.pid,
                    domain = config.domain,
                    "serving on with an earlier runner's nvidia-imex"
                );
                self.start_at = None;
                self.started(daemon, &config, &record.config);
                self.read_clues();
                // When it was signalled last is not known, and it drops a signal that comes too soon after.
                self.signal.sent(Instant::now());
                self.astray = matches!(self.settings.isolation, Isolation::MountNamespace(_));
                self.look_at = Instant::now();
                // Its runner may have been killed between two steps.
                if let Err(fault) = self.files.write_hosts(&config) {
                    tracing::error!(reason = fault.reason, "{fault}");
                }
                self.signal.want(Instant::now());
            }
            None => {
                tracing::warn!(pid = daemon.pid, "ending an earlier runner's nvidia-imex");
                self.wait_for(daemon.stop(self.timing().stop_limit)).await;
            }
        }
    }

    /// A daemon of this runner's folder of which the record is lost, by what the process itself tells. What it was started with is
    /// on disk as long as it lives. One whose domain is not to be known is left alone.
    fn unrecorded(&self) -> Option<(Daemon, Record)> {
        let pid = foreign::reader(&self.files.config_file())?;
        let told = |name| foreign::variable(pid, name);
        let index = told(INDEX_ENV).and_then(|index| index.parse().ok());
        let written = self.files.written(told(DOMAIN_ENV).unwrap_or_default(), index.unwrap_or_default())?;
        // What is remembered is all of it, where it is of this daemon; where that listens says its file.
        let remembered = self.config.clone().filter(|config| {
            config.node_map == written.node_map && (written.domain.is_empty() || config.domain == written.domain)
        });
        let config = match remembered {
            Some(mut config) => {
                config.settings.extend(written.settings.into_iter().filter(|(key, _)| key == BIND));
                config
            }
            None => Some(written).filter(|written| !written.domain.is_empty())?,
        };
        let record = Record { pid, start_time: start_time(pid)?, config, index: None, isolation: None };
        let daemon = Daemon::adopt(&record)?;
        tracing::warn!(pid, domain = record.config.domain, "the record of a running nvidia-imex is lost");
        Some((daemon, record))
    }

    /// Keeps on disk what a next runner needs to know of the daemon. Best effort, which each look at the folder repeats: a
    /// runner is rarely killed.
    fn record(&self) {
        if let Err(fault) = self.write_record() {
            tracing::warn!(reason = fault.reason, "{fault}");
        }
    }

    fn write_record(&self) -> Result<(), Fault> {
        let (Some(daemon), Some(mut config)) = (&self.daemon, self.config.clone()) else { return Ok(()) };
        // It was started with this, whatever address peers look for it at since.
        if let Some(at) = self.listens_at {
            config.settings.insert(BIND.into(), at.to_string());
        }
        let Join { pid, start_time } = daemon.id();
        let isolation = Some(self.settings.isolation.clone());
        let record = Record { pid, start_time, config, index: daemon.log.clues.index, isolation };
        self.files.write_record(&record)
    }

    /// Whatever is read, written or asked from now on is for a daemon that sees this.
    fn sees(&mut self, isolation: Isolation) {
        self.files.write_for(&isolation);
        self.settings.isolation = isolation;
    }

    fn start(&mut self) {
        self.sees(self.isolation.clone());
        self.config = self.config.take().map(|config| self.files.with_own_paths(config));
        let Some(config) = self.config.clone() else { return };
        let started = self.hindrance(&config).map_or_else(
            || {
                let written = self.keep_identity(&config).and_then(|_| self.files.write_daemon(&config));
                written.map_err(|fault| fault.message)?;
                let command = self.settings.daemon_command(&config)?;
                let program = command.as_std().get_program().to_owned();
                Daemon::start(command).map_err(|error| format!("{} cannot be started: {error}", program.display()))
            },
            Err,
        );
        match started {
            Ok(daemon) => {
                tracing::info!(domain = config.domain, pid = daemon.pid, "nvidia-imex is started");
                self.started(daemon, &config, &config);
                self.record();
            }
            Err(why) => self.down(why),
        }
    }

    /// A daemon runs that serves `config`, and was started with `with`.
    fn started(&mut self, daemon: Daemon, config: &DomainConfig, with: &DomainConfig) {
        self.signal.started();
        self.astray = false;
        self.ask_at = Some(Instant::now());
        self.log_at = self.ask_at;
        self.peers = Peers::new();
        self.listens_at = with.listens_at(&self.settings.settings);
        let listens_at = self.listens_at.map(|at| at.to_string()).unwrap_or_default();
        self.publish(|state| {
            peers::forget(state);
            state.listens_at = listens_at;
            state.starts += 1;
            state.daemon_pid = daemon.pid;
            state.domain.clone_from(&config.domain);
            state.node_map_sha256 = config.node_map_hash();
            state.daemon_state = DaemonState::Initializing.to_string();
            state.message = "nvidia-imex has been started and has not answered yet".into();
            state.daemon_index = None;
        });
        self.publish_identity();
        self.daemon = Some(daemon);
    }

    /// What stands in the way of a start, in words; what would otherwise be a crash loop with a riddle in the log.
    fn hindrance(&self, config: &DomainConfig) -> Option<String> {
        if let Some(what) = super::absent(&self.settings.programs()[0], &self.settings) {
            return Some(what);
        }
        let operator = self.settings.settings.get("BIND_INTERFACE_IP").and_then(|ip| ip.parse().ok());
        let ip = operator.or_else(|| config.listens_at(&self.settings.settings))?;
        let port = self.settings.peer_port;
        match TcpListener::bind((ip, port)) {
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let who = match foreign::listener(ip, port) {
                    who if who.is_empty() => "another process, perhaps the host's own nvidia-imex".into(),
                    who => who,
                };
                Some(format!("port {port} of {ip} is taken by {who}; stop it or set another peer port"))
            }
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                Some(format!("{ip}, at which peers would look for this node's daemon, is no address of this node"))
            }
            Err(error) => Some(format!("port {port} of {ip} cannot be used: {error}")),
        }
    }

    /// No daemon runs, and why; the next start comes by itself.
    fn down(&mut self, why: String) {
        self.failures += 1;
        let pause = backoff(self.timing(), self.failures);
        tracing::error!(next_start = ?pause, failures = self.failures, "{why}");
        let domain = self.config.as_ref().map(|config| config.domain.clone()).unwrap_or_default();
        let hash = self.config.as_ref().map(DomainConfig::node_map_hash).unwrap_or_default();
        self.start_at = Some(Instant::now() + pause);
        (self.ask_at, self.log_at, self.peers) = (None, None, Peers::new());
        self.publish(|state| {
            state.domain = domain;
            state.node_map_sha256 = hash;
            state.daemon_state = DaemonState::Down.to_string();
            state.daemon_pid = 0;
            state.daemon_index = None;
            // That of the next one it may be another.
            state.listens_at.clear();
            peers::forget(state);
            state.message = why;
        });
        self.publish_identity();
    }

    fn ended(&mut self, how: String) {
        let Some(mut daemon) = self.daemon.take() else { return };
        daemon.log.read();
        let (lived, clues) = (daemon.started.elapsed(), &daemon.log.clues);
        if lived >= self.timing().stable {
            self.failures = 0;
        }
        let why = if let Some(why) = &clues.not_entered {
            format!("nvidia-imex cannot be brought into the driver root {}: {why}", self.settings.driver_root.display())
        } else if let Some(said) = &clues.not_loaded {
            format!(
                "nvidia-imex cannot be loaded in the driver root {}: {said}; install the driver there as a whole, or set \
                 another driver root",
                self.settings.driver_root.display()
            )
        } else if clues.session_in_use {
            let who = match foreign::daemons(Some(daemon.pid)) {
                who if who.is_empty() => "the host's nvidia-imex service, or whatever else runs one".into(),
                who => who,
            };
            format!("another IMEX daemon holds this node's kernel session (NV_ERR_IN_USE); stop {who}")
        } else {
            let said = clues.last_words.as_ref().map_or_else(String::new, |text| format!(", saying: {text:.256}"));
            format!("nvidia-imex ended by itself ({how}) after {:.1} s{said}", lived.as_secs_f64())
        };
        self.down(why);
    }

    async fn end_daemon(&mut self) {
        (self.ask_at, self.log_at, self.peers) = (None, None, Peers::new());
        let Some(daemon) = self.daemon.take() else { return };
        tracing::info!(pid = daemon.pid, "ending nvidia-imex");
        self.publish(|state| {
            state.daemon_state = DaemonState::ShuttingDown.to_string();
            state.message = "the runner ends nvidia-imex".into();
            state.ended += 1;
        });
        self.wait_for(daemon.stop(self.timing().stop_limit)).await;
        self.publish(|state| {
            state.daemon_state = DaemonState::Down.to_string();
            state.daemon_pid = 0;
            state.daemon_index = None;
            peers::forget(state);
        });
    }

    fn publish(&self, change: impl FnOnce(&mut State)) {
        self.state.send_if_modified(|state| {
            let before = state.clone();
            change(state);
            if state.daemon_state != before.daemon_state {
                state.since_unix_ms = unix_ms();
            }
            *state != before
        });
    }
}

/// The pause before the next start, doubling with every failure in a row.
fn backoff(timing: &Timing, failures: u32) -> Duration {
    let doubled = timing.backoff_min.saturating_mul(1 << failures.saturating_sub(1).min(16));
    doubled.min(timing.backoff_max)
}

fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

async fn end_of(daemon: &mut Option<Daemon>) -> String {
    match daemon {
        Some(daemon) => daemon.ended().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_its_limit() {
        let timing = Timing::default();
        let pauses: Vec<_> = (1..=10).map(|failures| backoff(&timing, failures)).collect();
        assert_eq!(pauses[0], timing.backoff_min);
        assert_eq!(pauses[1], timing.backoff_min * 2);
        assert_eq!(pauses[9], timing.backoff_max);
        assert_eq!(backoff(&timing, u32::MAX), timing.backoff_max);
    }
}
