use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{DomainConfig, SENTINEL};
use crate::api::MissingPeer;

/// The first revision of the runner's contract that tells of connections one by one.
pub const LINKS_CONTRACT: u32 = 3;

/// What the daemon's view of the domain says of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnRow {
    /// Version of the driver that the daemon came with.
    pub version: String,
    /// Its word for the connection to each peer, itself left out.
    pub connections: BTreeMap<u32, String>,
}

/// The word for a connection that stands.
const CONNECTED: &str = "CONNECTED";
/// Our word for a line of the node map of which the daemon says nothing.
const UNLISTED: &str = "UNLISTED";

/// The node's own row in the answer to `nvidia-imex-ctl -N -j`. Words that we do not know are kept, cut at 32 characters;
/// fields that are missing are empty; none if the text is no such answer or has no row `index`.
pub fn own_row(json: &str, index: u32) -> Option<OwnRow> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Domain {
        nodes: BTreeMap<String, Node>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Node {
        version: String,
        connections: BTreeMap<String, Connection>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Connection {
        status: String,
    }
    let domain: Domain = serde_json::from_str(json).ok()?;
    let row = domain.nodes.get(&index.to_string())?;
    let peer = |(peer, link): (&String, &Connection)| {
        let peer = peer.parse::<u32>().ok().filter(|peer| *peer != index)?;
        Some((peer, link.status.chars().filter(|c| !c.is_control()).take(32).collect()))
    };
    let connections = row.connections.iter().filter_map(peer).collect();
    Some(OwnRow { version: row.version.chars().take(64).collect(), connections })
}

/// A row, beside what is expected of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Peers to which the connection stands.
    pub connected: BTreeSet<u32>,
    /// Peers that have an address and to which it does not stand.
    pub missing: Vec<MissingPeer>,
}

/// The connections of a daemon that serves `config`. Lines of the node map without an address have no daemon and are
/// missed by nobody.
pub fn links(row: &OwnRow, config: &DomainConfig) -> Links {
    let stands = |peer: &u32| row.connections.get(peer).is_some_and(|word| word == CONNECTED);
    let expected =
        (0..).zip(&config.hosts).filter(|(index, (address, _))| *index != config.index && address != SENTINEL);
    let missing = expected.map(|(index, _)| index).filter(|index| !stands(index));
    let word = |index: u32| match row.connections.get(&index).map(String::as_str) {
        None | Some("") => UNLISTED.to_owned(),
        Some(word) => word.to_owned(),
    };
    Links {
        missing: missing.map(|index| MissingPeer { index, state: word(index) }).collect(),
        connected: row.connections.keys().copied().filter(stands).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::desired;
    use super::super::domain::tests::{domain, node};
    use super::*;

    fn row(words: &[(u32, &str)]) -> OwnRow {
        let connections = words.iter().map(|(peer, word)| (*peer, (*word).to_owned())).collect();
        OwnRow { version: "580.30".into(), connections }
    }

    #[test]
    fn the_own_row_is_read_leniently() {
        let json = r#"{"nodes":{"1":{"status":"READY","host":"10.0.0.2","hostName":"","version":"580.30",
            "connections":{"1":{"host":"10.0.0.2","status":"CONNECTED","changed":false},
                           "0":{"host":"10.0.0.1","status":"CONNECTED","changed":true},
                           "x":{"status":"CONNECTED"},
                           "3":{},
                           "2":{"host":"10.0.0.3","status":"PONDERING","extra":7}},"changed":false}},
            "timestamp":"1/1/2026 00:00:00.000","status":"DEGRADED"}"#;
        assert_eq!(own_row(json, 1), Some(row(&[(0, "CONNECTED"), (2, "PONDERING"), (3, "")])));
        assert_eq!(own_row(json, 0), None);
        assert_eq!(own_row("connection refused", 1), None);
    }

    #[test]
    fn a_hostile_word_is_cut() {
        let json =
            r#"{"nodes":{"1":{"connections":{"0":{"status":"A\u001b[31mBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"}}}}}"#;
        let word = own_row(json, 1).unwrap().connections[&0].clone();
        assert_eq!((word.len(), word.contains('\u{1b}')), (32, false));
    }

    #[test]
    fn known_failure_degraded_lines_without_a_daemon_are_missed_by_nobody() {
        let config = desired(&node("n0", "d"), Some(&domain("d", 3))).unwrap();
        let all = links(&row(&[(1, "CONNECTED"), (2, "CONNECTED"), (3, "NEVER_CONNECTED")]), &config);
        assert_eq!((all.connected, all.missing), ([1, 2].into(), vec![]));
        let some = links(&row(&[(1, "PONDERING"), (3, "CONNECTED")]), &config);
        assert_eq!(some.connected, [3].into(), "a peer that has connected before we know its address");
        let said: Vec<_> = some.missing.iter().map(|peer| (peer.index, peer.state.as_str())).collect();
        assert_eq!(said, [(1, "PONDERING"), (2, "UNLISTED")]);
    }
}
