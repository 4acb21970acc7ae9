//! The address family in which the daemons of a domain meet.

use std::fmt;
use std::net::IpAddr;

use super::agreement::Standing;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V6,
    V4,
}

impl Family {
    /// That of an address. What is none counts as IPv4, and fails where it is used.
    pub(super) fn of(address: &str) -> Self {
        match address.parse() {
            Ok(IpAddr::V6(_)) => Self::V6,
            _ => Self::V4,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// What one node has to say about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach<'a> {
    /// The address at which its peers look for it now; empty while they don't.
    pub address: &'a str,
    /// Those that it reports, the preferred one first; empty while it has not reported.
    pub addresses: &'a [String],
    pub standing: Standing,
}

impl Reach<'_> {
    fn has(&self, family: Family) -> bool {
        self.addresses.iter().any(|address| Family::of(address) == family)
    }
}

/// The family in which a domain's nodes meet: where all have both, the one that they meet in already, else the one that most
/// prefer. While a node that meets the others in one family is at work in the domain it stays at that one: another family
/// is another address for everybody.
pub(super) fn family(nodes: &[Reach<'_>]) -> Option<Family> {
    let known = || nodes.iter().filter(|node| !node.addresses.is_empty());
    let count = |holds: &dyn Fn(&Reach<'_>) -> bool| known().filter(|node| holds(node)).count();
    let met = |family| count(&|node| !node.address.is_empty() && Family::of(node.address) == family);
    let all = count(&|_| true);
    let at_work = |family| count(&|node| node.standing.busy && node.has(family)) > 0;
    let rank = |family: &Family| {
        let has = count(&|node| node.has(*family));
        let prefer = count(&|node| node.addresses.first().is_some_and(|first| Family::of(first) == *family));
        (met(*family) > 0 && at_work(*family), has == all, has, met(*family), prefer, *family)
    };
    (all > 0).then(|| [Family::V4, Family::V6].into_iter().max_by_key(rank)).flatten()
}

/// The address at which peers find a node in that family: the one that they know, as long as the node has it.
pub(super) fn address<'a>(node: &Reach<'a>, family: Family) -> Option<&'a str> {
    let fits = |address: &&str| Family::of(address) == family;
    let known = Some(node.address).filter(fits).filter(|known| node.addresses.iter().any(|has| has == known));
    known.or_else(|| node.addresses.iter().map(String::as_str).find(|address| fits(address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Standing = Standing { busy: false, member: false };
    const IDLE: Standing = Standing { busy: false, member: true };
    const BUSY: Standing = Standing { busy: true, member: true };

    fn decide(nodes: &[(&str, &[&str], Standing)]) -> Option<Family> {
        let reported: Vec<Vec<String>> =
            nodes.iter().map(|(_, has, _)| has.iter().map(ToString::to_string).collect()).collect();
        let reach = nodes.iter().zip(&reported);
        let reach = reach.map(|((address, _, standing), addresses)| Reach { address, addresses, standing: *standing });
        family(&reach.collect::<Vec<_>>())
    }

    #[test]
    fn issue_328_all_meet_in_a_family_that_all_have() {
        assert_eq!(decide(&[]), None);
        assert_eq!(decide(&[("", &[], NEW)]), None, "nothing is known");
        assert_eq!(decide(&[("", &["10.0.0.1"], NEW), ("", &["10.0.0.2"], NEW)]), Some(Family::V4));
        assert_eq!(decide(&[("", &["fd00::1"], NEW), ("", &["fd00::2"], NEW)]), Some(Family::V6));
        assert_eq!(decide(&[("", &["10.0.0.1", "fd00::1"], NEW), ("", &["fd00::2"], NEW)]), Some(Family::V6));
        let both: &[&str] = &["fd00::1", "10.0.0.1"];
        assert_eq!(decide(&[("", both, NEW), ("", both, NEW)]), Some(Family::V6), "the preferred one");
        assert_eq!(decide(&[("10.0.0.1", both, IDLE), ("", both, NEW)]), Some(Family::V4), "the one that is used");
    }

    #[test]
    fn it_changes_when_nobody_is_at_work_or_nobody_has_the_old_one() {
        let both: &[&str] = &["10.0.0.1", "fd00::1"];
        assert_eq!(decide(&[("10.0.0.1", both, IDLE), ("", &["fd00::2"], NEW)]), Some(Family::V6));
        assert_eq!(decide(&[("10.0.0.1", both, BUSY), ("", &["fd00::2"], NEW)]), Some(Family::V4));
        assert_eq!(decide(&[("10.0.0.1", &["fd00::1"], BUSY), ("10.0.0.2", &["fd00::2"], BUSY)]), Some(Family::V6));
        let (v4, v6): (&[&str], &[&str]) = (&["10.0.0.1"], &["fd00::1"]);
        assert_eq!(decide(&[("", v4, NEW), ("", v6, NEW), ("", v6, NEW)]), Some(Family::V6), "most have it");
    }

    #[test]
    fn peers_keep_the_address_that_they_know_as_long_as_the_node_has_it() {
        let has = ["10.0.0.9", "10.0.0.1", "fd00::1"].map(String::from);
        let at = |address| Reach { address, addresses: &has, standing: IDLE };
        assert_eq!(address(&at("10.0.0.1"), Family::V4), Some("10.0.0.1"));
        assert_eq!(address(&at("10.0.0.7"), Family::V4), Some("10.0.0.9"));
        assert_eq!(address(&at("10.0.0.1"), Family::V6), Some("fd00::1"));
        let only = ["10.0.0.1".to_owned()];
        assert_eq!(address(&Reach { address: "", addresses: &only, standing: NEW }, Family::V6), None);
    }
}
