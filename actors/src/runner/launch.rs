use std::path::{Path, PathBuf};

use heddle_core::imex::DomainConfig;
use tokio::process::Command;

use super::enter::{self, CONFIG_DIR, Entry, Folder, Join, Root, SOCKET, STATE_DIR};
use super::files::CONFIG;
use super::question::CTL;
use super::{Isolation, Settings};

const DAEMON: &str = "usr/bin/nvidia-imex";

/// In a daemon's environment: the IMEX domain that it was started for, and its index there. It says nothing to the daemon.
pub(super) const DOMAIN_ENV: &str = "HEDDLE_IMEX_DOMAIN";
pub(super) const INDEX_ENV: &str = "HEDDLE_IMEX_INDEX";

impl Settings {
    /// The folder of what the daemon reads, as it sees it.
    pub(super) fn config_dir_of_daemon(&self) -> PathBuf {
        match &self.isolation {
            Isolation::None { .. } => self.config_dir(),
            Isolation::MountNamespace(_) => CONFIG_DIR.into(),
        }
    }

    /// The daemon's control socket, as it and its tool see it.
    pub(super) fn command_socket(&self) -> &Path {
        match &self.isolation {
            Isolation::None { command_socket, .. } => command_socket,
            Isolation::MountNamespace(_) => Path::new(SOCKET),
        }
    }

    /// The folder of what the daemon reads, as the runner sees it.
    pub(super) fn config_dir(&self) -> PathBuf {
        self.dir.join("daemon")
    }

    /// What it keeps from one start to the next.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.dir.join("persist")
    }

    /// On which the daemon's root is built, seen by the daemon alone.
    pub(super) fn build_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Where the programs are, as the runner sees them.
    pub(super) fn programs(&self) -> [PathBuf; 2] {
        [DAEMON, CTL].map(|program| self.driver_root.join(program))
    }

    /// What starts the daemon for a domain.
    pub(super) fn daemon_command(&self, config: &DomainConfig) -> Result<Command, String> {
        let mut command = self.bare_daemon_command()?;
        // For a runner that finds the process and nothing else.
        command.env(DOMAIN_ENV, &config.domain).env(INDEX_ENV, config.index.to_string());
        Ok(command)
    }

    fn bare_daemon_command(&self) -> Result<Command, String> {
        let arguments = ["-c".into(), self.config_dir_of_daemon().join(CONFIG)];
        match &self.isolation {
            Isolation::None { .. } => Ok(plain(&self.programs()[0], arguments)),
            Isolation::MountNamespace(namespace) => {
                let root = Root {
                    driver_root: self.driver_root.clone(),
                    build: self.build_dir(),
                    folders: self.folders(),
                    also: namespace.also.clone(),
                    host: None,
                    nameservers: namespace.nameservers.clone(),
                };
                Entry::Root(root, enter::inside(DAEMON, arguments)).command(&namespace.enter)
            }
        }
    }

    /// What asks the daemon that this is of.
    pub(super) fn ctl_command(&self, daemon: &Join, arguments: Vec<PathBuf>) -> Result<Command, String> {
        match &self.isolation {
            Isolation::None { .. } => Ok(plain(&self.programs()[1], arguments)),
            Isolation::MountNamespace(namespace) => {
                Entry::Join(daemon.clone(), enter::inside(CTL, arguments)).command(&namespace.enter)
            }
        }
    }

    /// What shows a daemon the runner's folders anew; none where it sees them by their path.
    pub(super) fn renew_command(&self, daemon: &Join) -> Result<Option<Command>, String> {
        let Isolation::MountNamespace(namespace) = &self.isolation else { return Ok(None) };
        Entry::Renew(daemon.clone(), self.folders()).command(&namespace.enter).map(Some)
    }

    /// What a daemon in a root of its own sees of the runner's.
    fn folders(&self) -> Vec<Folder> {
        vec![
            Folder { from: self.config_dir(), at: CONFIG_DIR.into(), read_only: true },
            Folder { from: self.state_dir(), at: STATE_DIR.into(), read_only: false },
        ]
    }

    /// Where the hosts file is written.
    pub(super) fn hosts_file(&self) -> PathBuf {
        match &self.isolation {
            Isolation::None { hosts_file, .. } => hosts_file.clone(),
            Isolation::MountNamespace(_) => self.config_dir().join("hosts"),
        }
    }
}

fn plain(program: &Path, arguments: impl IntoIterator<Item = PathBuf>) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
