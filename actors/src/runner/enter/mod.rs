//! Becoming a program of the driver root: what the hidden subcommand `heddle imex-enter` does.
//!
//! A process of its own, because it changes what it sees as `/` and then is replaced by the program: the pid stays, so
//! whoever started it has the daemon's.

mod etc;
mod join;
mod mounts;
mod place;
mod root;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

pub use join::Join;
pub(crate) use place::is_there;
pub use root::{HostFiles, Root};

/// Where the daemon finds its configuration, node map, hosts and identity. Read only.
pub const CONFIG_DIR: &str = "/run/heddle";
/// Where the daemon keeps `persist.dat`; `/var/run` is a link to `/run`.
pub const STATE_DIR: &str = "/run/nvidia-imex";
/// The daemon's control socket. In no folder that anybody else sees, so that nobody can take it away.
pub const SOCKET: &str = "/run/imex.sock";
/// How a line begins with which an entry fails.
pub const FAILED: &str = "heddle imex-enter: ";

/// What a program of the driver root finds programs by.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is to be done, as the one argument of `imex-enter`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Entry {
    /// Makes a root of its own and becomes a program there.
    Root(Root, Vec<PathBuf>),
    /// Becomes a program in the root of a process that made one.
    Join(Join, Vec<PathBuf>),
    /// Puts folders in the place of those that such a process sees.
    Renew(Join, Vec<Folder>),
    /// Says by the exit code whether a root can be made here.
    Probe,
}

/// A folder that is to be seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Folder {
    /// Where it is.
    pub from: PathBuf,
    /// Where it is seen.
    pub at: PathBuf,
    /// Whether it can only be read there.
    pub read_only: bool,
}

impl Entry {
    /// The argument.
    ///
    /// # Errors
    /// A path that is no UTF-8.
    pub fn argument(&self) -> Result<String, String> {
        serde_json::to_string(self).map_err(|error| format!("a path of the settings cannot be used: {error}"))
    }

    /// The command that does it, by the words that come before the argument.
    ///
    /// # Errors
    /// A path that is no UTF-8, or no words.
    pub(crate) fn command(&self, words: &[String]) -> Result<tokio::process::Command, String> {
        let (program, arguments) = words.split_first().ok_or("no program is set that enters the driver root")?;
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).arg(self.argument()?);
        Ok(command)
    }

    /// Does what the argument says. Where that is to become a program, it returns only if it fails. The process must have
    /// one thread.
    ///
    /// # Errors
    /// One sentence: which step failed, why, and what to do.
    pub fn run(argument: &str) -> Result<(), String> {
        let entry: Self =
            serde_json::from_str(argument).map_err(|error| format!("this is a command of Heddle's own: {error}"))?;
        match entry {
            Self::Root(root, command) => {
                root.enter()?;
                Err(become_program(&command, &root.driver_root))
            }
            Self::Join(join, command) => {
                join.enter()?;
                Err(become_program(&command, Path::new("/")))
            }
            Self::Renew(join, folders) => join.renew(&folders),
            Self::Probe => root::probe(),
        }
    }
}

/// A program of the driver root and its arguments, as an entry has them.
pub(crate) fn inside(program: &str, arguments: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    [Path::new("/").join(program)].into_iter().chain(arguments).collect()
}

/// Replaces this process by the program; why not.
fn become_program(command: &[PathBuf], driver_root: &Path) -> String {
    let Some((program, arguments)) = command.split_first() else { return "no program is named".into() };
    let mut command = Command::new(program);
    // What tells a loader where libraries are is about the root that was left.
    let left = std::env::vars_os().map(|(name, _)| name).filter(is_for_loader);
    left.for_each(|name| {
        command.env_remove(name);
    });
    let error = command.args(arguments).env("PATH", PATH).current_dir("/").exec();
    let (program, root) = (program.display(), driver_root.display());
    if error.kind() == std::io::ErrorKind::NotFound && Path::new(&command.get_program()).exists() {
        return format!(
            "{program} is in the driver root {root}, and the loader that it names is not; install the driver with the \
             C library of its own system, or set another driver root"
        );
    }
    format!("{program} of the driver root {root} cannot be started: {error}")
}

fn is_for_loader(name: &OsString) -> bool {
    name.as_encoded_bytes().starts_with(b"LD_")
}
