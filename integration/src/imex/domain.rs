//! An IMEX domain as `nvidia-imex-ctl -N` shows it: the word of every member, asked at its own command port.

use std::time::Duration;

use anyhow::Context as _;
use futures::future::join_all;
use jiff::Zoned;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::config::Config;
use super::ctl::{over_tcp, own};
use super::nodemap::NodeMap;
use super::os::Os;
use super::scenario::Ctl;
use super::state::{ConnectionState, DaemonState, DomainState};
use super::transport;
use super::wire::{self, Answer, Command};

/// How long one member's command port may take.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// All members at one moment.
#[derive(Debug)]
pub struct Domain {
    timestamp: String,
    nodes: Vec<Node>,
}

/// One member's own word.
#[derive(Debug)]
struct Node {
    host: String,
    /// Empty unless names are asked for.
    name: String,
    state: DaemonState,
    version: String,
    connections: Vec<Connection>,
    changed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    state: ConnectionState,
    changed: bool,
}

impl Domain {
    /// Asks every member: one that keeps its command port closed shows as unavailable, whatever its peers say. What is
    /// not as `before` shows as changed.
    pub async fn ask(os: &Os, config: &Config, map: &NodeMap, names: bool, before: Option<&Self>) -> Self {
        let own_id = map.own_id(os).ok().flatten().map(|(id, _)| usize::from(id));
        let ask = |(id, entry): (usize, &String)| {
            let addresses = os.resolve(entry);
            let host = addresses.first().map_or_else(|| entry.clone(), ToString::to_string);
            let name = if names { entry.clone() } else { String::new() };
            async move {
                let asked = async {
                    let mut daemon = if Some(id) == own_id {
                        own(os, config).await?
                    } else {
                        let port = config.command_port.context("no command port")?;
                        let at = |address| transport::at(address, port, config.interface.as_deref());
                        over_tcp(&addresses.into_iter().map(at).collect::<Result<Vec<_>, _>>()?).await?
                    };
                    wire::send(&mut daemon, &Command::Node).await?;
                    anyhow::Ok(wire::receive(&mut daemon).await?)
                };
                match timeout(MEMBER_TIMEOUT, asked).await {
                    Ok(Ok(Answer::Node { state, version, connections })) => {
                        Node::new(host, name, state, version, &connections)
                    }
                    _ => Node::new(host, name, DaemonState::Unavailable, String::new(), &[]),
                }
            }
        };
        let mut nodes = join_all(map.entries.iter().enumerate().map(ask)).await;
        for (id, node) in nodes.iter_mut().enumerate() {
            let nothing = Connection { state: ConnectionState::Invalid, changed: false };
            node.connections.resize(map.entries.len(), nothing);
            if let Some(before) = before.and_then(|before| before.nodes.get(id)) {
                node.compare(before);
            }
        }
        Self { timestamp: Zoned::now().strftime("%-m/%-d/%Y %H:%M:%S.%3f").to_string(), nodes }
    }

    fn state(&self) -> DomainState {
        let ready = |node: &Node| node.state == DaemonState::Ready;
        let connected = |node: &Node| node.connections.iter().all(|to| to.state == ConnectionState::Connected);
        if self.nodes.iter().all(|node| ready(node) && connected(node)) {
            DomainState::Up
        } else if self.nodes.iter().any(ready) {
            DomainState::Degraded
        } else {
            DomainState::Down
        }
    }

    /// The domain's `status` is last: a known parser takes the last `"status":` that it finds.
    pub fn as_json(&self, odd: &Ctl) -> String {
        let text = if odd.pretty { serde_json::to_string_pretty } else { serde_json::to_string };
        // Maps with keys of text have a JSON form.
        text(&self.shown(odd)).unwrap_or_default()
    }

    fn shown<'a>(&'a self, odd: &'a Ctl) -> Shown<'a> {
        let connection = |(id, to): (usize, &'a Connection)| {
            let status = odd.spelling.get(&to.state).map_or_else(|| json!(to.state), |spelling| json!(spelling));
            (id, ShownConnection { host: &self.nodes[id].host, status, changed: to.changed })
        };
        let node = |(id, node): (usize, &'a Node)| {
            let shown = ShownNode {
                status: node.state,
                host: &node.host,
                host_name: &node.name,
                version: &node.version,
                connections: Unsorted(node.connections.iter().enumerate().map(connection).collect()),
                changed: node.changed,
            };
            (id, shown)
        };
        Shown {
            nodes: Unsorted(self.nodes.iter().enumerate().map(node).collect()),
            timestamp: &self.timestamp,
            status: self.state(),
        }
    }

    /// A line a node, and the matrix of their connections. Its layout is not documented.
    pub fn as_text(&self) -> String {
        let mut text = format!("{LEGEND}\n{}\nNodes:\n", self.timestamp);
        for (id, node) in self.nodes.iter().enumerate() {
            let name = if node.name.is_empty() { String::new() } else { format!(" ({})", node.name) };
            text += &format!("Node #{id:<3} - {}{name} - {} - Version: {}\n", node.host, node.state, node.version);
        }
        text += "\n Nodes From\\To ";
        for id in 0..self.nodes.len() {
            text += &format!(" {id:<3}");
        }
        for (id, node) in self.nodes.iter().enumerate() {
            text += &format!("\n       {id:<8}");
            for to in &node.connections {
                text += &format!(" {:<3}", to.state.letters());
            }
        }
        text + &format!("\nDomain State: {}", self.state())
    }
}

impl Node {
    fn new(host: String, name: String, state: DaemonState, version: String, connections: &[ConnectionState]) -> Self {
        let connections = connections.iter().map(|state| Connection { state: *state, changed: false }).collect();
        Self { host, name, state, version, connections, changed: false }
    }

    fn compare(&mut self, before: &Self) {
        self.changed = self.state != before.state;
        for (now, before) in self.connections.iter_mut().zip(&before.connections) {
            now.changed = now.state != before.state;
        }
    }
}

const LEGEND: &str = "\
Connectivity Table Legend:
I - Invalid - the node could not be reached, nothing is known of its connections
N - Never connected
R - Recovering - the connection was lost, nothing has been cleaned up yet
D - Disconnected - the connection was lost, and what it brought has been cleaned up
A - Authenticating
!V! - Another version, nothing is exchanged
!M! - Another node map, nothing is exchanged
C - Connected
";

#[derive(Serialize)]
struct Shown<'a> {
    nodes: Unsorted<ShownNode<'a>>,
    timestamp: &'a str,
    status: DomainState,
}

#[derive(Serialize)]
struct ShownNode<'a> {
    status: DaemonState,
    host: &'a str,
    #[serde(rename = "hostName")]
    host_name: &'a str,
    version: &'a str,
    connections: Unsorted<ShownConnection<'a>>,
    changed: bool,
}

#[derive(Serialize)]
struct ShownConnection<'a> {
    host: &'a str,
    status: Value,
    changed: bool,
}

/// By id, out of order, as the real tool has them.
struct Unsorted<T>(Vec<(usize, T)>);

impl<T: Serialize> Serialize for Unsorted<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().rev().map(|(id, value)| (id.to_string(), value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: DaemonState, connections: &[ConnectionState]) -> Node {
        Node::new("127.10.0.1".into(), String::new(), state, "595.71.05".into(), connections)
    }

    fn domain(nodes: impl Into<Vec<Node>>) -> Domain {
        Domain { timestamp: "1/2/2026 03:04:05.006".into(), nodes: nodes.into() }
    }

    #[test]
    fn a_domain_is_up_only_with_every_line_of_the_map() {
        use ConnectionState::{Connected, Invalid, NeverConnected};
        let up = || node(DaemonState::Ready, &[Connected, Connected]);
        assert_eq!(domain([up(), up()]).state(), DomainState::Up);
        let alone = || node(DaemonState::Ready, &[Connected, NeverConnected]);
        let gone = || node(DaemonState::Unavailable, &[Invalid, Invalid]);
        assert_eq!(domain([alone(), gone()]).state(), DomainState::Degraded);
        assert_eq!(domain([gone(), gone()]).state(), DomainState::Down);
    }

    #[test]
    fn json_is_compact_and_ends_with_the_status() {
        use ConnectionState::{Connected, MapMismatch};
        let gone = node(DaemonState::Unavailable, &[ConnectionState::Invalid; 2]);
        let domain = domain([node(DaemonState::Ready, &[Connected, MapMismatch]), gone]);
        let text = domain.as_json(&Ctl::default());
        let one = r#""1":{"status":"UNAVAILABLE","host":"127.10.0.1","hostName":"","version":"595.71.05","connections":{"1":{"#;
        assert!(text.starts_with(&format!("{{\"nodes\":{{{one}")), "{text}");
        assert!(text.ends_with(r#""timestamp":"1/2/2026 03:04:05.006","status":"DEGRADED"}"#), "{text}");
        let parsed: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(parsed["nodes"]["0"]["connections"]["1"]["status"], "MAP_MISMATCH");
        assert!(domain.as_text().contains("!M!"));

        let spelling = [(MapMismatch, "NODE_MAP".to_owned())].into();
        let odd = Ctl { pretty: true, spelling, ..Ctl::default() };
        let text = domain.as_json(&odd);
        assert!(text.lines().count() > 10 && text.contains("\"NODE_MAP\""), "{text}");
    }

    #[test]
    fn what_differs_from_the_look_before_has_changed() {
        use ConnectionState::{Connected, Recovering};
        let before = node(DaemonState::Ready, &[Connected, Connected]);
        let mut now = node(DaemonState::Ready, &[Connected, Recovering]);
        now.compare(&before);
        assert_eq!((now.changed, now.connections[0].changed, now.connections[1].changed), (false, false, true));
    }
}
