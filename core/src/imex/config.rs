use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::domain::BIND;
use super::setting::{SETTINGS, SetBy, Setting, Takes, setting_of};
use super::shown::{IdentityFiles, gss_settings, identity_settings};
use crate::fault::{Fault, reason};

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

/// Level of the daemon's own log: that at which it says which member it is.
const DAEMON_LOG_LEVEL: &str = "4";

/// The daemon's settings in layers: our defaults, then `operator`, then `domain` (the agent's), then what the runner needs to
/// be so in order to supervise the daemon at all.
///
/// # Errors
/// Permanent, for a key that the daemon does not know, a value that the key does not take, or an attempt to set what is not
/// the operator's.
pub fn daemon_settings(
    files: &DaemonFiles,
    operator: &BTreeMap<String, String>,
    domain: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Fault> {
    // A foreground daemon with a control socket on the node alone: the command port is opened on request only.
    let fixed = [
        ("DAEMONIZE", "0".to_owned()),
        ("IMEX_CMD_ENABLED", "1".to_owned()),
        ("IMEX_CMD_UNIX_DOMAIN_PATH", files.command_socket.clone()),
        ("IMEX_NODE_CONFIG_FILE", files.node_map.clone()),
        ("LOG_FILE_NAME", String::new()),
        ("LOG_LEVEL", DAEMON_LOG_LEVEL.to_owned()),
        ("LOG_USE_SYSLOG", "0".to_owned()),
        ("SERVER_PORT", files.peer_port.to_string()),
    ];
    let gss = has_gss(domain);
    let mut settings: BTreeMap<String, String> = SETTINGS
        .iter()
        .filter(|setting| setting.set_by == SetBy::Operator || gss && setting.set_by == SetBy::OperatorWithGss)
        .filter_map(|setting| Some((setting.key.to_owned(), setting.ours?.to_owned())))
        .collect();
    settings.extend(domain.clone());
    for (key, value) in domain {
        let setting = setting_of(key)?;
        refuse_lines(key, value)?;
        // The table has the operator's values: TLS is the agent's alone, and what is a word to him may be a path of ours.
        if setting.takes != Takes::Word && (key.as_str(), value.as_str()) != ("IMEX_AUTH_ENCRYPTION_MODE", "SSL_TLS") {
            refuse_what_it_does_not_take(setting, value)?;
        }
        if let Some((_, ours)) = fixed.iter().find(|(name, ours)| name == key && ours != value && key != "LOG_LEVEL") {
            return invalid(format!("the IMEX setting {key} is the runner's own ({ours:?}) and cannot be set"));
        }
    }
    for (key, value) in operator {
        let setting = setting_of(key)?;
        refuse_lines(key, value)?;
        match setting.set_by {
            SetBy::Operator => {}
            SetBy::OperatorWithGss if gss || domain.is_empty() => {}
            SetBy::OperatorWithGss => {
                return invalid(format!(
                    "the IMEX setting {key} is Kerberos's, and these agents do not use that: set --peer-authentication \
                     gss, or remove it"
                ));
            }
            SetBy::Heddle(_) if fixed.iter().any(|(name, ours)| name == key && ours == value) => continue,
            SetBy::Heddle(why) => {
                return invalid(format!("the IMEX setting {key} cannot be set, it is Heddle's own: {why}"));
            }
        }
        refuse_what_it_does_not_take(setting, value)?;
        // No address is none of the operator's.
        if !(value.is_empty() && domain.contains_key(key)) {
            settings.insert(key.clone(), value.clone());
        }
    }
    settings.extend(fixed.map(|(key, value)| (key.to_owned(), value)));
    // The daemon would find its own port taken, and end, again and again.
    if settings.get("IMEX_CMD_PORT").and_then(|port| port.parse().ok()) == Some(files.peer_port) && files.peer_port != 0
    {
        return invalid(format!(
            "the IMEX setting IMEX_CMD_PORT is {}, at which peers reach the daemon: set another, or another --peer-port",
            files.peer_port
        ));
    }
    Ok(settings)
}

fn invalid<T>(what: String) -> Result<T, Fault> {
    Err(Fault::permanent(reason::SETTINGS, what))
}

/// A value of several lines would be several settings.
fn refuse_lines(key: &str, value: &str) -> Result<(), Fault> {
    if value.len() > 256 || value.chars().any(char::is_control) {
        return invalid(format!("the IMEX setting {key} has a value of several lines or of more than 256 bytes"));
    }
    Ok(())
}

fn refuse_what_it_does_not_take(setting: &Setting, value: &str) -> Result<(), Fault> {
    let key = setting.key;
    setting
        .takes
        .check(value)
        .or_else(|takes| invalid(format!("the IMEX setting {key} is {value:.80?}, it takes {takes}")))
}

fn has_gss(domain: &BTreeMap<String, String>) -> bool {
    domain.get("IMEX_AUTH_ENCRYPTION_MODE").is_some_and(|mode| mode.starts_with("GSS_"))
}

/// What a person who sets this should know before the day on which it matters.
pub fn settings_warnings(operator: &BTreeMap<String, String>) -> Vec<String> {
    let mut warnings = Vec::new();
    if operator.get("IMEX_NODE_DISCONNECTED_GRACE_TIME").is_some_and(|value| value == "-1") {
        warnings.push(
            "IMEX_NODE_DISCONNECTED_GRACE_TIME is -1: GPU memory that a peer had imported is kept for ever when the peer dies, \
             until the exporting job ends; set a finite time"
                .into(),
        );
    }
    if operator.get("IMEX_CMD_PORT").is_some_and(|value| !value.is_empty()) {
        warnings.push(
            "IMEX_CMD_PORT is set: whoever reaches that port can ask the daemon, unauthenticated; unset it when you have found \
             what you look for"
                .into(),
        );
    }
    warnings
}

/// What of the daemon's log the runner passes on, as a level of its own log. That has no level above errors.
pub fn forwarded_level(operator: &BTreeMap<String, String>) -> &'static str {
    match operator.get("LOG_LEVEL").map(String::as_str) {
        Some("0") => "off",
        Some("1" | "2") => "error",
        Some("3") => "warn",
        _ => "info",
    }
}

/// Reads settings as they stand in a file of NVIDIA's form: `KEY=value`, one a line, comments behind `#`.
///
/// # Errors
/// Permanent: the line that is none of these, or a key that comes twice.
pub fn settings_file(text: &str) -> Result<BTreeMap<String, String>, Fault> {
    let mut settings = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return invalid(format!("line {}: {line:.80?} is not KEY=value", number + 1));
        };
        if settings.insert(key.trim().to_owned(), value.trim().to_owned()).is_some() {
            return invalid(format!("line {}: {:.80} comes twice", number + 1, key.trim()));
        }
    }
    Ok(settings)
}

/// Of the settings in a daemon's configuration file those that an agent gives: where it listens, and how it knows its peers.
///
/// # Errors
/// As of [`settings_file`].
pub fn settings_of_agent(file: &str) -> Result<BTreeMap<String, String>, Fault> {
    let peers = identity_settings(&IdentityFiles::default(), "").into_keys().chain(gss_settings().into_keys());
    let given: BTreeSet<String> = peers.chain([BIND.to_owned()]).collect();
    Ok(settings_file(file)?.into_iter().filter(|(key, _)| given.contains(key)).collect())
}

/// The daemon's configuration file.
pub fn daemon_config(settings: &BTreeMap<String, String>) -> String {
    let head = "# Written by heddle imex-runner; changes are lost. Set values in the Helm chart.\n".to_owned();
    settings.iter().fold(head, |mut file, (key, value)| {
        let _ = writeln!(file, "{key}={value}");
        file
    })
}

#[cfg(test)]
mod tests {
    use super::super::gss_settings;
    use super::*;

    fn files() -> DaemonFiles {
        DaemonFiles { node_map: "/run/x/nodes.cfg".into(), command_socket: "/run/x/ctl.sock".into(), peer_port: 50000 }
    }

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// What an agent sends for a domain whose peers take anybody.
    fn domain() -> BTreeMap<String, String> {
        map(&[("BIND_INTERFACE_IP", "10.0.0.1")])
    }

    fn refused(operator: &[(&str, &str)]) -> String {
        daemon_settings(&files(), &map(operator), &domain()).unwrap_err().message
    }

    #[test]
    fn issue_1479_the_file_is_complete_and_finite() {
        let settings = daemon_settings(&files(), &map(&[]), &domain()).unwrap();
        let file = daemon_config(&settings);
        for line in [
            "BIND_INTERFACE_IP=10.0.0.1",
            "DAEMONIZE=0",
            "IMEX_CMD_PORT=",
            "IMEX_CMD_UNIX_DOMAIN_PATH=/run/x/ctl.sock",
            "IMEX_NODE_CONFIG_FILE=/run/x/nodes.cfg",
            "IMEX_NODE_DISCONNECTED_GRACE_TIME=120",
            "IMEX_WAIT_FOR_QUORUM=RECOVERY",
            "LOG_FILE_NAME=",
            "LOG_LEVEL=4",
            "SERVER_PORT=50000",
            "STATS_FILE_NAME=",
        ] {
            assert!(file.lines().any(|l| l == line), "{line} in {file}");
        }
        assert!(!file.contains("GSS"), "{file}");
    }

    #[test]
    fn issue_1479_every_key_of_the_operators_can_be_set() {
        let good = |setting: &super::super::Setting| match setting.key {
            "NETWORK_INTERFACE" => "eth0",
            "IMEX_AUTH_ENCRYPTION_MODE" => "GSS_AUTH_ONLY",
            "BIND_INTERFACE_IP" => "0.0.0.0",
            "IMEX_CMD_BIND_INTERFACE_IP" => "127.0.0.1",
            "IMEX_GSS_SERVICE_NAME" => "imex",
            "IMEX_WAIT_FOR_QUORUM" => "NONE",
            "STATS_FILE_NAME" => "/var/log/stats",
            _ => "1",
        };
        for setting in SETTINGS {
            let gss: BTreeMap<_, _> = domain().into_iter().chain(gss_settings()).collect();
            let set = daemon_settings(&files(), &map(&[(setting.key, good(setting))]), &gss);
            match setting.set_by {
                SetBy::Heddle(_) if set.is_ok() => assert_eq!(setting.key, "IMEX_CMD_ENABLED", "as it is"),
                SetBy::Heddle(why) => assert!(set.unwrap_err().message.ends_with(why)),
                _ if setting.key == "LOG_LEVEL" => assert_eq!(set.unwrap()["LOG_LEVEL"], "4", "the daemon's own"),
                _ => assert_eq!(set.unwrap()[setting.key], good(setting)),
            }
        }
        let levels = ["0", "1", "2", "3", "4"].map(|level| forwarded_level(&map(&[("LOG_LEVEL", level)])));
        assert_eq!(levels, ["off", "error", "error", "warn", "info"]);
        assert_eq!(forwarded_level(&map(&[])), "info");
    }

    #[test]
    fn issue_1479_grace_without_an_end_is_an_explicit_choice_that_is_warned_of() {
        let forever = map(&[("IMEX_NODE_DISCONNECTED_GRACE_TIME", "-1")]);
        assert_eq!(daemon_settings(&files(), &forever, &domain()).unwrap()["IMEX_NODE_DISCONNECTED_GRACE_TIME"], "-1");
        assert!(settings_warnings(&forever)[0].contains("for ever"));
        assert!(settings_warnings(&map(&[("IMEX_CMD_PORT", "50005")]))[0].contains("unauthenticated"));
        assert!(settings_warnings(&map(&[("IMEX_NODE_DISCONNECTED_GRACE_TIME", "0")])).is_empty());
    }

    #[test]
    fn what_would_be_lost_or_break_supervision_is_refused() {
        for (key, value, says) in [
            ("IMEX_NODE_DISCONNECT_GRACE_TIME", "60", "nearest that it has is IMEX_NODE_DISCONNECTED_GRACE_TIME"),
            ("IMEX_CONN_WAIT_TIMEOUT", "1", "no setting"),
            ("DAEMONIZE", "1", "Heddle's own: the runner must see"),
            ("LOG_FILE_NAME", "/var/log/imex", "says which member it is"),
            ("BIND_INTERFACE_IP", "everywhere", "an IPv4 or IPv6 address"),
            ("SERVER_PORT", "50001", "--peer-port"),
            ("IMEX_ENABLE_AUTH_ENCRYPTION", "0", "--peer-authentication"),
            ("IMEX_SERVER_KEY", "/k", "--peer-authentication"),
            ("IMEX_AUTH_ENCRYPTION_MODE", "SSL_TLS", "Kerberos's"),
            ("IMEX_GSS_SERVICE_NAME", "host", "--peer-authentication gss"),
            ("LOG_LEVEL", "4\nDAEMONIZE=1", "several lines"),
            ("LOG_LEVEL", "5", "a number from 0 to 4"),
            ("IMEX_WAIT_FOR_QUORUM", "FULL", "it takes NONE or RECOVERY"),
            ("IMEX_CMD_PORT", "50000", "set another"),
            ("IMEX_CMD_PORT", "050000", "set another"),
        ] {
            let message = refused(&[(key, value)]);
            assert!(message.contains(says), "{message}");
        }
        assert!(daemon_settings(&files(), &map(&[("DAEMONIZE", "0")]), &domain()).is_ok());
        let bent = map(&[("SERVER_PORT", "1")]);
        assert!(daemon_settings(&files(), &map(&[]), &bent).unwrap_err().message.contains("runner's own"));
        let nonsense = map(&[("BIND_INTERFACE_IP", "nonsense")]);
        let refused = daemon_settings(&files(), &map(&[]), &nonsense).unwrap_err();
        assert!(refused.message.contains("an IPv4 or IPv6 address"), "{refused}");
    }

    #[test]
    fn where_the_daemon_listens_is_the_operators_word_if_he_says_one() {
        for (said, expected) in [("::", "::"), ("", "10.0.0.1")] {
            let settings = daemon_settings(&files(), &map(&[("BIND_INTERFACE_IP", said)]), &domain()).unwrap();
            assert_eq!(settings["BIND_INTERFACE_IP"], expected);
        }
    }

    #[test]
    fn what_an_agent_has_given_is_read_from_the_daemons_file() {
        let own_keys = IdentityFiles { certificate: "/c".into(), key: "/k".into(), authority: "/a".into() };
        for peers in [BTreeMap::new(), gss_settings(), identity_settings(&own_keys, "d.x")] {
            let given: BTreeMap<_, _> = domain().into_iter().chain(peers).collect();
            let file = daemon_config(&daemon_settings(&files(), &map(&[("LOG_LEVEL", "3")]), &given).unwrap());
            assert_eq!(settings_of_agent(&file).unwrap(), given);
        }
    }

    #[test]
    fn kerberos_is_the_operators_where_the_agents_use_it() {
        let gss: BTreeMap<_, _> = domain().into_iter().chain(gss_settings()).collect();
        let settings = daemon_settings(&files(), &map(&[("IMEX_GSS_TIMEOUT_SEC", "5")]), &gss).unwrap();
        assert_eq!(settings["IMEX_AUTH_ENCRYPTION_MODE"], "GSS_AUTH_ENCRYPT");
        assert_eq!((&*settings["IMEX_GSS_TIMEOUT_SEC"], &*settings["IMEX_GSS_SHUTDOWN_ON_FAILURE"]), ("5", "0"));
        let only = map(&[("IMEX_AUTH_ENCRYPTION_MODE", "GSS_AUTH_ONLY")]);
        assert_eq!(
            daemon_settings(&files(), &only, &gss).unwrap()["IMEX_AUTH_ENCRYPTION_MODE"],
            "GSS_AUTH_ONLY",
            "before the agent's"
        );
        // At the start of a runner, before an agent has come, nobody knows yet.
        assert!(daemon_settings(&files(), &only, &map(&[])).is_ok());
    }

    #[test]
    fn a_file_is_read_as_the_daemon_reads_its_own() {
        let text = "# grace\n\nIMEX_NODE_DISCONNECTED_GRACE_TIME = 60\nLOG_LEVEL=3\n";
        let expected = map(&[("IMEX_NODE_DISCONNECTED_GRACE_TIME", "60"), ("LOG_LEVEL", "3")]);
        assert_eq!(settings_file(text).unwrap(), expected);
        assert!(settings_file("LOG_LEVEL: 3").unwrap_err().message.contains("line 1"));
        assert!(
            settings_file("LOG_LEVEL=3\nLOG_LEVEL=4").unwrap_err().message.contains("line 2: LOG_LEVEL comes twice")
        );
    }
}
