//! A clique's decisions, each done until none is left.

mod channels;
mod domains;
mod moves;

use super::samples::*;
use super::*;
use crate::api::{ChannelState, IMEXDomain, IMEXNode, ImexMode, IsolationMode, NodeChannel};
use crate::fault::reason;
use crate::imex::{exclusive_domain_name, shared_domain_name};
use crate::protocol::{name, samples::with_channel};

fn key() -> String {
    sample_clique().to_string()
}

fn home() -> String {
    shared_domain_name(&sample_clique())
}

fn with_node(view: &mut View, node: IMEXNode) {
    view.put_node(name(&node), NodeState::default());
    view.put_imex_node(node);
}

fn writes(view: &View) -> Vec<Write> {
    clique(view, &key()).writes
}

/// Does what the clique asks for until it asks for nothing but health; the labels of what it did.
fn settle(view: &mut View) -> Vec<&'static str> {
    settle_clique(view, &key())
}

fn settle_clique(view: &mut View, key: &str) -> Vec<&'static str> {
    let mut done = Vec::new();
    for _ in 0..20 {
        let writes: Vec<_> = clique(view, key).writes.into_iter().filter(|write| !only_health(write)).collect();
        if writes.is_empty() {
            return done;
        }
        writes.into_iter().for_each(|write| done.push(apply(view, write)));
    }
    panic!("the clique does not settle: {done:?}");
}

fn only_health(write: &Write) -> bool {
    matches!(write, Write::Domain(write) if write.members.is_none() && !write.changes_channels())
}

fn apply(view: &mut View, write: Write) -> &'static str {
    match write {
        Write::CreateDomain(domain) => {
            view.put_domain(*domain);
            "create"
        }
        Write::DeleteDomain { domain, .. } => {
            view.drop_domain(name(&*domain));
            "delete"
        }
        Write::Domain(write) => {
            let mut domain = write.domain.clone();
            let label = if write.members.is_some() { "members" } else { "channels" };
            domain.spec.members = write.members.clone().unwrap_or(domain.spec.members);
            let gone = write.drain_if_gone.iter().map(|cd| cd.uid.clone()).collect();
            domain.status = write.status(&domain, &gone, &write.nodes).or(domain.status);
            view.put_domain(domain);
            label
        }
        Write::Move { node, target } => {
            let spec = placement::move_in(&node, view.domain(&target).unwrap()).unwrap();
            view.put_imex_node(IMEXNode { spec, ..*node });
            "move"
        }
        Write::Announce { mut node, next } => {
            node.spec.next = next;
            view.put_imex_node(*node);
            "announce"
        }
        Write::Refuse { mut node, refused } => {
            node.spec.refused = refused;
            view.put_imex_node(*node);
            "refuse"
        }
        Write::Fence { mut node, mark } => {
            node.spec.fence = Some(mark);
            view.put_imex_node(*node);
            "fence"
        }
        other => panic!("{other:?}"),
    }
}

fn enter(view: &mut View, node: &str, cd: &str, channel: u32) {
    let mut object = view.imex_node(node).unwrap().clone();
    let domain = object.spec.domain.clone().unwrap();
    let entry = NodeChannel { channel, domain, since: String::new() };
    object.status.as_mut().unwrap().channels.insert(uid(cd), entry);
    view.put_imex_node(object);
}

fn serves<'a>(view: &'a View, node: &str) -> &'a str {
    view.imex_node(node).unwrap().spec.domain.as_deref().unwrap()
}

/// Node n1 of a domain with numbers for two ComputeDomains, which `a` and `b` have.
fn full() -> View {
    let mut view = View::default();
    let mut node = new_node("n1");
    node.status.as_mut().unwrap().channel_count = 3;
    with_node(&mut view, node);
    settle(&mut view);
    for cd in ["a", "b", "c"] {
        view.put_cd(sample_cd(cd, IsolationMode::Channel));
    }
    let domain = view.domain(&home()).unwrap().clone();
    view.put_domain(with_channel(with_channel(domain, &uid("a"), 1), &uid("b"), 2));
    view.dirty = Dirty::default();
    view
}

fn change_channels(view: &mut View, node: &str) {
    let mut object = view.imex_node(node).unwrap().clone();
    object.status.as_mut().unwrap().channels.clear();
    view.put_imex_node(object);
}

#[test]
fn nodes_that_come_together_are_assigned_by_one_write() {
    let mut view = View::default();
    (0..18).for_each(|n| with_node(&mut view, new_node(&format!("n{n}"))));
    let [Write::CreateDomain(domain)] = &writes(&view)[..] else { panic!() };
    assert_eq!((name(&**domain), domain.spec.members.len()), (home().as_str(), 18));
    let done = settle(&mut view);
    assert_eq!(done.iter().filter(|label| **label != "move").collect::<Vec<_>>(), [&"create"]);
    assert_eq!(done.len(), 19);
}

#[test]
fn a_node_without_a_node_object_or_in_no_clique_is_not_assigned() {
    let mut view = View::default();
    view.put_imex_node(new_node("n1"));
    assert_eq!(writes(&view), []);
    assert_eq!(clique(&view, "no clique"), CliquePlan::default());
}

#[test]
fn a_node_that_changes_its_clique_goes_over_when_it_lists_nothing() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    view.put_cd(sample_cd("green", IsolationMode::Channel));
    let domain = view.domain(&home()).unwrap().clone();
    view.put_domain(with_channel(domain, &uid("green"), 1));
    enter(&mut view, "n1", "green", 1);
    let mut moved = view.imex_node("n1").unwrap().clone();
    let other = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.8";
    moved.status.as_mut().unwrap().clique = Some(other.into());
    view.put_imex_node(moved.clone());
    assert_eq!(settle_clique(&mut view, other), ["create"], "it still uses a channel");
    moved.status.as_mut().unwrap().channels.clear();
    view.put_imex_node(moved);
    assert_eq!(settle_clique(&mut view, other), ["members", "move"]);
    settle(&mut view);
    assert!(view.domain(&home()).unwrap().spec.members.is_empty());
}

fn refused<'a>(view: &'a View, node: &str) -> Option<&'a str> {
    view.imex_node(node).unwrap().spec.refused.as_ref().map(|refused| refused.reason.as_str())
}

fn report(view: &mut View, node: &str, change: impl FnOnce(&mut crate::api::IMEXNodeStatus)) {
    let mut object = view.imex_node(node).unwrap().clone();
    change(object.status.as_mut().unwrap());
    view.put_imex_node(object);
}

#[test]
fn a_node_too_many_and_an_odd_one_are_told_on_their_own_objects() {
    let mut view = View::default();
    (0..18).for_each(|n| with_node(&mut view, new_node(&format!("n{n:02}"))));
    settle(&mut view);
    let before = view.domain(&home()).unwrap().clone();
    let mut odd = new_node("n90");
    odd.status.as_mut().unwrap().channel_count = 1024;
    with_node(&mut view, odd);
    with_node(&mut view, new_node("n91"));
    assert_eq!(settle(&mut view), ["refuse", "refuse"], "others are not written to");
    assert_eq!(view.domain(&home()), Some(&before));
    assert_eq!([refused(&view, "n90"), refused(&view, "n91")], [Some("MemberMismatch"), Some("DomainFull")]);
    let problems = clique(&view, &key()).problems;
    let reasons: Vec<_> = problems.iter().map(|(node, fault)| (node.as_str(), fault.reason)).collect();
    assert_eq!(reasons, [("n90", reason::MEMBER_MISMATCH), ("n91", reason::DOMAIN_FULL)]);

    // A place comes free, and the odd one is put right.
    let gone = view.imex_node("n03").unwrap().clone();
    view.drop_imex_node("n03");
    view.drop_node("n03");
    settle(&mut view);
    assert_eq!((serves(&view, "n91"), refused(&view, "n91")), (home().as_str(), None));
    assert_eq!(view.domain(&home()).unwrap().spec.members["n91"].index, before.spec.members["n03"].index);
    report(&mut view, "n90", |status| status.channel_count = 2048);
    settle(&mut view);
    assert_eq!(refused(&view, "n90"), Some("DomainFull"));
    // Who was there before has no right to its old place.
    with_node(&mut view, IMEXNode { spec: Default::default(), ..gone });
    settle(&mut view);
    assert_eq!(refused(&view, "n03"), Some("DomainFull"));
}

#[test]
fn a_member_that_reads_odd_after_a_reboot_is_told_and_not_thrown_out_under_its_jobs() {
    let mut view = View::default();
    ["n1", "n2", "n3"].into_iter().for_each(|node| with_node(&mut view, new_node(node)));
    settle(&mut view);
    view.put_cd(sample_cd("green", IsolationMode::Channel));
    let domain = view.domain(&home()).unwrap().clone();
    view.put_domain(with_channel(domain, &uid("green"), 1));
    enter(&mut view, "n2", "green", 1);
    let members = view.domain(&home()).unwrap().spec.members.clone();
    report(&mut view, "n2", |status| status.channel_count = 1024);
    assert_eq!(settle(&mut view), ["refuse"]);
    let all = ["n1", "n2", "n3"].map(|node| refused(&view, node));
    assert_eq!(all, [None, Some("MemberMismatch"), None]);
    assert_eq!((serves(&view, "n2"), &view.domain(&home()).unwrap().spec.members), (home().as_str(), &members));
    report(&mut view, "n2", |status| status.driver_version = "570.1".into());
    report(&mut view, "n2", |status| status.channel_count = 2048);
    assert_eq!(settle(&mut view), ["refuse"]);
    assert_eq!(refused(&view, "n2"), None, "what driver the others have is not known");
    report(&mut view, "n1", |status| status.driver_version = "580.1".into());
    report(&mut view, "n3", |status| status.driver_version = "580.2".into());
    settle(&mut view);
    assert_eq!(refused(&view, "n2"), Some("MemberMismatch"));
}
