use std::fmt::Write as _;

use super::{sha256, short_hash};

/// The name that stands in line `index` of a domain's node map.
///
/// The hash of the domain makes a peer of another domain fail its handshake even when it comes from an address that
/// was ours before (upstream issue 1447).
pub fn member_name(domain: &str, index: u32) -> String {
    format!("heddle-{}-{index:02}", short_hash(domain, 8))
}

/// The node map of a domain: one line for each index, used or not, the same bytes on every member for the domain's
/// whole life. The daemon reads it once, at its start.
pub fn node_map(domain: &str, max_members: u32) -> String {
    (0..max_members).fold(String::new(), |mut map, index| {
        let _ = writeln!(map, "{}", member_name(domain, index));
        map
    })
}

/// SHA-256 of a node map, in hex: what runner and agent compare.
pub fn node_map_hash(node_map: &str) -> String {
    sha256(node_map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_433_a_node_map_depends_on_the_domain_alone() {
        let map = node_map("shared-0123456789ab", 18);
        assert_eq!(map.lines().count(), 18);
        assert_eq!(map, node_map("shared-0123456789ab", 18));
        assert_eq!(map.lines().nth(7).unwrap(), member_name("shared-0123456789ab", 7));
        assert!(map.ends_with("-17\n"));
        assert!(node_map("shared-ba9876543210", 18).lines().all(|name| !map.contains(name)));
    }

    #[test]
    fn names_fit_a_dns_label() {
        assert_eq!(member_name("d", 3).len(), "heddle-".len() + 8 + 3);
        assert!(member_name("d", 1023).ends_with("-1023"));
    }

    #[test]
    fn the_hash_is_that_of_the_bytes() {
        assert_eq!(node_map_hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
