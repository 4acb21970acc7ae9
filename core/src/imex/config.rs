use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::fault::{Fault, reason};

/// Every key of the daemon's configuration file that a source documents. Others are refused: a mistyped key would be
/// ignored by the daemon without a word.
pub const KNOWN_KEYS: &[&str] = &[
    "BIND_INTERFACE_IP",
    "DAEMONIZE",
    "IMEX_AUTH_ENCRYPTION_MODE",
    "IMEX_AUTH_SOURCE",
    "IMEX_CLIENT_CERT",
    "IMEX_CLIENT_CERT_AUTH",
    "IMEX_CLIENT_KEY",
    "IMEX_CMD_BIND_INTERFACE_IP",
    "IMEX_CMD_ENABLED",
    "IMEX_CMD_PORT",
    "IMEX_CMD_UNIX_DOMAIN_PATH",
    "IMEX_ENABLE_AUTH_ENCRYPTION",
    "IMEX_GSS_RETRY_INTERVAL_SEC",
    "IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC",
    "IMEX_GSS_SERVICE_NAME",
    "IMEX_GSS_SHUTDOWN_ON_FAILURE",
    "IMEX_GSS_TIMEOUT_SEC",
    "IMEX_NODE_CONFIG_FILE",
    "IMEX_NODE_DISCONNECTED_GRACE_TIME",
    "IMEX_SECURITY_TARGET_OVERRIDE",
    "IMEX_SERVER_CERT",
    "IMEX_SERVER_CERT_AUTH",
    "IMEX_SERVER_KEY",
    "IMEX_WAIT_FOR_QUORUM",
    "LOG_APPEND_TO_LOG",
    "LOG_FILE_MAX_SIZE",
    "LOG_FILE_NAME",
    "LOG_LEVEL",
    "LOG_MAX_ROTATE_COUNT",
    "LOG_USE_SYSLOG",
    "NETWORK_INTERFACE",
    "SERVER_PORT",
    "STATS_FILE_NAME",
];

/// Values of ours where nothing else is set.
///
/// The grace time is finite: the package's -1 keeps the exports to a dead peer for ever and so leaks GPU memory
/// (upstream 1479). Two minutes outlast a switch's restart and a node's network hiccup. An empty log file name makes
/// the daemon log to stderr, from where the runner forwards it.
const DEFAULTS: &[(&str, &str)] = &[
    ("IMEX_NODE_DISCONNECTED_GRACE_TIME", "120"),
    ("IMEX_WAIT_FOR_QUORUM", "RECOVERY"),
    ("LOG_FILE_NAME", ""),
    ("LOG_LEVEL", "4"),
    ("STATS_FILE_NAME", ""),
];

/// Where the runner keeps what the daemon is told; paths as the daemon sees them.
#[derive(Clone, Debug)]
pub struct DaemonFiles {
    /// The node map.
    pub node_map: String,
    /// The control socket.
    pub command_socket: String,
    /// Port for peers.
    pub peer_port: u16,
}

/// The daemon's settings in layers: our defaults, then `runner` (the operator's), then `domain` (the agent's), then
/// what the runner needs to be so in order to supervise the daemon at all.
///
/// # Errors
/// Permanent, for a key that the daemon does not know, a value that would break the file, or an attempt to set what
/// the runner decides.
pub fn daemon_settings(
    files: &DaemonFiles,
    runner: &BTreeMap<String, String>,
    domain: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Fault> {
    let invalid = |what: String| Err(Fault::permanent(reason::SETTINGS, what));
    // A foreground daemon with a control socket on the node alone: the command port is never opened to the network.
    let fixed = [
        ("DAEMONIZE", "0".to_owned()),
        ("IMEX_CMD_ENABLED", "1".to_owned()),
        ("IMEX_CMD_PORT", String::new()),
        ("IMEX_CMD_UNIX_DOMAIN_PATH", files.command_socket.clone()),
        ("IMEX_NODE_CONFIG_FILE", files.node_map.clone()),
        ("SERVER_PORT", files.peer_port.to_string()),
    ];
    let mut settings: BTreeMap<String, String> =
        DEFAULTS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    for (key, value) in runner.iter().chain(domain) {
        if !KNOWN_KEYS.contains(&key.as_str()) {
            return invalid(format!(
                "the IMEX daemon has no setting {key:.80}; the nearest that it has is {}",
                nearest(key)
            ));
        }
        if let Some((_, ours)) = fixed.iter().find(|(name, ours)| name == key && ours != value) {
            return invalid(format!("the IMEX setting {key} is the runner's own ({ours:?}) and cannot be set"));
        }
        if value.len() > 256 || value.chars().any(char::is_control) {
            return invalid(format!("the IMEX setting {key} has a value of several lines or of more than 256 bytes"));
        }
        settings.insert(key.clone(), value.clone());
    }
    settings.extend(fixed.map(|(key, value)| (key.to_owned(), value)));
    Ok(settings)
}

/// The daemon's configuration file.
pub fn daemon_config(settings: &BTreeMap<String, String>) -> String {
    let head = "# Written by heddle imex-runner; changes are lost. Set values in the Helm chart.\n".to_owned();
    settings.iter().fold(head, |mut file, (key, value)| {
        let _ = writeln!(file, "{key}={value}");
        file
    })
}

fn nearest(key: &str) -> &'static str {
    KNOWN_KEYS.iter().copied().min_by_key(|known| distance(key, known)).unwrap_or_default()
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().take(80).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> DaemonFiles {
        DaemonFiles { node_map: "/run/x/nodes.cfg".into(), command_socket: "/run/x/ctl.sock".into(), peer_port: 50000 }
    }

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_file_is_complete_and_finite() {
        let settings = daemon_settings(&files(), &map(&[]), &map(&[("BIND_INTERFACE_IP", "10.0.0.1")])).unwrap();
        let file = daemon_config(&settings);
        for line in [
            "BIND_INTERFACE_IP=10.0.0.1",
            "DAEMONIZE=0",
            "IMEX_CMD_UNIX_DOMAIN_PATH=/run/x/ctl.sock",
            "IMEX_NODE_CONFIG_FILE=/run/x/nodes.cfg",
            "IMEX_NODE_DISCONNECTED_GRACE_TIME=120",
            "IMEX_WAIT_FOR_QUORUM=RECOVERY",
            "LOG_FILE_NAME=",
            "SERVER_PORT=50000",
        ] {
            assert!(file.lines().any(|l| l == line), "{line} in {file}");
        }
    }

    #[test]
    fn the_agent_overrides_the_operator_who_overrides_the_defaults() {
        let operator = map(&[("IMEX_NODE_DISCONNECTED_GRACE_TIME", "60"), ("LOG_LEVEL", "3")]);
        let settings = daemon_settings(&files(), &operator, &map(&[("LOG_LEVEL", "2")])).unwrap();
        assert_eq!(settings["IMEX_NODE_DISCONNECTED_GRACE_TIME"], "60");
        assert_eq!(settings["LOG_LEVEL"], "2");
    }

    #[test]
    fn what_would_be_lost_or_break_supervision_is_refused() {
        for (key, value, says) in [
            ("IMEX_NODE_DISCONNECT_GRACE_TIME", "60", "IMEX_NODE_DISCONNECTED_GRACE_TIME"),
            ("IMEX_CONN_WAIT_TIMEOUT", "1", "no setting"),
            ("DAEMONIZE", "1", "runner's own"),
            ("LOG_LEVEL", "4\nDAEMONIZE=1", "several lines"),
        ] {
            let fault = daemon_settings(&files(), &map(&[(key, value)]), &map(&[])).unwrap_err();
            assert!(fault.message.contains(says), "{fault}");
        }
        assert!(daemon_settings(&files(), &map(&[("DAEMONIZE", "0")]), &map(&[])).is_ok());
    }
}
