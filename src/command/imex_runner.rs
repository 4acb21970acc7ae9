use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use heddle_actors::{runner, runtime, small_file};
use heddle_core::imex::{forwarded_level, settings_file};

/// Runs on every node in a DaemonSet of its own that is never updated by itself.
#[derive(Args)]
pub struct ImexRunner {
    /// Folder for the daemon's configuration and state; on tmpfs, so that it survives this pod but no boot
    #[arg(long, default_value = "/run/heddle", env = "HEDDLE_RUNNER_DIR")]
    dir: PathBuf,
    /// Socket that the agent connects to [default: runner.sock in --dir]
    #[arg(long, env = "HEDDLE_RUNNER_SOCKET")]
    socket: Option<PathBuf>,
    /// Folder below which the NVIDIA driver is installed, with the libraries of its own system: `/` or where the driver's
    /// container is seen
    #[arg(long, default_value = "/", env = "HEDDLE_DRIVER_ROOT")]
    driver_root: PathBuf,
    /// What the daemon sees of the node
    #[arg(long, value_enum, default_value = "mount-namespace", env = "HEDDLE_ISOLATION")]
    isolation: Isolation,
    /// With --isolation none: the hosts file by which the daemon resolves the names of its peers
    #[arg(long, env = "HEDDLE_HOSTS_FILE")]
    hosts_file: Option<PathBuf>,
    /// With --isolation mount-namespace: a file or folder that the daemon needs beside the driver root, for instance for
    /// Kerberos; it sees it at the same path, and may write it if the runner may; may be repeated
    #[arg(long = "daemon-sees", value_name = "PATH", env = "HEDDLE_DAEMON_SEES", value_delimiter = ':')]
    daemon_sees: Vec<PathBuf>,
    /// With --isolation mount-namespace: a DNS server that the daemon may ask for names which are not of its domain, for
    /// instance those of Kerberos; without one it asks nobody; may be repeated
    #[arg(long = "daemon-nameserver", value_name = "ADDRESS", env = "HEDDLE_DAEMON_NAMESERVER", value_delimiter = ',')]
    nameservers: Vec<IpAddr>,
    /// Port on which the daemons of a domain reach each other
    #[arg(long, default_value_t = 50000, env = "HEDDLE_PEER_PORT")]
    peer_port: u16,
    /// File with settings of the daemon, KEY=VALUE one a line as in NVIDIA's own file; docs/imex-settings.md has every key
    #[arg(long, value_name = "FILE", env = "HEDDLE_IMEX_SETTINGS_FILE")]
    settings_file: Option<PathBuf>,
    /// A setting of the daemon, as KEY=VALUE, before that of the file; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, String)>,
    /// Where to serve /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", env = "HEDDLE_METRICS_ADDRESS")]
    metrics_address: Option<SocketAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Isolation {
    /// A root of its own, put together from the driver root, read-only, with hosts, resolv.conf and nsswitch.conf of the
    /// runner's; needs CAP_SYS_ADMIN and CAP_SYS_CHROOT
    MountNamespace,
    /// What the runner sees: for a runner that is started on the node itself, without a container
    None,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

fn read_settings(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let text = small_file::open(path).and_then(small_file::text);
    let text = text.with_context(|| format!("the settings file {} cannot be read", path.display()))?;
    settings_file(&text).with_context(|| format!("the settings file {}", path.display()))
}

impl ImexRunner {
    /// What is logged: of the daemon as its setting says, which is looked at again when the runner starts.
    pub fn log_filter(&self) -> String {
        let level = self.daemon_settings().map_or("info", |settings| forwarded_level(&settings));
        format!("info,nvidia_imex={level}")
    }

    fn daemon_settings(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let mut settings = self.settings_file.as_deref().map(read_settings).transpose()?.unwrap_or_default();
        settings.extend(self.settings.iter().cloned());
        Ok(settings)
    }

    pub fn run(self) -> anyhow::Result<()> {
        let isolation = self.isolation()?;
        runtime::block_on(async move {
            let imex = self.daemon_settings()?;
            let settings = runner::Settings {
                socket: self.socket.unwrap_or_else(|| self.dir.join("runner.sock")),
                dir: self.dir,
                driver_root: self.driver_root,
                isolation,
                peer_port: self.peer_port,
                settings: imex,
                metrics: self.metrics_address,
                timing: runner::Timing::default(),
            };
            runner::preflight(&settings).context("the runner did not start")?;
            runner::run(settings, runtime::signals()).await.context("the runner ended")
        })
    }

    fn isolation(&self) -> anyhow::Result<runner::Isolation> {
        match (self.isolation, &self.hosts_file) {
            (Isolation::MountNamespace, None) => Ok(runner::Isolation::MountNamespace(runner::MountNamespace {
                enter: super::imex_enter::WORDS.map(str::to_owned).into(),
                also: self.daemon_sees.clone(),
                nameservers: self.nameservers.clone(),
            })),
            (Isolation::MountNamespace, Some(_)) => {
                bail!("--hosts-file is for --isolation none: a daemon in a mount namespace has a hosts file of its own")
            }
            (Isolation::None, Some(hosts_file)) => Ok(runner::Isolation::None {
                hosts_file: hosts_file.clone(),
                command_socket: self.dir.join("imex.sock"),
            }),
            (Isolation::None, None) => bail!(
                "--isolation none needs --hosts-file: the file by which the daemon resolves names, which the runner writes"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settings_file_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings");
        let said = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_settings(&path).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(said("# none\nLOG_LEVEL=3\n").unwrap()["LOG_LEVEL"], "3");
        let error = said("LOG_LEVEL 3").unwrap_err();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("line 1"), "{error}");
        assert!(read_settings(dir.path()).is_err(), "a folder is no file");
    }
}
