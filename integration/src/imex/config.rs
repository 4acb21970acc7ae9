//! The daemon's configuration file: `KEY=value` lines with `#` comments, read once at start.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::os::Os;
use super::scenario::{Scenario, UnknownKeys};
use super::security::Security;

/// Settings of one daemon, with the defaults of NVIDIA's package.
#[derive(Clone, Debug)]
pub struct Config {
    /// `LOG_LEVEL`: 0 off, 1 critical, 2 error, 3 warning, 4 info.
    pub log_level: u8,
    /// `LOG_FILE_NAME`; none is stderr.
    pub log_file: Option<PathBuf>,
    /// `LOG_APPEND_TO_LOG`.
    pub log_append: bool,
    /// `LOG_FILE_MAX_SIZE`, in MB.
    pub log_max_megabytes: u64,
    /// `LOG_MAX_ROTATE_COUNT`: how many full files are kept beside the current one.
    pub log_rotations: u32,
    /// `LOG_USE_SYSLOG`, only reported.
    pub log_syslog: bool,
    /// `DAEMONIZE`.
    pub daemonize: bool,
    /// `BIND_INTERFACE_IP`; none is the own entry of the node map.
    pub bind: Option<IpAddr>,
    /// `SERVER_PORT`.
    pub server_port: u16,
    /// `NETWORK_INTERFACE`.
    pub interface: Option<String>,
    /// `IMEX_NODE_CONFIG_FILE`.
    pub node_map: PathBuf,
    /// `IMEX_WAIT_FOR_QUORUM`.
    pub quorum: Quorum,
    /// `IMEX_ENABLE_AUTH_ENCRYPTION`.
    pub encryption: bool,
    /// The keys that matter with it.
    pub security: Security,
    /// `IMEX_CMD_ENABLED`.
    pub command_enabled: bool,
    /// `IMEX_CMD_BIND_INTERFACE_IP`; none is all interfaces.
    pub command_bind: Option<IpAddr>,
    /// `IMEX_CMD_PORT`.
    pub command_port: Option<u16>,
    /// `IMEX_CMD_UNIX_DOMAIN_PATH`.
    pub command_socket: Option<PathBuf>,
    /// `IMEX_NODE_DISCONNECTED_GRACE_TIME`; none waits for ever.
    pub grace: Option<Duration>,
    /// What to say about the file once the log is open.
    pub warnings: Vec<String>,
}

/// Whom a starting daemon waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quorum {
    /// Nobody.
    None,
    /// After an unclean stop, those that held imports from it.
    Recovery,
    /// All, in older releases.
    Full,
}

/// Keys that exist and mean nothing to a fake: what they set is not simulated.
const WITHOUT_EFFECT: &[&str] = &[
    "STATS_FILE_NAME",
    "IMEX_GSS_SERVICE_NAME",
    "IMEX_GSS_TIMEOUT_SEC",
    "IMEX_GSS_RETRY_INTERVAL_SEC",
    "IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC",
    "IMEX_GSS_SHUTDOWN_ON_FAILURE",
];

impl Config {
    /// The settings of a file without a line. Paths that nobody set lie inside the simulated OS.
    pub fn defaults(os: &Os) -> Self {
        Self {
            log_level: 4,
            log_file: Some(os.path("var/log/nvidia-imex.log")),
            log_append: true,
            log_max_megabytes: 1024,
            log_rotations: 3,
            log_syslog: false,
            daemonize: true,
            bind: None,
            server_port: 50000,
            interface: None,
            node_map: os.path("etc/nvidia-imex/nodes_config.cfg"),
            quorum: Quorum::Recovery,
            encryption: false,
            security: Security { mode: "SSL_TLS".into(), ..Security::default() },
            command_enabled: true,
            command_bind: None,
            command_port: None,
            command_socket: None,
            grace: None,
            warnings: Vec::new(),
        }
    }

    /// Reads a file.
    pub fn read(path: &Path, os: &Os, scenario: &Scenario) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("Failed to read configuration file {}", path.display()))?;
        Self::parse(&text, os, scenario).with_context(|| format!("configuration file {}", path.display()))
    }

    fn parse(text: &str, os: &Os, scenario: &Scenario) -> Result<Self> {
        let mut config = Self::defaults(os);
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                bail!("line {}: {line:?} is not KEY=value", number + 1);
            };
            config
                .set(key.trim(), value.trim(), scenario)
                .with_context(|| format!("line {}: {}", number + 1, key.trim()))?;
        }
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str, scenario: &Scenario) -> Result<()> {
        match key {
            "LOG_LEVEL" => self.log_level = within(value, 0..=4)?,
            "LOG_FILE_NAME" => self.log_file = path(value)?,
            "LOG_APPEND_TO_LOG" => self.log_append = flag(value)?,
            "LOG_FILE_MAX_SIZE" => self.log_max_megabytes = parse(value)?,
            "LOG_MAX_ROTATE_COUNT" => self.log_rotations = parse(value)?,
            "LOG_USE_SYSLOG" => self.log_syslog = flag(value)?,
            "DAEMONIZE" => self.daemonize = flag(value)?,
            "BIND_INTERFACE_IP" => self.bind = optional(value)?,
            "SERVER_PORT" => self.server_port = parse(value)?,
            "NETWORK_INTERFACE" => self.interface = optional(value)?,
            "IMEX_NODE_CONFIG_FILE" => {
                self.node_map = path(value)?.context("is empty, expected the path of the node map")?;
            }
            "IMEX_WAIT_FOR_QUORUM" => {
                self.quorum = match value {
                    "NONE" => Quorum::None,
                    "RECOVERY" => Quorum::Recovery,
                    "FULL" if scenario.full_quorum => Quorum::Full,
                    _ => bail!("is {value:?}, expected NONE or RECOVERY"),
                };
            }
            "IMEX_ENABLE_AUTH_ENCRYPTION" => self.encryption = flag(value)?,
            "IMEX_CMD_ENABLED" => self.command_enabled = flag(value)?,
            "IMEX_CMD_BIND_INTERFACE_IP" => self.command_bind = optional(value)?,
            "IMEX_CMD_PORT" => self.command_port = optional(value)?,
            "IMEX_CMD_UNIX_DOMAIN_PATH" => self.command_socket = path(value)?,
            "IMEX_NODE_DISCONNECTED_GRACE_TIME" => {
                let seconds: i64 = parse(value)?;
                self.grace = u64::try_from(seconds).ok().map(Duration::from_secs);
            }
            _ if self.security.set(key, value) => {}
            _ if WITHOUT_EFFECT.contains(&key) => {}
            _ if scenario.unknown_keys == UnknownKeys::Refuse => bail!("is no known key"),
            _ => self.warnings.push(format!("Unknown key {key} in the configuration file is ignored")),
        }
        Ok(())
    }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(value: &str) -> Result<T> {
    value.parse().map_err(|error| anyhow::anyhow!("is {value:?}: {error}"))
}

fn optional<T: FromStr<Err: std::fmt::Display>>(value: &str) -> Result<Option<T>> {
    if value.is_empty() { Ok(None) } else { parse(value).map(Some) }
}

fn within(value: &str, range: std::ops::RangeInclusive<u8>) -> Result<u8> {
    let number = parse(value)?;
    if !range.contains(&number) {
        bail!("is {number}, expected {} to {}", range.start(), range.end());
    }
    Ok(number)
}

fn flag(value: &str) -> Result<bool> {
    within(value, 0..=1).map(|number| number == 1)
}

fn path(value: &str) -> Result<Option<PathBuf>> {
    if value.len() > 256 {
        bail!("is a path of {} characters, at most 256 are allowed", value.len());
    }
    Ok((!value.is_empty()).then(|| PathBuf::from(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text, &Os::at("/os"), &Scenario::default())
    }

    #[test]
    fn values_comments_and_defaults() {
        let config = parse(
            "# a comment\n\nDAEMONIZE=0\nLOG_FILE_NAME=\n SERVER_PORT = 50001\nBIND_INTERFACE_IP=127.10.0.1\n\
             IMEX_NODE_DISCONNECTED_GRACE_TIME=30\nIMEX_CMD_PORT=\nIMEX_CMD_UNIX_DOMAIN_PATH=/run/imex.sock\n",
        )
        .unwrap();
        assert!(!config.daemonize);
        assert_eq!(config.log_file, None);
        assert_eq!(config.server_port, 50001);
        assert_eq!(config.bind, Some("127.10.0.1".parse().unwrap()));
        assert_eq!(config.grace, Some(Duration::from_secs(30)));
        assert_eq!(config.command_port, None);
        assert_eq!(config.quorum, Quorum::Recovery);
        assert_eq!(config.node_map, Path::new("/os/etc/nvidia-imex/nodes_config.cfg"));
        assert_eq!(parse("IMEX_NODE_DISCONNECTED_GRACE_TIME=-1").unwrap().grace, None);
    }

    #[test]
    fn unknown_keys_are_warned_of_and_bad_values_refused() {
        let warned = parse("IMEX_CONN_WAIT_TIMEOUT=3\nSTATS_FILE_NAME=/x\n").unwrap().warnings;
        assert_eq!(warned.len(), 1);
        assert!(warned[0].contains("IMEX_CONN_WAIT_TIMEOUT"));
        let strict = Scenario { unknown_keys: UnknownKeys::Refuse, ..Scenario::default() };
        assert!(Config::parse("IMEX_CONN_WAIT_TIMEOUT=3", &Os::at("/os"), &strict).is_err());
        let long = format!("LOG_FILE_NAME=/{}", "x".repeat(256));
        let full = "IMEX_WAIT_FOR_QUORUM=FULL";
        let older = Scenario { full_quorum: true, ..Scenario::default() };
        assert_eq!(Config::parse(full, &Os::at("/os"), &older).unwrap().quorum, Quorum::Full);
        for bad in
            [&*long, full, "LOG_LEVEL=9", "DAEMONIZE=yes", "SERVER_PORT=70000", "IMEX_WAIT_FOR_QUORUM=ALL", "words"]
        {
            let error = format!("{:#}", parse(bad).unwrap_err());
            assert!(error.contains("line 1"), "{error}");
        }
    }
}
