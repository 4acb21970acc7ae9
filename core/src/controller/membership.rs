use std::collections::{BTreeMap, BTreeSet};

use crate::api::Member;
use crate::fault::{Fault, reason};

/// A node that is or should be a member of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidate {
    /// The address at which peers reach its daemon; empty while it is not known.
    pub address: String,
    /// `ImexChannelCount`; 0 while it is not known.
    pub channel_count: u32,
    /// Whether others should not expect it.
    pub away: bool,
}

/// What the members of a domain should be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Membership {
    /// The members by node name.
    pub members: BTreeMap<String, Member>,
    /// What is wrong with a node, by its name.
    pub problems: BTreeMap<String, Fault>,
}

/// Keeps the index of every candidate that has one, and gives the others the lowest free ones, in the order of their
/// names. Who is no candidate is no member.
pub fn membership(
    domain: &str,
    current: &BTreeMap<String, Member>,
    max_members: u32,
    candidates: &BTreeMap<String, Candidate>,
) -> Membership {
    let mut plan = Membership::default();
    let mut used: BTreeSet<u32> =
        current.iter().filter(|(node, _)| candidates.contains_key(*node)).map(|(_, member)| member.index).collect();
    for (node, candidate) in candidates {
        let free = || (0..max_members).find(|index| !used.contains(index));
        let Some(index) = current.get(node).map(|member| member.index).or_else(free) else {
            let text = format!(
                "IMEX domain {domain} has no place for node {node}: all {max_members} are taken; raise maxMembers or remove nodes"
            );
            plan.problems.insert(node.clone(), Fault::retryable(reason::DOMAIN_FULL, text));
            continue;
        };
        used.insert(index);
        let member = Member { index, address: candidate.address.clone(), away: candidate.away };
        plan.members.insert(node.clone(), member);
    }
    mismatches(domain, candidates, &mut plan);
    plan
}

/// All members must have as many channels: a number that one of them lacks cannot be entered there.
fn mismatches(domain: &str, candidates: &BTreeMap<String, Candidate>, plan: &mut Membership) {
    let known = || candidates.iter().filter(|(_, candidate)| candidate.channel_count > 0);
    let mut votes: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, candidate) in known() {
        *votes.entry(candidate.channel_count).or_default() += 1;
    }
    let Some(common) = votes.iter().max_by_key(|(count, votes)| (**votes, **count)).map(|(count, _)| *count) else {
        return;
    };
    for (node, candidate) in known().filter(|(_, candidate)| candidate.channel_count != common) {
        let text = format!(
            "node {node} has {} IMEX channels, the others of domain {domain} have {common}; set NVreg ImexChannelCount alike on all of them",
            candidate.channel_count
        );
        plan.problems.entry(node.clone()).or_insert_with(|| Fault::permanent(reason::MEMBER_MISMATCH, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(names: &[&str]) -> BTreeMap<String, Candidate> {
        let candidate = |name: &&str| {
            let address = format!("10.0.0.{}", name.len());
            (name.to_string(), Candidate { address, channel_count: 2048, away: false })
        };
        names.iter().map(candidate).collect()
    }

    fn indices(plan: &Membership) -> Vec<(&str, u32)> {
        plan.members.iter().map(|(node, member)| (node.as_str(), member.index)).collect()
    }

    #[test]
    fn indices_are_the_lowest_free_and_kept() {
        let first = membership("d", &BTreeMap::new(), 18, &candidates(&["b", "c"]));
        assert_eq!(indices(&first), [("b", 0), ("c", 1)]);
        let second = membership("d", &first.members, 18, &candidates(&["a", "b", "c"]));
        assert_eq!(indices(&second), [("a", 2), ("b", 0), ("c", 1)]);
        let third = membership("d", &second.members, 18, &candidates(&["a", "c", "d"]));
        assert_eq!(indices(&third), [("a", 2), ("c", 1), ("d", 0)]);
    }

    #[test]
    fn a_changed_address_keeps_its_index() {
        let first = membership("d", &BTreeMap::new(), 18, &candidates(&["a"]));
        let mut moved = candidates(&["a"]);
        moved.get_mut("a").unwrap().address = "fd00::7".into();
        let second = membership("d", &first.members, 18, &moved);
        assert_eq!(second.members["a"], Member { index: 0, address: "fd00::7".into(), away: false });
    }

    #[test]
    fn a_full_domain_says_who_is_left_out() {
        let plan = membership("d", &BTreeMap::new(), 2, &candidates(&["a", "b", "c"]));
        assert_eq!(indices(&plan), [("a", 0), ("b", 1)]);
        assert_eq!(plan.problems["c"].reason, reason::DOMAIN_FULL);
    }

    #[test]
    fn the_odd_one_out_is_named() {
        let mut odd = candidates(&["a", "b", "c", "new"]);
        odd.get_mut("b").unwrap().channel_count = 1024;
        odd.get_mut("new").unwrap().channel_count = 0;
        let plan = membership("d", &BTreeMap::new(), 18, &odd);
        assert_eq!(plan.problems.keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(plan.problems["b"].reason, reason::MEMBER_MISMATCH);
        assert_eq!(plan.members.len(), 4);
    }
}
