use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use super::enter::{CONFIG_DIR, Entry, Folder, Join, Root, SOCKET, STATE_DIR};
use super::files::CONFIG;
use super::{Isolation, MountNamespace, Settings};

const DAEMON: &str = "usr/bin/nvidia-imex";
const CTL: &str = "usr/bin/nvidia-imex-ctl";

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

    /// What starts the daemon.
    pub(super) fn daemon_command(&self) -> Result<Command, String> {
        let arguments = ["-c".into(), self.config_dir_of_daemon().join(CONFIG)];
        match &self.isolation {
            Isolation::None { .. } => Ok(plain(&self.programs()[0], arguments)),
            Isolation::MountNamespace(namespace) => {
                let root = Root {
                    driver_root: self.driver_root.clone(),
                    build: self.build_dir(),
                    config: self.config_dir(),
                    state: self.state_dir(),
                    also: namespace.also.clone(),
                    nameservers: namespace.nameservers.clone(),
                };
                entering(namespace, &Entry::Root(root, inside(DAEMON, arguments)))
            }
        }
    }

    /// What asks the daemon that this is of.
    pub(super) fn ctl_command(&self, daemon: &Join, arguments: Vec<PathBuf>) -> Result<Command, String> {
        match &self.isolation {
            Isolation::None { .. } => Ok(plain(&self.programs()[1], arguments)),
            Isolation::MountNamespace(namespace) => {
                entering(namespace, &Entry::Join(daemon.clone(), inside(CTL, arguments)))
            }
        }
    }

    /// What shows a daemon the runner's folders anew; none where it sees them by their path.
    pub(super) fn renew_command(&self, daemon: &Join) -> Result<Option<Command>, String> {
        let Isolation::MountNamespace(namespace) = &self.isolation else { return Ok(None) };
        let folders = vec![
            Folder { from: self.config_dir(), at: CONFIG_DIR.into(), read_only: true },
            Folder { from: self.state_dir(), at: STATE_DIR.into(), read_only: false },
        ];
        entering(namespace, &Entry::Renew(daemon.clone(), folders)).map(Some)
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

fn inside(program: &str, arguments: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    [Path::new("/").join(program)].into_iter().chain(arguments).collect()
}

fn entering(namespace: &MountNamespace, entry: &Entry) -> Result<Command, String> {
    let words: Vec<OsString> = namespace.enter.clone();
    let (program, arguments) = words.split_first().ok_or("no program is set that enters the driver root")?;
    let mut command = Command::new(program);
    command.args(arguments).arg(entry.argument()?);
    Ok(command)
}
