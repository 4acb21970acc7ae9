//! `nvidia-imex`: one daemon's life.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use rustix::process::{Signal as KernelSignal, getpid, kill_process};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::Instant;

use super::config::{Config, Quorum};
use super::fabric::Fabric;
use super::log::Log;
use super::nodemap::NodeMap;
use super::os::{Os, Session};
use super::peer::{self, Inbox, Link};
use super::scenario::{self, Scenario};
use super::state::{ConnectionState, DaemonState};
use super::transport::{self, Transport};
use super::{control, kernel, outgoing, persist, server};

/// Further SIGUSR1 inside this time are dropped.
const RESTART_INTERVAL: Duration = Duration::from_secs(5);

/// How long the farewell to peers and processes may take.
const FAREWELL: Duration = Duration::from_millis(500);

const USAGE: &str = "usage: nvidia-imex [-c <config file>] [-p|--port <port>] [--nogpu] [--version]";

/// All that the tasks of a daemon share; they run on one thread.
pub struct Daemon {
    pub config: Config,
    pub os: Os,
    pub log: Rc<Log>,
    pub map: NodeMap,
    /// Own line in the map.
    pub id: u16,
    /// Address at which peers reach us.
    pub address: IpAddr,
    /// Another at each start.
    pub instance: u64,
    /// What is to go wrong.
    pub scenario: Scenario,
    /// Whether there are GPUs, and so a kernel session.
    gpu: bool,
    pub state: watch::Sender<DaemonState>,
    pub fabric: RefCell<Fabric>,
    pub transport: Transport,
    /// One a line of the map; the own one is never used.
    pub links: Vec<Link>,
    /// Counts the requests to make all outgoing connections anew.
    pub restarts: watch::Sender<u64>,
    /// Nodes that are cut off.
    pub unreachable: watch::Sender<BTreeSet<u16>>,
    persisted: RefCell<BTreeSet<u16>>,
}

impl Daemon {
    async fn enter(&self, state: DaemonState) -> Result<()> {
        self.state.send_replace(state);
        self.log.info(&format!("IMEX state is now {state}"));
        self.suffer(state).await
    }

    /// What the scenario has for a state.
    async fn suffer(&self, state: DaemonState) -> Result<()> {
        if let Some(delay) = self.scenario.delay_ms.get(&state) {
            tokio::time::sleep(Duration::from_millis(*delay)).await;
        }
        if self.scenario.hang_in == Some(state) {
            std::future::pending::<()>().await;
        }
        if self.scenario.crash_in == Some(state) {
            kill_process(getpid(), KernelSignal::KILL)?;
        }
        if self.scenario.fail_in == Some(state) {
            bail!("Failed in {state}, as the scenario asks for");
        }
        Ok(())
    }

    /// Version by our own word.
    pub fn version(&self) -> &str {
        if self.gpu { &self.scenario.version } else { "NO_GPU" }
    }

    /// Waits until a node is cut off.
    pub async fn cut_off(&self, node: u16) {
        // The sender is our own field, so it cannot have gone.
        let _ = self.unreachable.subscribe().wait_for(|unreachable| unreachable.contains(&node)).await;
    }

    /// The states of all connections, by line of the map.
    pub fn connections(&self) -> Vec<ConnectionState> {
        let own = usize::from(self.id);
        let state = |(id, link): (usize, &Link)| if id == own { ConnectionState::Connected } else { link.state() };
        self.links.iter().enumerate().map(state).collect()
    }

    /// Makes all outgoing connections anew, with what the names and the TLS files say now. Files that cannot be used leave
    /// everything as it is.
    fn restart_connections(&self) {
        match self.transport.renew() {
            Ok(()) => {
                self.log.info("Restarting all outgoing connections");
                self.restarts.send_modify(|count| *count += 1);
            }
            Err(error) => self.log.error(&format!(
                "Failed to read the TLS files again, those read before stay and no connection is restarted: {error:#}"
            )),
        }
    }

    /// Notes on disk who holds imports from us, for a start after an unclean end.
    pub fn persist(&self) {
        let importers = self.fabric.borrow().importers();
        if *self.persisted.borrow() != importers {
            persist::write(&self.os, &self.log, &self.map, &importers);
            *self.persisted.borrow_mut() = importers;
        }
    }
}

/// Runs the daemon until it is told to end.
pub fn daemon_main(args: Vec<OsString>) -> ExitCode {
    match Options::parse(args) {
        Ok(Options { version: true, .. }) => {
            // Asked before any node is set up, too.
            let scenario = Os::from_env().and_then(|os| Scenario::read(&os)).unwrap_or_default();
            let _ = writeln!(std::io::stdout(), "IMEX version is: {}", scenario.version);
            ExitCode::SUCCESS
        }
        Ok(options) => match start(&options) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("nvidia-imex: {error:#}");
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            eprintln!("nvidia-imex: {error:#}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

#[derive(Debug, Default)]
struct Options {
    config: Option<PathBuf>,
    port: Option<u16>,
    no_gpu: bool,
    version: bool,
}

impl Options {
    fn parse(args: Vec<OsString>) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.into_iter().skip(1);
        while let Some(arg) = args.next() {
            match arg.to_str().unwrap_or_default() {
                "-c" => options.config = Some(args.next().context("-c needs a file")?.into()),
                "-p" | "--port" => {
                    let port = args.next().context("-p needs a port")?;
                    options.port = Some(port.to_string_lossy().parse().context("-p needs a port")?);
                }
                "--nogpu" | "-nogpu" => options.no_gpu = true,
                "--version" => options.version = true,
                _ => bail!("unknown option {}", arg.display()),
            }
        }
        Ok(options)
    }
}

fn start(options: &Options) -> Result<ExitCode> {
    let os = Os::from_env()?;
    let scenario = Scenario::read(&os)?;
    let packaged = || os.path("etc/nvidia-imex/config.cfg");
    let mut config = Config::read(&options.config.clone().unwrap_or_else(packaged), &os, &scenario)?;
    config.server_port = options.port.unwrap_or(config.server_port);
    if config.daemonize {
        bail!("DAEMONIZE=1 is not supported by this fake: set DAEMONIZE=0 and let a supervisor run it");
    }
    let log = Rc::new(Log::open(&config, &scenario.version));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let lived = LocalSet::new().block_on(&runtime, live(options, os, scenario, config, Rc::clone(&log)));
    Ok(match lived {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    })
}

async fn live(options: &Options, os: Os, scenario: Scenario, config: Config, log: Rc<Log>) -> Result<()> {
    let mut signals = Signals::new()?;
    let (daemon, inboxes) = identify(options, os, scenario, config, log)?;
    let mut held = None;
    let brought_up = async {
        held = Some(bring_up(&daemon, inboxes).await?);
        std::future::pending::<Result<()>>().await
    };
    tokio::select! {
        failed = brought_up => failed?,
        () = signals.attend(&daemon) => {}
    }
    daemon.enter(DaemonState::ShuttingDown).await?;
    // The control tool's subscribers are told too.
    tokio::task::yield_now().await;
    peer::farewell(&daemon, FAREWELL).await;
    persist::write(&daemon.os, &daemon.log, &daemon.map, &BTreeSet::new());
    let _ = std::fs::remove_file(daemon.os.kernel_socket());
    daemon.log.flush();
    daemon.log.info("IMEX daemon has ended");
    drop(held);
    Ok(())
}

/// Reads the node map and finds this node in it.
fn identify(
    options: &Options,
    os: Os,
    scenario: Scenario,
    config: Config,
    log: Rc<Log>,
) -> Result<(Rc<Daemon>, Vec<Inbox>)> {
    if !options.no_gpu
        && let Some(driver) = os.driver_version()
        && driver != scenario.version
    {
        bail!("IMEX version {} does not match the loaded kernel driver's, which is {driver}", scenario.version);
    }
    let transport = Transport::open(&config)?;
    let map = NodeMap::read(&config.node_map)?;
    for entry in map.entries.iter().filter(|entry| entry.parse::<IpAddr>().is_err()) {
        log.info(&format!("Treating node config entry '{entry}' as a host name."));
    }
    let Some((id, address)) = map.own_id(&os)? else {
        bail!(
            "No matching network interface found for any IP addresses in the node configuration file {}.",
            map.path.display()
        );
    };
    let address = config.bind.unwrap_or(address);
    log.info(&format!("IMEX Library communication bind interface = {address}"));
    log.info(&format!("IMEX library communication bind port = {}", config.server_port));
    log.info(&format!("Identified this node as ID {id}"));
    let instance = fastrand::u64(..);
    let (links, inboxes) = map.entries.iter().map(|_| Link::new()).unzip();
    let daemon = Rc::new(Daemon {
        fabric: RefCell::new(Fabric::new(id, map.entries.len(), instance, map.hash())),
        gpu: !options.no_gpu,
        state: watch::Sender::new(DaemonState::Initializing),
        restarts: watch::Sender::new(0),
        unreachable: watch::Sender::new(scenario.unreachable.clone()),
        scenario,
        persisted: RefCell::default(),
        transport,
        config,
        os,
        log,
        map,
        id,
        address,
        instance,
        links,
    });
    Ok((daemon, inboxes))
}

/// From INITIALIZING to READY. What is returned is held as long as the daemon lives.
async fn bring_up(daemon: &Rc<Daemon>, inboxes: Vec<Inbox>) -> Result<(Option<Session>, control::Sockets)> {
    let control = control::open(daemon)?;
    daemon.suffer(DaemonState::Initializing).await?;
    daemon.enter(DaemonState::StartingAuthServer).await?;
    let at = transport::at(daemon.address, daemon.config.server_port, daemon.config.interface.as_deref())?;
    let listener = TcpListener::bind(at).await.with_context(|| format!("Failed to bind to {at}"))?;
    spawn_local(server::serve(Rc::clone(daemon), listener));

    daemon.enter(DaemonState::WaitingForPeers).await?;
    follow_scenario(daemon)?;
    for (id, inbox) in (0..).zip(inboxes).filter(|(id, _)| *id != daemon.id) {
        spawn_local(outgoing::keep_connected(Rc::clone(daemon), id, inbox));
    }
    if daemon.config.quorum == Quorum::Full {
        for (_, link) in daemon.links.iter().enumerate().filter(|(id, _)| *id != usize::from(daemon.id)) {
            link.connected().await;
        }
    }
    let held = persist::read(&daemon.os, &daemon.map);
    if daemon.config.quorum == Quorum::Recovery && !held.is_empty() {
        daemon.enter(DaemonState::WaitingForRecovery).await?;
        for id in held.into_iter().filter(|id| *id != daemon.id) {
            daemon.log.info(&format!("Waiting for node {id}, which held imports from this node"));
            daemon.links[usize::from(id)].connected().await;
        }
    }

    daemon.enter(DaemonState::InitGpu).await?;
    let session = if daemon.gpu {
        let session =
            if daemon.scenario.session_in_use { Err(ErrorKind::WouldBlock.into()) } else { daemon.os.open_session() };
        let session = session.map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => anyhow::anyhow!("Failed to allocate Imex session: NV_ERR_IN_USE"),
            _ => anyhow::anyhow!("Failed to allocate Imex session: {error}"),
        })?;
        kernel::serve(daemon)?;
        Some(session)
    } else {
        None
    };
    // Those that a life before this one waited for have been heard.
    persist::write(&daemon.os, &daemon.log, &daemon.map, &daemon.fabric.borrow().importers());
    daemon.enter(DaemonState::Ready).await?;
    Ok((session, control))
}

/// Keeps to what the scenario says of unreachable nodes.
fn follow_scenario(daemon: &Rc<Daemon>) -> Result<()> {
    let path = daemon.os.path(scenario::FILE);
    let Some(folder) = path.parent().filter(|folder| folder.is_dir()) else { return Ok(()) };
    let inotify = Inotify::init()?;
    inotify.watches().add(folder, WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::DELETE)?;
    let mut changes = inotify.into_event_stream([0; 1024])?;
    let daemon = Rc::clone(daemon);
    spawn_local(async move {
        while changes.next().await.is_some() {
            match Scenario::read(&daemon.os) {
                Ok(scenario) => {
                    daemon.unreachable.send_if_modified(|unreachable| {
                        let changed = *unreachable != scenario.unreachable;
                        *unreachable = scenario.unreachable;
                        changed
                    });
                }
                Err(error) => daemon.log.error(&format!("{error:#}")),
            }
        }
    });
    Ok(())
}

/// The signals that the daemon attends to.
struct Signals {
    terminate: [Signal; 3],
    flush: Signal,
    restart: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            terminate: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
                signal(SignalKind::quit())?,
            ],
            flush: signal(SignalKind::hangup())?,
            restart: signal(SignalKind::user_defined1())?,
        })
    }

    /// Ends when the daemon is told to.
    async fn attend(&mut self, daemon: &Daemon) {
        let mut restarted: Option<Instant> = None;
        let [terminate, interrupt, quit] = &mut self.terminate;
        loop {
            tokio::select! {
                _ = terminate.recv() => return,
                _ = interrupt.recv() => return,
                _ = quit.recv() => return,
                _ = self.flush.recv() => daemon.log.flush(),
                _ = self.restart.recv() => {
                    if restarted.is_none_or(|at| at.elapsed() >= RESTART_INTERVAL) {
                        restarted = Some(Instant::now());
                        daemon.restart_connections();
                    } else {
                        daemon.log.info("Restarted all connections less than 5 s ago, the signal is dropped");
                    }
                }
            }
        }
    }
}
