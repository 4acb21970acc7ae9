use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use heddle_core::fault::{Fault, reason};
use heddle_core::imex::{
    DaemonFiles, DomainConfig, Identity, daemon_config, daemon_settings, hosts_file, hosts_in, identity_settings,
    settings_of_agent, shown_name,
};
use rustix::fs::FlockOperation;

use super::child::Record;
use super::identity::{self, Note};
use super::{Isolation, Settings};

/// The daemon's configuration file.
pub(crate) const CONFIG: &str = "config.cfg";
const NODE_MAP: &str = "nodes.cfg";

/// The runner's folder.
#[derive(Debug)]
pub(super) struct Files {
    settings: Settings,
    /// Held as long as the runner lives: there is one for a folder.
    lock: File,
    /// The folders that a daemon is shown, by device and inode.
    shown: Vec<Option<(u64, u64)>>,
}

impl Files {
    /// Makes the folder and takes it.
    ///
    /// # Errors
    /// Fatal, if it cannot be written or another runner has it.
    pub(super) fn open(settings: &Settings) -> Result<Self, Fault> {
        let dir = &settings.dir;
        let fatal = |error: io::Error| {
            let text = format!("the runner's folder {} cannot be used: {error}; make it writable", dir.display());
            Fault::fatal(reason::NODE_IO, text)
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fatal)?;
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.join("lock")).map_err(fatal)?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => {
                let text = format!("another IMEX runner serves {}; only one may run on a node", dir.display());
                Fault::fatal(reason::NODE_IO, text)
            }
            error => fatal(error.into()),
        })?;
        let mut files = Self { settings: settings.clone(), lock, shown: Vec::new() };
        files.make_folders().map_err(fatal)?;
        Ok(files)
    }

    fn make_folders(&mut self) -> io::Result<()> {
        let settings = &self.settings;
        for folder in [settings.config_dir(), settings.state_dir(), settings.build_dir()] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        self.shown = self.to_be_shown();
        Ok(())
    }

    fn to_be_shown(&self) -> Vec<Option<(u64, u64)>> {
        [self.settings.config_dir(), self.settings.state_dir()].iter().map(|folder| identity_of(folder)).collect()
    }

    /// Whether the folders are still those that were made. Whoever removes the runner's takes the lock's name away with it.
    pub(super) fn are_in_place(&self) -> bool {
        self.lock_is_in_place() && self.shown == self.to_be_shown()
    }

    fn lock_is_in_place(&self) -> bool {
        let held = self.lock.metadata().ok().map(|data| (data.dev(), data.ino()));
        held.is_some() && held == identity_of(&self.settings.dir.join("lock"))
    }

    /// Makes what is missing, and takes the folder again if it is another.
    pub(super) fn restore(&mut self) -> Result<(), Fault> {
        if !self.lock_is_in_place() {
            *self = Self::open(&self.settings)?;
        }
        let made = self.make_folders();
        made.map_err(|error| unwritable(&self.settings.dir, &error))
    }

    /// Writes from now on for a daemon that sees this.
    pub(super) fn write_for(&mut self, isolation: &Isolation) {
        self.settings.isolation = isolation.clone();
    }

    fn domain(&self) -> PathBuf {
        self.settings.dir.join("domain.json")
    }

    fn record(&self) -> PathBuf {
        self.settings.dir.join("daemon.json")
    }

    /// Keeps what is known of the running daemon.
    pub(super) fn write_record(&self, record: &Record) -> Result<(), Fault> {
        let path = self.record();
        let text = serde_json::to_vec(record).map_err(|error| unwritable(&path, &error.into()))?;
        replace(&path, &text, 0o600).map(drop)
    }

    /// What was known of the daemon that ran last.
    pub(super) fn read_record(&self) -> Option<Record> {
        serde_json::from_slice(&fs::read(self.record()).ok()?).ok()
    }

    /// The daemon's settings for this domain.
    pub(super) fn daemon_settings(&self, config: &DomainConfig) -> Result<String, Fault> {
        let files = DaemonFiles {
            node_map: self.settings.config_dir_of_daemon().join(NODE_MAP).display().to_string(),
            command_socket: self.settings.command_socket().display().to_string(),
            peer_port: self.settings.peer_port,
        };
        let operator = &self.settings.settings;
        daemon_settings(&files, operator, &config.settings_beside(operator)).map(|settings| daemon_config(&settings))
    }

    /// The daemon's configuration file, as the runner sees it.
    pub(super) fn config_file(&self) -> PathBuf {
        self.settings.config_dir().join(CONFIG)
    }

    /// What the files say that the daemon of `domain` has read.
    pub(super) fn written(&self, domain: String, index: u32) -> Option<DomainConfig> {
        let node_map = fs::read_to_string(self.settings.config_dir().join(NODE_MAP)).ok()?;
        let settings = settings_of_agent(&fs::read_to_string(self.config_file()).ok()?).ok()?;
        let hosts = hosts_in(&fs::read_to_string(self.settings.hosts_file()).unwrap_or_default(), &node_map);
        Some(DomainConfig { domain, node_map, index, hosts, settings })
    }

    /// Writes all that a daemon reads at its start.
    pub(super) fn write_daemon(&self, config: &DomainConfig) -> Result<(), Fault> {
        self.write_config(config)?;
        // A socket that a daemon left behind when it was killed would stand in the way of the next. One in a root of its own
        // has gone with it.
        let Isolation::None { command_socket, .. } = &self.settings.isolation else { return Ok(()) };
        match fs::remove_file(command_socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(command_socket, &error)),
            _ => Ok(()),
        }
    }

    /// Writes what says whom it serves and how; whether it was not there as it should be.
    pub(super) fn write_config(&self, config: &DomainConfig) -> Result<bool, Fault> {
        let dir = self.settings.config_dir();
        let map = replace(&dir.join(NODE_MAP), config.node_map.as_bytes(), 0o644)?;
        let settings = replace(&dir.join(CONFIG), self.daemon_settings(config)?.as_bytes(), 0o644)?;
        Ok(self.write_hosts(config)? || map || settings)
    }

    pub(super) fn write_hosts(&self, config: &DomainConfig) -> Result<bool, Fault> {
        replace(&self.settings.hosts_file(), hosts_file(&config.hosts).as_bytes(), 0o644)
    }

    /// The configuration with which a daemon shows this identity.
    pub(super) fn with_identity(&self, mut config: DomainConfig, identity: &Identity) -> DomainConfig {
        config
            .settings
            .extend(identity_settings(&identity::files(&self.settings.config_dir_of_daemon()), &identity.name));
        config
    }

    /// The same for one whose files are where they were for a daemon that saw something else.
    pub(super) fn with_own_paths(&self, mut config: DomainConfig) -> DomainConfig {
        if let Some(name) = shown_name(&config.settings).map(str::to_owned) {
            let files = identity::files(&self.settings.config_dir_of_daemon());
            config.settings.extend(identity_settings(&files, &name));
        }
        config
    }

    /// Puts the identity where the daemon looks for it; none removes it.
    pub(super) fn write_identity(&self, identity: Option<&Identity>) -> Result<(), Fault> {
        let dir = &self.settings.config_dir();
        let written = identity.map_or_else(|| identity::forget(dir), |identity| identity::write(dir, identity));
        written.map_err(|error| unwritable(&dir.join("identity"), &error))
    }

    /// The identity that is there, if it is whole.
    pub(super) fn identity(&self) -> Option<Identity> {
        identity::read(&self.settings.config_dir()).map(|(_, identity)| identity)
    }

    /// What is known of the identity that is there, if it is whole.
    pub(super) fn identity_note(&self) -> Option<Note> {
        identity::note(&self.settings.config_dir())
    }

    /// Remembers the domain, so that a runner can start its daemon without an agent.
    pub(super) fn remember(&self, config: Option<&DomainConfig>) -> Result<(), Fault> {
        let path = self.domain();
        match config {
            Some(config) => {
                let text = serde_json::to_vec(config).map_err(|error| unwritable(&path, &error.into()))?;
                replace(&path, &text, 0o600).map(drop)
            }
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(&path, &error)),
                _ => Ok(()),
            },
        }
    }

    /// The domain that was remembered. One that cannot be read is forgotten: the agent brings it again.
    pub(super) fn remembered(&self) -> Option<DomainConfig> {
        let path = self.domain();
        let text = fs::read(&path).ok()?;
        let config = serde_json::from_slice::<DomainConfig>(&text).map_err(|error| error.to_string());
        match config.and_then(|config| heddle_core::imex::validate(&config).map(|()| config)) {
            Ok(config) => Some(config),
            Err(error) => {
                tracing::warn!(file = %path.display(), "the remembered domain cannot be used and is forgotten: {error}");
                None
            }
        }
    }
}

/// Device and inode.
pub(super) fn identity_of(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|data| (data.dev(), data.ino()))
}

/// Replaces a file as a whole: a reader sees the old or the new one. What is there already takes no room, so that a daemon can
/// be started again on a disk that is full. Whether it was not.
fn replace(path: &Path, content: &[u8], mode: u32) -> Result<bool, Fault> {
    if fs::read(path).is_ok_and(|present| present == content) {
        return Ok(false);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content))
        .and_then(|()| fs::rename(&temporary, path));
    written.map(|()| true).map_err(|error| {
        // It would take the room that is missing.
        let _ = fs::remove_file(&temporary);
        unwritable(path, &error)
    })
}

fn unwritable(path: &Path, error: &io::Error) -> Fault {
    let advice = match error.kind() {
        io::ErrorKind::StorageFull => "; make room on that file system",
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => "; mount it so that it can be written",
        _ => "",
    };
    Fault::retryable(reason::NODE_IO, format!("{} cannot be written: {error}{advice}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::{MountNamespace, Timing};

    #[test]
    fn an_identity_is_where_the_next_daemon_sees_it() {
        let dir = tempfile::tempdir().unwrap();
        let plain = Isolation::None { hosts_file: "/h".into(), command_socket: "/s".into() };
        let own_root = Isolation::MountNamespace(MountNamespace {
            enter: vec!["x".into()],
            also: Vec::new(),
            nameservers: Vec::new(),
        });
        let settings = Settings {
            dir: dir.path().into(),
            socket: dir.path().join("s"),
            driver_root: "/".into(),
            isolation: plain.clone(),
            settings: Default::default(),
            peer_port: 1,
            metrics: None,
            timing: Timing::default(),
        };
        let mut files = Files::open(&settings).unwrap();
        let config = DomainConfig {
            domain: "d".into(),
            node_map: "n\n".into(),
            index: 0,
            hosts: Vec::new(),
            settings: [("BIND_INTERFACE_IP".to_owned(), "127.0.0.1".to_owned())].into(),
        };
        assert_eq!(files.with_own_paths(config.clone()), config, "one without an identity stays as it is");
        let identity = Identity {
            name: "d.x".into(),
            certificate_pem: String::new(),
            key_pem: String::new(),
            authority_pem: String::new(),
            not_after: 0,
        };
        let of_plain = files.with_identity(config.clone(), &identity);
        files.write_for(&own_root);
        let of_own_root = files.with_identity(config, &identity);
        assert_ne!(of_plain, of_own_root);
        assert_eq!(files.with_own_paths(of_plain.clone()), of_own_root);
        files.write_for(&plain);
        assert_eq!(files.with_own_paths(of_own_root), of_plain);
        let text = serde_json::to_string(&own_root).unwrap();
        assert_eq!(serde_json::from_str::<Isolation>(&text).unwrap(), own_root);
    }
}
