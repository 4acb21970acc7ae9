//! The daemon that the host runs: asked by its control socket, again and again; nothing is started or ended.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_core::fault::Fault;
use heddle_core::imex::{DaemonState, HostConfig, HostDaemon, HostMap, host_config, host_map, own_row};
use heddle_proto::runner::State;
use tokio::process::Command;
use tokio::time::Instant;

use super::Message;
use crate::host_root::HostRoot;
use crate::runner::enter::{Entry, HostFiles, Root, inside, is_there};
use crate::runner::question::{CTL, answer, of_domain, of_state};
use crate::runtime::{Addr, progress};

/// How the host's daemon is reached.
#[derive(Clone, Debug)]
pub struct HostImex {
    /// Where the driver's programs are.
    pub driver_root: PathBuf,
    /// The command that starts one of them in its root, by [`Entry::argument`] as its last argument; nothing where this
    /// process's root is theirs.
    pub enter: Vec<String>,
    /// A folder in which nothing is looked for while a program starts; its root is built there, seen by it alone.
    pub build: PathBuf,
    /// The daemon's control socket.
    pub control_socket: PathBuf,
    /// The host's `/`.
    pub host: HostRoot,
    /// The daemon's configuration file, on the host.
    pub config: String,
    /// Addresses of this node.
    pub addresses: Vec<IpAddr>,
    /// Where a runner of Heddle's would listen, which must not be there too.
    pub runner_socket: PathBuf,
    /// How often it is asked.
    pub timing: HostTiming,
}

impl HostImex {
    /// That of a host whose `/` is here, and its driver's too.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        Self {
            control_socket: root.join("etc/nvidia-imex/imex_ctrl.sock"),
            host: HostRoot::new(&root),
            config: "/etc/nvidia-imex/config.cfg".into(),
            addresses: Vec::new(),
            runner_socket: root.join("run/heddle/runner.sock"),
            timing: HostTiming::default(),
            enter: Vec::new(),
            build: root.join("run/heddle"),
            driver_root: root,
        }
    }
}

/// The patience with a host's daemon. Tests have less.
#[derive(Clone, Debug)]
pub struct HostTiming {
    /// How long one question may take.
    pub limit: Duration,
    /// Pause between questions while it is not READY.
    pub not_ready: Duration,
    /// Pause between questions while it is.
    pub ready: Duration,
    /// Pause between looks at its files and its peers while nothing else changes.
    pub files: Duration,
}

impl Default for HostTiming {
    fn default() -> Self {
        Self {
            limit: Duration::from_secs(2),
            not_ready: Duration::from_millis(500),
            ready: Duration::from_secs(2),
            files: Duration::from_secs(30),
        }
    }
}

/// What was seen of it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSeen {
    /// What decides.
    pub daemon: HostDaemon,
    /// The same as a runner would tell it.
    pub state: State,
}

/// The daemon's word for a connection that stands.
const CONNECTED: &str = "CONNECTED";

/// Asks for ever, and tells what has changed.
pub(super) async fn run(imex: HostImex, address: Addr<Message>) -> Result<(), Fault> {
    let mut look =
        Look { imex, files: None, seen: HostSeen { daemon: HostDaemon::unasked(), state: State::default() } };
    loop {
        let before = look.seen.clone();
        look.ask().await;
        if look.seen != before {
            address.tell(Message::Host(Box::new(look.seen.clone())));
        }
        progress();
        let timing = &look.imex.timing;
        let ready = look.seen.daemon.state == DaemonState::Ready;
        tokio::time::sleep(if ready { timing.ready } else { timing.not_ready }).await;
    }
}

struct Look {
    imex: HostImex,
    /// The host's configuration, and when it and the node map were read.
    files: Option<(Option<HostConfig>, Instant)>,
    seen: HostSeen,
}

impl Look {
    async fn ask(&mut self) {
        let socket = self.imex.control_socket.clone();
        let answer = self.tool(&of_state(&self.as_seen(&socket)), &[]).await;
        let answer = answer.map(|word| DaemonState::parse(&word));
        let now = Instant::now();
        let turned = answer.as_ref().ok() != Some(&self.seen.daemon.state);
        let stale = self.files.as_ref().is_none_or(|(_, read)| now - *read >= self.imex.timing.files);
        if turned || stale {
            self.read_files(now).await;
        }
        let (state, message) = match answer {
            Ok(DaemonState::Ready) => (DaemonState::Ready, String::new()),
            Ok(state) => (state.clone(), format!("the host's IMEX daemon is {state}, not READY")),
            Err(why) => (DaemonState::Unavailable, self.silence(&why)),
        };
        if state != self.seen.daemon.state || self.seen.state.since_unix_ms == 0 {
            self.seen.state.since_unix_ms = jiff::Timestamp::now().as_millisecond();
        }
        self.seen.state.daemon_state = state.to_string();
        self.seen.state.message.clone_from(&message);
        (self.seen.daemon.state, self.seen.daemon.message) = (state, message);
        if turned || stale {
            self.ask_about_peers().await;
        }
    }

    fn program(&self) -> PathBuf {
        self.imex.driver_root.join(CTL)
    }

    /// A path of this process, as the tool sees it.
    fn as_seen(&self, path: &Path) -> PathBuf {
        if self.imex.enter.is_empty() { path.into() } else { self.imex.host.host_path(path).into() }
    }

    /// Asks with the tool, which sees the control socket and these files of the host.
    async fn tool(&self, question: &[PathBuf], files: &[PathBuf]) -> Result<String, String> {
        let command = if self.imex.enter.is_empty() {
            let mut command = Command::new(self.program());
            command.args(question);
            command
        } else {
            Entry::Root(self.root_with(files), inside(CTL, question.iter().cloned())).command(&self.imex.enter)?
        };
        answer(command, &self.program(), self.imex.timing.limit).await
    }

    /// The driver root, in which the host's daemon is found as on the host: its tool has the libraries that it was made for.
    fn root_with(&self, files: &[PathBuf]) -> Root {
        let imex = &self.imex;
        let socket = self.as_seen(&imex.control_socket);
        let is_the_hosts = imex.host.path(&socket.to_string_lossy()) == imex.control_socket;
        let (of_host, also) = if is_the_hosts { (Some(socket), None) } else { (None, Some(socket)) };
        Root {
            driver_root: imex.driver_root.clone(),
            build: imex.build.clone(),
            folders: Vec::new(),
            also: also.into_iter().collect(),
            host: Some(HostFiles {
                root: imex.host.root().into(),
                files: of_host.into_iter().chain(files.iter().cloned()).collect(),
            }),
            nameservers: Vec::new(),
        }
    }

    /// What the host's files say of the daemon, as far as they can be read. They are small, but may be on a disk that is slow.
    async fn read_files(&mut self, now: Instant) {
        let imex = self.imex.clone();
        let read = tokio::task::spawn_blocking(move || files(&imex)).await;
        let (config, map) = read.unwrap_or_else(|panic| (None, Err(format!("reading failed: {panic}"))));
        let known = map.as_ref().ok();
        self.seen.state.daemon_index = known.and_then(|map| map.index);
        self.seen.state.node_map_sha256 = known.map(|map| map.hash.clone()).unwrap_or_default();
        self.seen.daemon.map = map;
        self.files = Some((config, now));
    }

    /// The daemon's connections to its peers, by the entries of the host's node map.
    async fn ask_about_peers(&mut self) {
        let own = self.seen.state.daemon_index;
        let (true, Some(index)) = (self.seen.daemon.state == DaemonState::Ready, own) else {
            return self.unheard("the host's IMEX daemon is not READY, or its index is not known".into());
        };
        let config = self.as_seen(&self.imex.host.path(&self.imex.config));
        let map =
            self.files.as_ref().and_then(|(config, _)| config.as_ref()).map(|config| config.node_map.clone().into());
        let files: Vec<_> = [config.clone()].into_iter().chain(map).collect();
        let matrix = self.tool(&of_domain(&config), &files).await;
        match matrix.map(|text| own_row(&text, index)) {
            Ok(Some(row)) => {
                let state = &mut self.seen.state;
                if state.links_since_unix_ms == 0 || !state.links_unknown.is_empty() {
                    state.links_since_unix_ms = jiff::Timestamp::now().as_millisecond();
                }
                let (stand, missing): (Vec<_>, Vec<_>) =
                    row.connections.into_iter().partition(|(_, word)| word == CONNECTED);
                state.links_unknown.clear();
                state.connected = stand.into_iter().map(|(peer, _)| peer).collect();
                state.peers_connected = u32::try_from(state.connected.len()).unwrap_or(u32::MAX);
                state.missing = missing.into_iter().collect();
                state.daemon_version = row.version;
            }
            Ok(None) => self.unheard("nvidia-imex-ctl -N has no row of this node".into()),
            Err(why) => self.unheard(why),
        }
    }

    /// The connections are not known now; they are no condition of anything, and what was known stays.
    fn unheard(&mut self, why: String) {
        let state = &mut self.seen.state;
        if state.links_since_unix_ms != 0 && state.links_unknown.is_empty() {
            state.links_since_unix_ms = jiff::Timestamp::now().as_millisecond();
        }
        if self.seen.daemon.state != DaemonState::Ready {
            state.peers_connected = 0;
        }
        state.links_unknown = why;
    }

    /// Why it does not answer, and what to do.
    fn silence(&self, why: &str) -> String {
        let socket = self.imex.control_socket.display();
        let text = if !is_there(&self.imex.driver_root, Path::new(CTL)) {
            format!(
                "the host's IMEX daemon cannot be asked: no {}; install the driver's nvidia-imex package or set the driver root",
                self.program().display()
            )
        } else if self.imex.control_socket.exists() {
            format!("the host's IMEX daemon does not answer at {socket}: {why}")
        } else {
            format!("the host's IMEX daemon has no control socket at {socket}: {}", self.no_socket())
        };
        match self.imex.runner_socket.exists() {
            true => format!("{text}; Heddle's own imex-runner is on this node too: remove its DaemonSet from here"),
            false => text,
        }
    }

    fn no_socket(&self) -> String {
        let config = self.files.as_ref().and_then(|(config, _)| config.as_ref());
        match config.map(|config| config.command_socket.as_deref()) {
            Some(Some(other)) if *other != *self.imex.control_socket.to_string_lossy() => {
                format!(
                    "{} names {other}; set --imex-control-socket, or start nvidia-imex on the host",
                    self.imex.config
                )
            }
            Some(None) => format!(
                "set IMEX_CMD_ENABLED=1 and IMEX_CMD_UNIX_DOMAIN_PATH={} in {} and restart nvidia-imex on the host",
                self.imex.control_socket.display(),
                self.imex.config
            ),
            _ => "start nvidia-imex on the host, or set --imex-control-socket".into(),
        }
    }
}

fn files(imex: &HostImex) -> (Option<HostConfig>, Result<HostMap, String>) {
    let text = |path: &str| match imex.host.text(path) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(format!("{path} is not there, or the host's / is not mounted at --host-root")),
        Err(error) => Err(format!("{path}: {error}")),
    };
    let config = match text(&imex.config) {
        Ok(config) => host_config(&config),
        Err(why) => return (None, Err(why)),
    };
    let own: Vec<IpAddr> = imex.addresses.iter().copied().chain(config.address).collect();
    let hosts = text("/etc/hosts").unwrap_or_default();
    let map = text(&config.node_map).map(|map| host_map(&map, &hosts, &own));
    (Some(config), map)
}
