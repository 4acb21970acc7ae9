//! An IMEX daemon that the host runs: what its files tell, and whether it can be used.

use std::net::IpAddr;

use super::{DaemonState, sha256};

/// What matters of the host's own configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// `IMEX_NODE_CONFIG_FILE`.
    pub node_map: String,
    /// `BIND_INTERFACE_IP`.
    pub address: Option<IpAddr>,
    /// `IMEX_CMD_UNIX_DOMAIN_PATH`; none where it opens no socket.
    pub command_socket: Option<String>,
}

/// Where NVIDIA's package has the node map.
const NODE_MAP: &str = "/etc/nvidia-imex/nodes_config.cfg";

/// Reads the host's configuration file, as leniently as the daemon: of a key that comes twice the last counts.
pub fn host_config(text: &str) -> HostConfig {
    let mut config = HostConfig { node_map: NODE_MAP.into(), address: None, command_socket: None };
    for line in lines(text) {
        let Some((key, value)) = line.split_once('=') else { continue };
        let value = value.trim();
        match key.trim() {
            "IMEX_NODE_CONFIG_FILE" if !value.is_empty() => config.node_map = value.to_owned(),
            "BIND_INTERFACE_IP" => config.address = value.parse().ok(),
            "IMEX_CMD_UNIX_DOMAIN_PATH" => {
                config.command_socket = Some(value).filter(|path| !path.is_empty()).map(str::to_owned);
            }
            _ => {}
        }
    }
    config
}

/// A node map that the host keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMap {
    /// SHA-256 of its entries, in hex: alike on all members of a domain.
    pub hash: String,
    /// Its entries.
    pub entries: usize,
    /// The entry with an address of this node; none if it cannot be told, as where a name is resolved elsewhere.
    pub index: Option<u32>,
}

/// Reads a node map: an address or a name a line, by whose order a node knows its index. `hosts` is the host's `/etc/hosts`,
/// `own` are addresses of this node.
pub fn host_map(text: &str, hosts: &str, own: &[IpAddr]) -> HostMap {
    let entries: Vec<&str> = lines(text).collect();
    let is_own = |entry: &&str| match entry.parse::<IpAddr>() {
        Ok(address) => own.contains(&address),
        Err(_) => resolve(entry, hosts).any(|address| own.contains(&address)),
    };
    let index = entries.iter().position(is_own).and_then(|index| u32::try_from(index).ok());
    // The hash is of the list: a blank at its end is no other domain.
    HostMap { hash: sha256(&(entries.join("\n") + "\n")), entries: entries.len(), index }
}

fn resolve<'a>(name: &'a str, hosts: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
    lines(hosts).filter_map(move |line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.any(|word| word == name).then_some(address)
    })
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// What is known of a daemon that the host runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDaemon {
    /// Its own word; `Unavailable` while it does not answer.
    pub state: DaemonState,
    /// Why it is not READY, in words.
    pub message: String,
    /// Its node map; or why that is not known.
    pub map: Result<HostMap, String>,
}

impl HostDaemon {
    /// One of which nothing is known yet.
    pub fn unasked() -> Self {
        let message = "the host's IMEX daemon has not been asked yet".to_owned();
        Self { state: DaemonState::Unavailable, message, map: Err("it has not been read yet".into()) }
    }

    /// Whether it can serve claims of the shared domain of the clique. What its files say is no condition of that: they may be
    /// out of reach, and the daemon has checked them itself when it started.
    ///
    /// # Errors
    /// The reason in words.
    pub fn readiness(&self) -> Result<(), String> {
        match (&self.state, self.message.as_str()) {
            (DaemonState::Ready, _) => Ok(()),
            (state, "") => Err(format!("the host's IMEX daemon is {state}, not READY")),
            (_, why) => Err(why.to_owned()),
        }
    }

    /// What could not be checked of one that is READY.
    pub fn unchecked(&self) -> Option<String> {
        match &self.map {
            Err(why) => Some(format!("the host's node map could not be checked: {why}")),
            Ok(HostMap { index: None, entries, .. }) => Some(format!(
                "none of the {entries} entries of the host's node map can be told to be this node's: its index is not known"
            )),
            Ok(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hosts_configuration_names_its_node_map() {
        let text = "# of the package\nIMEX_NODE_CONFIG_FILE=/etc/imex/nodes\nBIND_INTERFACE_IP = 10.0.0.2\nLOG_LEVEL=4\nodd\n\
                    IMEX_CMD_UNIX_DOMAIN_PATH=/etc/nvidia-imex/imex_ctrl.sock\n";
        let config = host_config(text);
        assert_eq!((config.node_map.as_str(), config.address), ("/etc/imex/nodes", "10.0.0.2".parse().ok()));
        assert_eq!(config.command_socket.as_deref(), Some("/etc/nvidia-imex/imex_ctrl.sock"));
        let none = host_config("BIND_INTERFACE_IP=\nIMEX_CMD_UNIX_DOMAIN_PATH=\nIMEX_NODE_CONFIG_FILE=\n");
        assert_eq!(none, HostConfig { node_map: NODE_MAP.into(), address: None, command_socket: None });
    }

    #[test]
    fn issue_433_maps_are_compared_by_their_entries_and_their_order() {
        let own = ["10.0.0.2".parse().unwrap()];
        let map = |text: &str| host_map(text, "", &own);
        let first = map("10.0.0.1\n10.0.0.2\n10.0.0.3\n");
        assert_eq!((first.index, first.entries), (Some(1), 3));
        assert_eq!(map("# rack 7\n10.0.0.1\n\n10.0.0.2  \n10.0.0.3"), first);
        assert_ne!(map("10.0.0.2\n10.0.0.1\n10.0.0.3\n").hash, first.hash);
        assert_eq!(map("10.0.0.2\n10.0.0.1\n").index, Some(0));
        assert_eq!(map("10.0.0.20\n").index, None);
    }

    #[test]
    fn names_are_looked_for_in_the_hosts_file() {
        let own = ["fd00::2".parse().unwrap()];
        let hosts = "127.0.0.1 localhost\nfd00::1 rack-00\nfd00::2\track-01 alias # rack-02\n";
        assert_eq!(host_map("rack-00\nalias\n", hosts, &own).index, Some(1));
        assert_eq!(host_map("rack-00\nrack-02\n", hosts, &own).index, None);
    }

    #[test]
    fn only_the_daemons_own_word_decides() {
        let map = Ok(HostMap { index: Some(3), ..HostMap::default() });
        let daemon = HostDaemon { state: DaemonState::Ready, message: String::new(), map };
        assert_eq!((daemon.readiness(), daemon.unchecked()), (Ok(()), None));
        let unreadable = HostDaemon { map: Err("not there".into()), ..daemon.clone() };
        assert_eq!(unreadable.readiness(), Ok(()));
        assert!(unreadable.unchecked().unwrap().contains("not there"));
        let unknown = HostDaemon { map: Ok(HostMap { entries: 18, ..HostMap::default() }), ..daemon.clone() };
        assert!(unknown.unchecked().unwrap().contains("none of the 18"));
        let waits = HostDaemon { state: DaemonState::WaitingForPeers, ..daemon.clone() };
        assert!(waits.readiness().unwrap_err().contains("WAITING_FOR_PEERS"));
        let away = HostDaemon { state: DaemonState::Unavailable, message: "no socket".into(), ..daemon };
        assert_eq!(away.readiness(), Err("no socket".into()));
    }
}
