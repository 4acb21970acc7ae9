use std::net::IpAddr;

use crate::fault::{Fault, reason};

/// One key of the daemon's configuration file.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name in the file.
    pub key: &'static str,
    /// What NVIDIA's package has; none where no source says it.
    pub package: Option<&'static str>,
    /// What Heddle has where nobody sets it; none leaves it out of the file, so that the daemon decides.
    pub ours: Option<&'static str>,
    /// What it takes.
    pub takes: Takes,
    /// Who sets it.
    pub set_by: SetBy,
    /// What it does.
    pub meaning: &'static str,
}

/// Who sets a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBy {
    /// The operator, by the Helm value `imex.settings`.
    Operator,
    /// The operator, where `--peer-authentication` of the agents is `gss`.
    OperatorWithGss,
    /// The runner or the agent; why nobody else, to follow "it is Heddle's own:".
    Heddle(&'static str),
}

/// The values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// `0` or `1`.
    Flag,
    /// A whole number from here to there.
    Number(i64, i64),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// An absolute path of at most 256 characters, or nothing.
    Path,
    /// An address, or nothing.
    Address,
    /// A port, or nothing.
    Port,
    /// Name of a network interface, or nothing.
    Interface,
    /// A word.
    Word,
}

/// Longest path that the daemon takes, by NVIDIA's guide.
const LONGEST_PATH: usize = 256;
/// Longest name of a network interface on Linux.
const LONGEST_INTERFACE: usize = 15;

impl Takes {
    /// Whether the key takes this value.
    ///
    /// # Errors
    /// What it takes instead, in words.
    pub fn check(self, value: &str) -> Result<(), String> {
        let plain = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
        let fits = match self {
            Self::Flag => matches!(value, "0" | "1"),
            Self::Number(least, most) => value.parse().is_ok_and(|number| (least..=most).contains(&number)),
            Self::OneOf(words) => words.contains(&value),
            Self::Path => value.is_empty() || (value.starts_with('/') && value.chars().count() <= LONGEST_PATH),
            Self::Address => value.is_empty() || value.parse::<IpAddr>().is_ok(),
            Self::Port => value.is_empty() || value.parse::<u16>().is_ok(),
            Self::Interface => value.is_empty() || (plain(value) && value.len() <= LONGEST_INTERFACE),
            Self::Word => plain(value) && value.len() <= 253,
        };
        if fits { Ok(()) } else { Err(self.to_string()) }
    }
}

impl std::fmt::Display for Takes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag => f.write_str("0 or 1"),
            Self::Number(least, i64::MAX) => write!(f, "a number from {least} up"),
            Self::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Self::OneOf(words) => f.write_str(&words.join(" or ")),
            Self::Path => write!(f, "an absolute path of at most {LONGEST_PATH} characters, or nothing"),
            Self::Address => f.write_str("an IPv4 or IPv6 address, or nothing"),
            Self::Port => f.write_str("a port from 0 to 65535, or nothing"),
            Self::Interface => f.write_str("the name of a network interface, or nothing"),
            Self::Word => f.write_str("one word"),
        }
    }
}

const LOG: &str = "the runner reads the daemon's log on stderr, where the daemon says which member it is";
const SUPERVISED: &str = "the runner must see the daemon end, and ask it how it is";
const AUTHENTICATION: &str = "it follows from --peer-authentication of the agents";

const fn setting(
    key: &'static str,
    package: Option<&'static str>,
    ours: Option<&'static str>,
    takes: Takes,
    set_by: SetBy,
    meaning: &'static str,
) -> Setting {
    Setting { key, package, ours, takes, set_by, meaning }
}

/// Every key that a source documents, in their order. Others are refused: the daemon would ignore a mistyped one without a
/// word.
///
/// The grace time is finite: the package's -1 keeps the exports to a dead peer for ever and so leaks GPU memory
/// (upstream 1479). Two minutes outlast a switch's restart and a node's network hiccup. With Kerberos a failure costs one
/// peer and not the daemon, whose end ends jobs, and is given up after a while.
pub const SETTINGS: &[Setting] = {
    use SetBy::{Heddle, Operator, OperatorWithGss};
    use Takes::{Address, Flag, Interface, Number, OneOf, Path, Port, Word};
    const MAX: i64 = i64::MAX;
    &[
        setting(
            "BIND_INTERFACE_IP",
            Some(""),
            None,
            Address,
            Operator,
            "address at which this node's daemon listens; by itself that at which peers look for it. 0.0.0.0 or :: is every \
             one, if your nvidia-imex takes it: then no address is worth a restart",
        ),
        setting("DAEMONIZE", Some("1"), Some("0"), Flag, Heddle(SUPERVISED), "1 goes to the background"),
        setting(
            "IMEX_AUTH_ENCRYPTION_MODE",
            Some("SSL_TLS"),
            None,
            OneOf(&["GSS_AUTH_ENCRYPT", "GSS_AUTH_ONLY"]),
            OperatorWithGss,
            "whether Kerberos encrypts too; SSL_TLS with the other modes of authentication",
        ),
        setting(
            "IMEX_AUTH_SOURCE",
            Some(""),
            None,
            OneOf(&["FILE", "ENV_PATH", "ENV_VAL"]),
            Heddle(AUTHENTICATION),
            "where keys and certificates are",
        ),
        setting("IMEX_CLIENT_CERT", Some(""), None, Word, Heddle(AUTHENTICATION), "certificate shown where it dials"),
        setting(
            "IMEX_CLIENT_CERT_AUTH",
            Some(""),
            None,
            Word,
            Heddle(AUTHENTICATION),
            "authority of those that it dials",
        ),
        setting("IMEX_CLIENT_KEY", Some(""), None, Word, Heddle(AUTHENTICATION), "key of that certificate"),
        setting(
            "IMEX_CMD_BIND_INTERFACE_IP",
            None,
            None,
            Address,
            Operator,
            "address of the command port; nothing is every interface",
        ),
        setting("IMEX_CMD_ENABLED", None, Some("1"), Flag, Heddle(SUPERVISED), "the daemon can be asked how it is"),
        setting(
            "IMEX_CMD_PORT",
            None,
            Some(""),
            Port,
            Operator,
            "command port, for nvidia-imex-ctl -N across the domain while you look for a fault; nothing opens none",
        ),
        setting(
            "IMEX_CMD_UNIX_DOMAIN_PATH",
            None,
            Some("imex.sock in the runner's folder"),
            Path,
            Heddle(SUPERVISED),
            "command socket",
        ),
        setting(
            "IMEX_ENABLE_AUTH_ENCRYPTION",
            Some("0"),
            None,
            Flag,
            Heddle(AUTHENTICATION),
            "peers are authenticated",
        ),
        setting(
            "IMEX_GSS_RETRY_INTERVAL_SEC",
            Some("5"),
            None,
            Number(0, MAX),
            OperatorWithGss,
            "seconds between attempts",
        ),
        setting(
            "IMEX_GSS_SEC_CONTEXT_LIFETIME_SEC",
            Some("-1"),
            None,
            Number(-1, MAX),
            OperatorWithGss,
            "life of a security context, in seconds; -1 has no end",
        ),
        setting("IMEX_GSS_SERVICE_NAME", Some("host"), None, Word, OperatorWithGss, "Kerberos service principal"),
        setting(
            "IMEX_GSS_SHUTDOWN_ON_FAILURE",
            Some("1"),
            Some("0"),
            Flag,
            OperatorWithGss,
            "a failed authentication ends the daemon, and with it the node's jobs; 0 drops that peer",
        ),
        setting(
            "IMEX_GSS_TIMEOUT_SEC",
            Some("-1"),
            Some("30"),
            Number(-1, MAX),
            OperatorWithGss,
            "seconds until an attempt is given up; -1 never",
        ),
        setting(
            "IMEX_NODE_CONFIG_FILE",
            Some("/etc/nvidia-imex/nodes_config.cfg"),
            Some("nodes.cfg in the runner's folder"),
            Path,
            Heddle("the node map is made from the IMEXDomain"),
            "node map",
        ),
        setting(
            "IMEX_NODE_DISCONNECTED_GRACE_TIME",
            Some("-1"),
            Some("120"),
            Number(-1, MAX),
            Operator,
            "seconds for which a peer that is gone keeps its imports; 0 none; -1 for ever, which leaks the GPU memory that a \
             dead peer had imported",
        ),
        setting(
            "IMEX_SECURITY_TARGET_OVERRIDE",
            Some(""),
            None,
            Word,
            Heddle(AUTHENTICATION),
            "name in the peers' certificates",
        ),
        setting("IMEX_SERVER_CERT", Some(""), None, Word, Heddle(AUTHENTICATION), "certificate shown to who dials"),
        setting("IMEX_SERVER_CERT_AUTH", Some(""), None, Word, Heddle(AUTHENTICATION), "authority of those that dial"),
        setting("IMEX_SERVER_KEY", Some(""), None, Word, Heddle(AUTHENTICATION), "key of that certificate"),
        setting(
            "IMEX_WAIT_FOR_QUORUM",
            Some("RECOVERY"),
            Some("RECOVERY"),
            OneOf(&["NONE", "RECOVERY"]),
            Operator,
            "whom a starting daemon waits for: nobody, or, after an unclean end, those that had imported from it. FULL of \
             older releases would wait for members that do not exist",
        ),
        setting("LOG_APPEND_TO_LOG", Some("1"), None, Flag, Operator, "1 adds to log files, 0 overwrites them"),
        setting("LOG_FILE_MAX_SIZE", Some("1024"), None, Number(1, MAX), Operator, "MB of a log file"),
        setting("LOG_FILE_NAME", Some("/var/log/nvidia-imex.log"), Some(""), Path, Heddle(LOG), "log file"),
        setting(
            "LOG_LEVEL",
            Some("4"),
            Some("4"),
            Number(0, 4),
            Operator,
            "what of the daemon's log the runner passes on: 0 nothing, 1 or 2 errors, 3 warnings, 4 all. The daemon \
             itself has 4: the runner reads there which member it is",
        ),
        setting(
            "LOG_MAX_ROTATE_COUNT",
            None,
            None,
            Number(0, MAX),
            Operator,
            "full log files that are kept; 0 stops logging when one is full",
        ),
        setting("LOG_USE_SYSLOG", Some("0"), Some("0"), Flag, Heddle(LOG), "log to syslog"),
        setting(
            "NETWORK_INTERFACE",
            Some(""),
            None,
            Interface,
            Operator,
            "interface of IPv6 link-local addresses, where there are several",
        ),
        setting(
            "SERVER_PORT",
            Some("50000"),
            Some("50000"),
            Port,
            Heddle("it is --peer-port of the runner, the same on all nodes"),
            "port for peers",
        ),
        setting(
            "STATS_FILE_NAME",
            Some("/var/log/nvidia-imex-stats.log"),
            Some(""),
            Path,
            Operator,
            "statistics, as the daemon sees the path; nothing is stderr",
        ),
    ]
};

/// The key of this name.
///
/// # Errors
/// Permanent: there is none; the nearest is named.
pub fn setting_of(key: &str) -> Result<&'static Setting, Fault> {
    SETTINGS.iter().find(|known| known.key == key).ok_or_else(|| {
        let nearest = SETTINGS.iter().min_by_key(|known| distance(key, known.key)).map_or("", |known| known.key);
        let text = format!("the IMEX daemon has no setting {key:.80}; the nearest that it has is {nearest}");
        Fault::permanent(reason::SETTINGS, text)
    })
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

    #[test]
    fn every_default_is_one_that_the_key_takes() {
        for setting in SETTINGS.iter().filter(|setting| setting.set_by == SetBy::Operator) {
            for value in [setting.package, setting.ours].into_iter().flatten() {
                assert_eq!(setting.takes.check(value), Ok(()), "{}={value}", setting.key);
            }
        }
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.key));
    }

    #[test]
    fn values_are_compared_with_what_the_guide_says() {
        let takes = |key: &str, value: &str| setting_of(key).unwrap().takes.check(value);
        for (key, good, bad) in [
            ("LOG_LEVEL", "0", "5"),
            ("LOG_LEVEL", "4", "INFO"),
            ("LOG_APPEND_TO_LOG", "1", "yes"),
            ("LOG_FILE_MAX_SIZE", "1", "0"),
            ("IMEX_WAIT_FOR_QUORUM", "NONE", "FULL"),
            ("IMEX_NODE_DISCONNECTED_GRACE_TIME", "-1", "-2"),
            ("IMEX_NODE_DISCONNECTED_GRACE_TIME", "0", "2m"),
            ("IMEX_CMD_PORT", "50005", "65536"),
            ("IMEX_CMD_PORT", "", "-1"),
            ("IMEX_CMD_BIND_INTERFACE_IP", "fd00::1", "node-1"),
            ("NETWORK_INTERFACE", "eth0", "a-name-that-is-too-long"),
            ("STATS_FILE_NAME", "/var/log/x", "var/log/x"),
            ("IMEX_GSS_SERVICE_NAME", "host", "two words"),
            ("IMEX_AUTH_ENCRYPTION_MODE", "GSS_AUTH_ONLY", "SSL_TLS"),
        ] {
            assert_eq!(takes(key, good), Ok(()), "{key}={good}");
            assert!(takes(key, bad).is_err(), "{key}={bad}");
        }
        assert!(takes("STATS_FILE_NAME", &format!("/{}", "x".repeat(256))).unwrap_err().contains("256"));
    }
}
