//! Which IMEX domain a node serves: the shared one of its clique (its home), or the exclusive one of a ComputeDomain
//! whose claims have landed there.
//!
//! A node goes round in four steps, each one guarded write, and each decided from what the objects say alone:
//!
//! | `away` at home | `spec.domain` | next, towards exclusive | next, towards home |
//! |---|---|---|---|
//! | no | home | set `away` | – |
//! | yes | home | move, once it lists no channel | unset `away` |
//! | yes | exclusive | – | unset `away`, once it lists no channel |
//! | no | exclusive | unset: move home first | move, while it lists no channel |
//!
//! In the last row the move home may be on its way already, so its `away` may only be set again if the node lists a
//! channel: then its resourceVersion has changed since, and that move fails. [`crate::protocol::free`] relies on it.
//!
//! Towards an exclusive domain the node's own object says beforehand, in `spec.next`, that a move may be on its way, and
//! the move rests on a copy that says so. Membership cannot tell: it goes when the node is not wanted there any more,
//! and whoever takes it away may not have seen that the node has been moved. So whoever frees a channel of an exclusive
//! domain, or deletes it, looks at the nodes themselves; once `spec.next` is another, no earlier move can arrive.

use crate::api::{DomainKind, EpochMark, IMEXDomain, IMEXNode, IMEXNodeSpec, Member};
use crate::imex::is_exclusive;
use crate::protocol::{mark, name};

/// Whether home should not expect this member now. `current` is its entry there, `wanted` the name of the exclusive
/// domain that it should serve.
pub fn away(node: &IMEXNode, home: &str, current: Option<&Member>, wanted: Option<&str>) -> bool {
    match (node.spec.domain.as_deref(), wanted) {
        (None, _) => false,
        (Some(serving), Some(wanted)) if serving == home => !uses_other_than(node, wanted),
        (Some(serving), None) if serving == home => false,
        (Some(serving), Some(wanted)) if serving == wanted => {
            uses_other_than(node, home) || current.is_none_or(|member| member.away)
        }
        (Some(_), _) => uses_other_than(node, home),
    }
}

/// The domain that the node should be moved to now, if any.
pub fn next_move<'a>(node: &IMEXNode, home: &'a IMEXDomain, wanted: Option<&'a IMEXDomain>) -> Option<&'a IMEXDomain> {
    if node.spec.domain.as_deref() == Some(name(home)) {
        let expected = home.spec.members.get(name(node)).is_none_or(|member| !member.away);
        return wanted.filter(|wanted| !expected && may_move(node, wanted));
    }
    may_move(node, home).then_some(home)
}

/// What a node is told of the domain that it is about to serve. Its daemon must meet its peers from the first moment, so
/// where daemons show certificates of their domain the node gets one before its move, while it still serves where it is.
/// Before it moves to an exclusive domain it is told in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// Nothing is to be told, and a move may be made.
    None,
    /// The node is to get a certificate of this domain, or, with none, need not any more.
    Tell(Option<&'a str>),
    /// It has been told and has none yet.
    Wait,
}

/// What to tell the node before it moves to `target`, or while it moves nowhere. A node that serves nothing yet gets its
/// certificate where it is going.
pub fn notice<'a>(node: &IMEXNode, target: Option<&'a str>, certificates: bool) -> Notice<'a> {
    let told = node.spec.next.as_deref();
    let Some(target) = target.filter(|target| node.spec.domain.is_some() && (certificates || is_exclusive(target)))
    else {
        // A move takes it away itself.
        return if told.is_some() && target.is_none() { Notice::Tell(None) } else { Notice::None };
    };
    let holds = node.status.as_ref().is_some_and(|status| status.certificates.contains_key(target));
    match (told == Some(target), holds || !certificates) {
        (true, true) => Notice::None,
        (true, false) => Notice::Wait,
        (false, true) if !is_exclusive(target) => Notice::None,
        (false, _) => Notice::Tell(Some(target)),
    }
}

/// The domain expects the node, which is elsewhere and lists no channel of another domain.
fn may_move(node: &IMEXNode, domain: &IMEXDomain) -> bool {
    let target = name(domain);
    let expected = domain.spec.members.get(name(node)).is_some_and(|member| !member.away);
    expected && node.spec.domain.as_deref() != Some(target) && !uses_other_than(node, target)
}

/// The spec that moves the node into the domain; `None` if it must not move now: it is there, it lists a channel of
/// another domain, the domain does not expect it, or is exclusive and the node has not been told.
///
/// Guard of the write: the resourceVersion of `node`, with `domain` read after it.
pub fn move_in(node: &IMEXNode, domain: &IMEXDomain) -> Option<IMEXNodeSpec> {
    let target = name(domain);
    let told = domain.spec.kind == DomainKind::Shared || node.spec.next.as_deref() == Some(target);
    if !told || !may_move(node, domain) {
        return None;
    }
    let epoch = domain.status.as_ref().map_or(0, |status| status.epoch).max(mark(node, target));
    Some(IMEXNodeSpec {
        domain: Some(target.into()),
        next: None,
        fence: Some(EpochMark { domain: target.into(), epoch }),
        refused: node.spec.refused.clone(),
    })
}

/// Nobody is in the domain or can still come, and no number of it is in use.
///
/// `nodes` are all that may, read after `domain`, whose resourceVersion guards its deletion.
pub fn vacant(domain: &IMEXDomain, nodes: &[IMEXNode]) -> bool {
    let target = Some(name(domain));
    let elsewhere = |node: &IMEXNode| node.spec.domain.as_deref() != target && node.spec.next.as_deref() != target;
    unused(domain, nodes) && nodes.iter().all(elsewhere)
}

/// No number of the domain is in its map, or listed by a node.
pub fn unused(domain: &IMEXDomain, nodes: &[IMEXNode]) -> bool {
    let listed = nodes.iter().filter_map(|node| node.status.as_ref()).flat_map(|status| status.channels.values());
    let empty = domain.status.as_ref().is_none_or(|status| status.channels.is_empty());
    empty && listed.into_iter().all(|entry| entry.domain != name(domain))
}

/// The domain may go now: by itself once it is [`vacant`], deleted by hand already when it is [`unused`]. Nodes that
/// serve it do not hold that up: it is made anew, with an epoch that is not below their marks.
pub fn may_go(domain: &IMEXDomain, nodes: &[IMEXNode]) -> bool {
    match domain.metadata.deletion_timestamp {
        Some(_) => unused(domain, nodes),
        None => vacant(domain, nodes),
    }
}

/// The node lists a channel of a domain other than this one.
pub fn uses_other_than(node: &IMEXNode, domain: &str) -> bool {
    node.status.as_ref().is_some_and(|status| status.channels.values().any(|entry| entry.domain != domain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::samples::*;

    fn with_member(mut domain: IMEXDomain, node: &str, away: bool) -> IMEXDomain {
        domain.spec.members.insert(node.into(), Member { index: 0, address: String::new(), away });
        domain
    }

    fn at_home(away: bool) -> IMEXDomain {
        with_member(with_channel(shared("home"), "green", 1), "n1", away)
    }

    #[test]
    fn a_node_goes_out_and_comes_back_in_four_steps() {
        let red = with_member(exclusive("x", "red"), "n1", false);
        let mut node = member_of("n1", "home");
        let member = |domain: &IMEXDomain| domain.spec.members["n1"].clone();

        assert_eq!(next_move(&node, &at_home(false), Some(&red)), None);
        assert!(away(&node, "home", Some(&member(&at_home(false))), Some("x")));
        assert_eq!(next_move(&node, &at_home(true), Some(&red)).map(name), Some("x"));
        assert_eq!(move_in(&node, &red), None, "it has not been told");
        node.spec.next = Some("x".into());
        node.spec = move_in(&node, &red).unwrap();
        assert_eq!(node.spec.fence, Some(EpochMark { domain: "x".into(), epoch: 0 }));
        assert!(away(&node, "home", Some(&member(&at_home(true))), Some("x")));
        assert_eq!(next_move(&node, &at_home(true), Some(&red)), None);

        assert!(!away(&node, "home", Some(&member(&at_home(true))), None));
        assert_eq!(next_move(&node, &at_home(false), None).map(name), Some("home"));
        node.spec = move_in(&node, &at_home(false)).unwrap();
        assert_eq!(node.spec.fence, Some(EpochMark { domain: "home".into(), epoch: 1 }));
        assert_eq!(next_move(&node, &at_home(false), None), None);
    }

    #[test]
    fn a_node_that_lists_a_channel_stays() {
        let red = with_member(exclusive("x", "red"), "n1", false);
        let mut busy = listing("home", "green", 1);
        assert!(!away(&busy, "home", None, Some("x")));
        assert_eq!(next_move(&busy, &at_home(true), Some(&red)), None);
        assert_eq!(move_in(&busy, &red), None);
        busy = listing("x", "red", 1);
        assert!(away(&busy, "home", Some(&Member::default()), None));
        assert_eq!(next_move(&busy, &at_home(false), None), None);
        assert_eq!(next_move(&busy, &at_home(true), None), None);
    }

    #[test]
    fn a_move_home_under_way_is_completed_unless_the_node_has_entered() {
        let home = at_home(false);
        let red = with_member(exclusive("x", "red"), "n1", false);
        let node = member_of("n1", "x");
        assert!(!away(&node, "home", Some(&home.spec.members["n1"]), Some("x")));
        assert_eq!(next_move(&node, &home, Some(&red)).map(name), Some("home"));
        let entered = listing("x", "red", 1);
        assert!(away(&entered, "home", Some(&home.spec.members["n1"]), Some("x")));
    }

    #[test]
    fn a_new_node_goes_home_first() {
        let node = IMEXNode::new("n1", IMEXNodeSpec::default());
        assert!(!away(&node, "home", None, Some("x")));
        assert_eq!(next_move(&node, &shared("home"), None), None, "not a member yet");
        assert_eq!(next_move(&node, &at_home(false), None).map(name), Some("home"));
        assert_eq!(next_move(&node, &at_home(true), None), None, "not expected");
    }

    #[test]
    fn a_node_gets_its_certificate_before_its_move() {
        let mut node = member_of("n1", "x");
        assert_eq!(notice(&node, Some("home"), false), Notice::None, "nobody asks for certificates");
        assert_eq!(notice(&node, Some("home"), true), Notice::Tell(Some("home")));
        node.spec.next = Some("home".into());
        assert_eq!(notice(&node, Some("home"), true), Notice::Wait);
        assert_eq!(notice(&node, Some("y"), true), Notice::Tell(Some("y")), "it is to go elsewhere");
        assert_eq!(notice(&node, None, true), Notice::Tell(None), "it stays");
        assert_eq!(notice(&node, None, false), Notice::Tell(None));
        assert_eq!(notice(&node, Some("home"), false), Notice::None, "the setting has been changed");
        let until = "2026-12-01T00:00:00Z".to_owned();
        node.status.get_or_insert_default().certificates = [("home".to_owned(), until)].into();
        assert_eq!(notice(&node, Some("home"), true), Notice::None);
        node.spec.next = None;
        assert_eq!(notice(&node, Some("home"), true), Notice::None, "it has one of before");
        let new = IMEXNode::new("n1", IMEXNodeSpec::default());
        assert_eq!(notice(&new, Some("home"), true), Notice::None, "it serves nobody yet");
    }

    #[test]
    fn a_node_is_told_before_it_moves_to_an_exclusive_domain_in_any_case() {
        let mut node = member_of("n1", "home");
        let until = "2026-12-01T00:00:00Z".to_owned();
        node.status.get_or_insert_default().certificates = [("exclusive-1".to_owned(), until)].into();
        for certificates in [false, true] {
            node.spec.next = None;
            assert_eq!(notice(&node, Some("exclusive-1"), certificates), Notice::Tell(Some("exclusive-1")));
            node.spec.next = Some("exclusive-1".into());
            assert_eq!(notice(&node, Some("exclusive-1"), certificates), Notice::None);
        }
    }

    #[test]
    fn a_domain_to_which_a_node_may_still_come_is_not_vacant() {
        let red = exclusive("x", "red");
        let mut told = member_of("n2", "home");
        assert!(vacant(&red, &[member_of("n1", "home"), told.clone()]));
        told.spec.next = Some("x".into());
        assert!(!vacant(&red, &[told]));
        assert!(!vacant(&red, &[member_of("n1", "x")]));
        assert!(!vacant(&red, &[listing("x", "red", 1)]));
        assert!(!vacant(&with_channel(red, "red", 1), &[]));
    }

    #[test]
    fn a_fence_never_goes_back() {
        let mut node = member_of("n1", "x");
        node.status.get_or_insert_default().observed = Some(EpochMark { domain: "home".into(), epoch: 9 });
        assert_eq!(move_in(&node, &at_home(false)).unwrap().fence.unwrap().epoch, 9);
    }
}
