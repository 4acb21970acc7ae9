use std::fmt;
use std::net::IpAddr;

/// The state of a daemon, by its own word.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DaemonState {
    /// It begins.
    Initializing,
    /// It opens the server for authenticated peers.
    StartingAuthServer,
    /// It waits for its quorum.
    WaitingForPeers,
    /// It waits for the importers of its last life.
    WaitingForRecovery,
    /// It prepares the GPUs.
    InitGpu,
    /// It serves.
    Ready,
    /// It ends.
    ShuttingDown,
    /// It does not answer.
    Unavailable,
    /// None runs. Our own word.
    #[default]
    Down,
    /// A word that we do not know, as [`DaemonState::parse`] keeps it: never one that we know.
    Other(String),
}

const WORDS: &[(&str, DaemonState)] = &[
    ("INITIALIZING", DaemonState::Initializing),
    ("STARTING_AUTH_SERVER", DaemonState::StartingAuthServer),
    ("WAITING_FOR_PEERS", DaemonState::WaitingForPeers),
    ("WAITING_FOR_RECOVERY", DaemonState::WaitingForRecovery),
    ("INIT_GPU", DaemonState::InitGpu),
    ("READY", DaemonState::Ready),
    ("SHUTTING_DOWN", DaemonState::ShuttingDown),
    ("UNAVAILABLE", DaemonState::Unavailable),
    ("DOWN", DaemonState::Down),
];

impl DaemonState {
    /// Reads the control tool's answer: one word and a line end. The whole word is compared, as `NOT_READY` contains
    /// `READY`; an unknown one is kept, cut at 64 characters, with what cannot be seen written out: whoever reads it again must
    /// not find a word that was not said.
    pub fn parse(text: &str) -> Self {
        let word = text.strip_suffix('\n').unwrap_or(text);
        let known = WORDS.iter().find(|(known, _)| *known == word).map(|(_, state)| state.clone());
        known.unwrap_or_else(|| Self::Other(word.chars().flat_map(visible).take(64).collect()))
    }
}

fn visible(c: char) -> Vec<char> {
    match c {
        ' ' => c.escape_unicode().collect(),
        c if c.is_whitespace() || c.is_control() => c.escape_default().collect(),
        c => vec![c],
    }
}

impl fmt::Display for DaemonState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match WORDS.iter().find(|(_, state)| state == self) {
            Some((word, _)) => f.write_str(word),
            None => match self {
                Self::Other(word) => f.write_str(word),
                _ => Ok(()),
            },
        }
    }
}

/// A node's daemon as its runner reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemon {
    /// The domain that it was started for; none while none is configured.
    pub domain: Option<String>,
    /// Its own word.
    pub state: DaemonState,
    /// Its index by its own word.
    pub index: Option<u32>,
    /// SHA-256 of the node map that it was started with, in hex.
    pub node_map_hash: String,
    /// Why it is not READY, for people.
    pub message: String,
    /// The address at which it listens for peers; none if it listens at all of them, or if that is not known.
    pub listens_at: Option<IpAddr>,
}

/// The own index in the daemon's log line `… Identified this node as ID <n>`, which is authoritative (upstream 1418).
pub fn own_index(log_line: &str) -> Option<u32> {
    let (_, rest) = log_line.split_once("Identified this node as ID ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_the_whole_word() {
        assert_eq!(DaemonState::parse("READY\n"), DaemonState::Ready);
        for text in ["NOT_READY\n", "READY \n", "READY\n\n", "ready\n", "READY\nwarning\n", ""] {
            assert_ne!(DaemonState::parse(text), DaemonState::Ready, "{text:?}");
        }
    }

    #[test]
    fn a_state_is_written_as_it_was_read() {
        for (word, state) in WORDS {
            assert_eq!(&DaemonState::parse(word), state);
            assert_eq!(state.to_string(), *word);
        }
        assert_eq!(DaemonState::parse("DREAMING\n").to_string(), "DREAMING");
        for text in ["READY \n", " READY", "READY\r\n", "READY\n\n", "\tREADY", "READY\u{a0}", "NOT_READY\n"] {
            let kept = DaemonState::parse(text);
            assert!(matches!(kept, DaemonState::Other(_)), "{text:?}");
            // By the runner's contract it is read once more.
            let said = kept.to_string();
            assert_eq!(DaemonState::parse(&said), kept, "{said}");
            assert_ne!(said.trim(), "READY", "{text:?}");
        }
        assert_eq!(DaemonState::parse("READY\r\n").to_string(), r"READY\r");
        assert_eq!(DaemonState::parse(&"x".repeat(1000)).to_string().len(), 64);
    }

    #[test]
    fn the_index_is_read_from_the_log() {
        let line = "[Nov 30 2026 02:29:32] [INFO] [tid 42] Identified this node as ID 13, using bind IP of '10.0.0.1'";
        assert_eq!(own_index(line), Some(13));
        assert_eq!(own_index("Identified this node as ID 0"), Some(0));
        assert_eq!(own_index("Identified this node as ID x"), None);
        assert_eq!(own_index("Attempting connection for target node 13"), None);
    }
}
