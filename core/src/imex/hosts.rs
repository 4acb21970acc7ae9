use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::member_name;
use crate::api::IMEXDomain;

/// Address of the names that no daemon stands behind: unused lines of the node map and members that are away.
///
/// A name without an address would be asked of DNS for ever (upstream 1465), an address outside the node would send a
/// connection attempt into the network every few seconds, and one of the node may be the daemon itself. To this one the
/// kernel refuses a TCP connection at once and sends nothing; and as no interface carries it, a daemon never takes an unused
/// line for its own.
pub const SENTINEL: &str = "255.255.255.255";

/// Address and name of every line of the domain's node map, in its order.
pub fn hosts(domain: &IMEXDomain) -> Vec<(String, String)> {
    let name = domain.metadata.name.as_deref().unwrap_or_default();
    let present: BTreeMap<u32, &str> = domain
        .spec
        .members
        .values()
        .filter(|member| !member.away && !member.address.is_empty())
        .map(|member| (member.index, member.address.as_str()))
        .collect();
    (0..domain.spec.max_members)
        .map(|index| (present.get(&index).copied().unwrap_or(SENTINEL).to_owned(), member_name(name, index)))
        .collect()
}

/// The hosts file that the daemon sees.
pub fn hosts_file(hosts: &[(String, String)]) -> String {
    let head = "# Written by heddle imex-runner; changes are lost.\n127.0.0.1 localhost\n::1 localhost\n".to_owned();
    hosts.iter().fold(head, |mut file, (address, name)| {
        let _ = writeln!(file, "{address} {name}");
        file
    })
}

/// Addresses and names that such a file has for the names of a node map.
pub fn hosts_in(file: &str, node_map: &str) -> Vec<(String, String)> {
    let entries = file.lines().filter_map(|line| line.split_once(' '));
    let ours = entries.filter(|(_, name)| node_map.lines().any(|member| member == *name));
    ours.map(|(address, name)| (address.to_owned(), name.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::super::domain::tests::domain;
    use super::*;

    #[test]
    fn every_line_of_the_node_map_has_an_address() {
        let mut domain = domain("d", 3);
        domain.spec.members.get_mut("n1").unwrap().away = true;
        domain.spec.members.get_mut("n2").unwrap().address.clear();
        let hosts = hosts(&domain);
        let addresses: Vec<_> = hosts.iter().map(|(address, _)| address.as_str()).collect();
        assert_eq!(addresses, ["127.10.0.1", SENTINEL, SENTINEL, SENTINEL]);
        let names: Vec<_> = hosts.iter().map(|(_, name)| name.clone()).collect();
        assert_eq!(super::super::node_map("d", 4).lines().collect::<Vec<_>>(), names);
    }

    #[test]
    fn issue_1465_nobody_is_at_the_sentinel_and_nothing_is_sent_to_it() {
        let refused = std::net::TcpStream::connect((SENTINEL, 50000)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::NetworkUnreachable, "{refused}");
    }

    #[test]
    fn the_file_resolves_localhost_too() {
        let file = hosts_file(&[("10.0.0.1".into(), "heddle-x-00".into()), ("fd00::2".into(), "heddle-x-01".into())]);
        assert!(file.contains("\n127.0.0.1 localhost\n"));
        assert!(file.ends_with("\n10.0.0.1 heddle-x-00\nfd00::2 heddle-x-01\n"));
        let read = hosts_in(&file, "heddle-x-00\nheddle-x-01\nheddle-x-02\n");
        assert_eq!(hosts_file(&read), file);
        assert_eq!(hosts_in(&file, "heddle-x-01\n"), [("fd00::2".to_owned(), "heddle-x-01".to_owned())]);
    }
}
