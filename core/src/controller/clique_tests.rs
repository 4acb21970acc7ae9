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
fn a_domain_that_nobody_can_read_is_waited_for_and_told() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    view.set_unreadable(Kind::Domain, &home(), true);
    let [Write::Refuse { refused: Some(told), .. }] = &writes(&view)[..] else { panic!("it exists already") };
    assert!(told.message.contains(&home()) && told.message.contains("cannot be read"), "{told:?}");
    view.drop(Kind::Domain, &home());
    assert_eq!(settle(&mut view), ["create", "move"]);
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

#[test]
fn an_exclusive_compute_domain_gets_its_nodes_and_gives_them_back() {
    let mut view = View::default();
    ["n1", "n2"].into_iter().for_each(|node| with_node(&mut view, new_node(node)));
    settle(&mut view);
    let red = sample_cd("red", IsolationMode::Domain);
    let own = exclusive_domain_name(&sample_clique(), red.uid());
    view.put_cd(red.clone());
    view.put_claim(claim("red", "n1"));
    settle(&mut view);
    assert_eq!((serves(&view, "n1"), serves(&view, "n2")), (own.as_str(), home().as_str()));
    let members = &view.domain(&home()).unwrap().spec.members;
    assert!(members["n1"].away && !members["n2"].away);
    assert_eq!(view.domain(&own).unwrap().spec.compute_domain.as_ref(), Some(&red.reference));

    let domain = view.domain(&own).unwrap().clone();
    view.put_domain(with_channel(domain, red.uid(), 1));
    enter(&mut view, "n1", "red", 1);
    view.drop_claim(&claim("red", "n1").key.uid);
    settle(&mut view);
    assert_eq!(serves(&view, "n1"), own, "the node has not left yet");
    let mut left = view.imex_node("n1").unwrap().clone();
    left.status.as_mut().unwrap().channels.clear();
    view.put_imex_node(left);
    settle(&mut view);
    assert_eq!(serves(&view, "n1"), home());
    assert!(view.domain(&own).is_some(), "its number is kept as long as the ComputeDomain lives");
    view.drop_cd(red.uid());
    settle(&mut view);
    assert!(view.domain(&own).is_none());
}

#[test]
fn a_gone_compute_domain_is_drained_fenced_and_freed() {
    let mut view = View::default();
    ["n1", "n2"].into_iter().for_each(|node| with_node(&mut view, new_node(node)));
    settle(&mut view);
    let green = sample_cd("green", IsolationMode::Channel);
    view.put_cd(green.clone());
    let domain = view.domain(&home()).unwrap().clone();
    view.put_domain(with_channel(domain, green.uid(), 1));
    assert_eq!(settle(&mut view), Vec::<&str>::new());
    view.put_cd(Cd { deleting: true, ..green.clone() });
    assert_eq!(settle(&mut view), ["channels", "fence", "fence", "channels"]);
    assert!(view.domain(&home()).unwrap().status.as_ref().unwrap().channels.is_empty());
}

#[test]
fn one_that_only_the_api_may_know_is_asked_for_before_it_is_drained() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    let domain = view.domain(&home()).unwrap().clone();
    view.put_domain(with_channel(domain, "uid-new", 1));
    let found = writes(&view).into_iter().find_map(|write| match write {
        Write::Domain(write) => Some(write),
        _ => None,
    });
    let write = found.unwrap();
    assert_eq!((write.drain.len(), write.drain_if_gone[0].name.as_str()), (0, "uid-new"));
    let status = write.status(&write.domain, &Default::default(), &write.nodes).unwrap_or_default();
    assert!(status.channels.values().all(|entry| entry.state == ChannelState::Active));
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

#[test]
fn a_lost_domain_is_made_without_members_and_examined() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    let domain = view.domain(&home()).unwrap().clone();
    view.put_domain(with_channel(domain, &uid("green"), 1));
    enter(&mut view, "n1", "green", 1);
    view.drop_domain(&home());
    let [Write::CreateDomain(made)] = &writes(&view)[..] else { panic!() };
    assert!(made.spec.members.is_empty());
    view.put_domain(IMEXDomain::clone(made));
    let examined = |write: &Write| matches!(write, Write::Examine { nodes, .. } if nodes.contains("n1"));
    assert!(writes(&view).iter().any(examined));
}

fn certify(view: &mut View, node: &str, domain: &str) {
    let mut object = view.imex_node(node).unwrap().clone();
    let until = "2026-12-01T00:00:00Z".to_owned();
    object.status.as_mut().unwrap().certificates.insert(domain.to_owned(), until);
    view.put_imex_node(object);
}

#[test]
fn a_node_moves_once_it_has_the_certificate_of_where_it_goes() {
    let mut view = View::new(true);
    with_node(&mut view, new_node("n1"));
    assert_eq!(settle(&mut view), ["create", "move"], "a new node serves nobody that it could leave");
    certify(&mut view, "n1", &home());
    let red = sample_cd("red", IsolationMode::Domain);
    let own = exclusive_domain_name(&sample_clique(), red.uid());
    view.put_cd(red.clone());
    view.put_claim(claim("red", "n1"));
    let done = settle(&mut view);
    assert_eq!((done.last(), serves(&view, "n1")), (Some(&"announce"), home().as_str()), "{done:?}");
    assert_eq!(view.imex_node("n1").unwrap().spec.next.as_deref(), Some(own.as_str()));
    certify(&mut view, "n1", &own);
    assert_eq!(settle(&mut view), ["move"]);
    assert_eq!((serves(&view, "n1"), &view.imex_node("n1").unwrap().spec.next), (own.as_str(), &None));

    // Back home it needs none: it was kept.
    view.drop_claim(&claim("red", "n1").key.uid);
    let done = settle(&mut view);
    assert!(!done.contains(&"announce"), "{done:?}");
    assert_eq!(serves(&view, "n1"), home());
}

#[test]
fn a_node_that_stays_after_all_is_told_so() {
    let mut view = View::new(true);
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    view.put_cd(sample_cd("red", IsolationMode::Domain));
    view.put_claim(claim("red", "n1"));
    settle(&mut view);
    assert!(view.imex_node("n1").unwrap().spec.next.is_some());
    view.drop_claim(&claim("red", "n1").key.uid);
    assert!(settle(&mut view).contains(&"announce"));
    assert_eq!(view.imex_node("n1").unwrap().spec.next, None);
    assert_eq!(serves(&view, "n1"), home());
}

fn of_host(name: &str) -> IMEXNode {
    let mut node = new_node(name);
    node.status.as_mut().unwrap().imex_mode = ImexMode::HostManaged;
    node
}

#[test]
fn a_daemon_of_the_host_is_never_moved() {
    for certificates in [false, true] {
        let mut view = View::new(certificates);
        with_node(&mut view, of_host("n1"));
        view.put_cd(sample_cd("red", IsolationMode::Domain));
        view.put_claim(claim("red", "n1"));
        settle(&mut view);
        assert_eq!(serves(&view, "n1"), home(), "it is a member of the shared domain, whose channels it gives");
        assert_eq!(view.imex_node("n1").unwrap().spec.next, None, "nor is it told of a move");
        let own = exclusive_domain_name(&sample_clique(), &uid("red"));
        assert!(view.domain(&own).is_none(), "nobody would be in it");
    }
}

#[test]
fn where_few_daemons_are_their_hosts_the_others_serve_an_exclusive_one() {
    let mut view = View::default();
    for node in [of_host("n1"), new_node("n2"), new_node("n3")] {
        with_node(&mut view, node);
    }
    view.put_cd(sample_cd("red", IsolationMode::Domain));
    ["n1", "n2"].iter().for_each(|node| view.put_claim(claim("red", node)));
    settle(&mut view);
    let own = exclusive_domain_name(&sample_clique(), &uid("red"));
    assert_eq!(serves(&view, "n2"), own);
    assert_eq!(view.domain(&own).unwrap().spec.members.keys().collect::<Vec<_>>(), ["n2"]);
    let refused = view.imex_node("n1").unwrap().spec.refused.clone().unwrap();
    assert!(refused.message.contains("imex.mode"), "{}", refused.message);
    assert_eq!(view.imex_node("n1").unwrap().spec.domain, None, "it would not connect to the others");
}

#[test]
fn a_node_whose_daemon_becomes_the_hosts_goes_home() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    view.put_cd(sample_cd("red", IsolationMode::Domain));
    view.put_claim(claim("red", "n1"));
    settle(&mut view);
    assert_ne!(serves(&view, "n1"), home());
    let mut node = view.imex_node("n1").unwrap().clone();
    node.status.as_mut().unwrap().imex_mode = ImexMode::HostManaged;
    view.put_imex_node(node);
    settle(&mut view);
    assert_eq!(serves(&view, "n1"), home());
    assert!(!view.domain(&home()).unwrap().spec.members["n1"].away);
}

#[test]
fn a_move_that_was_not_seen_keeps_an_exclusive_domain() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    let stale = view.imex_node("n1").unwrap().clone();
    view.put_cd(sample_cd("red", IsolationMode::Domain));
    view.put_claim(claim("red", "n1"));
    settle(&mut view);
    let moved = view.imex_node("n1").unwrap().clone();
    let exclusive = exclusive_domain_name(&sample_clique(), &uid("red"));
    assert_eq!(serves(&view, "n1"), exclusive);

    // Another controller has not seen the node's last writes. The ComputeDomain goes, its channel is drained.
    view.put_imex_node(stale);
    view.drop_cd(&uid("red"));
    let mut domain = with_channel(view.domain(&exclusive).unwrap().clone(), &uid("red"), 1);
    domain.status = crate::protocol::drain(&domain, &[uid("red")].into());
    domain.spec.members.clear();
    view.put_domain(domain);
    let find = |view: &View| {
        let free = writes(view).into_iter().find(|write| matches!(write, Write::Domain(write) if write.free));
        let Some(Write::Domain(free)) = free else { panic!("it would be freed") };
        *free
    };
    let free = find(&view);
    assert!(free.reread.contains("n1"), "{:?}", free.reread);
    let channels = |node: &IMEXNode| {
        let status = free.status(&free.domain, &Default::default(), std::slice::from_ref(node)).unwrap();
        status.channels.len()
    };
    assert_eq!(channels(&moved), 1, "it serves the domain, and may enter by what it knows");
    let mut told = view.imex_node("n1").unwrap().clone();
    assert_eq!(channels(&told), 0);
    told.spec.next = Some(exclusive.clone());
    assert_eq!(channels(&told), 1, "its move may be on its way");

    let mut empty = view.domain(&exclusive).unwrap().clone();
    empty.status = None;
    view.put_domain(empty);
    let delete = writes(&view).into_iter().find(|write| matches!(write, Write::DeleteDomain { .. }));
    let Some(Write::DeleteDomain { domain, nodes }) = delete else { panic!("it would be deleted") };
    assert_eq!(nodes, ["n1".to_string()].into());
    assert!(!placement::vacant(&domain, &[moved]) && !placement::vacant(&domain, &[told]));
}

#[test]
fn a_member_that_was_not_seen_is_asked_for_before_a_channel_is_freed() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    let mut domain = with_channel(view.domain(&home()).unwrap().clone(), &uid("green"), 1);
    domain.status = crate::protocol::drain(&domain, &[uid("green")].into());
    view.put_domain(domain);
    let fence = writes(&view).into_iter().find(|write| matches!(write, Write::Fence { .. })).unwrap();
    apply(&mut view, fence);
    let mut domain = view.domain(&home()).unwrap().clone();
    domain.spec.members.insert("new".into(), crate::api::Member { index: 1, ..Default::default() });
    view.put_domain(domain);
    let free = writes(&view).into_iter().find(|write| matches!(write, Write::Domain(write) if write.free));
    let Some(Write::Domain(free)) = free else { panic!("it would be freed") };
    assert_eq!(free.reread, ["new".to_string()].into());
}

#[test]
fn a_map_that_is_wrong_in_itself_is_examined() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    let examines = |view: &View| writes(view).iter().any(|write| matches!(write, Write::Examine { .. }));
    let domain = with_channel(view.domain(&home()).unwrap().clone(), &uid("green"), 1);
    view.put_domain(domain.clone());
    assert!(!examines(&view));
    view.put_domain(with_channel(domain, &uid("blue"), 1));
    assert!(examines(&view), "two ComputeDomains have one number");
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

fn states(view: &View) -> Vec<(String, ChannelState)> {
    let status = view.domain(&home()).unwrap().status.clone().unwrap();
    status.channels.into_iter().map(|(uid, entry)| (uid, entry.state)).collect()
}

fn is_stirred(view: &mut View) -> bool {
    std::mem::take(&mut view.dirty).cliques.contains(&key())
}

#[test]
fn who_finds_no_free_number_gets_that_of_one_that_nobody_uses() {
    let mut view = full();
    assert_eq!(settle(&mut view), Vec::<&str>::new(), "nobody waits");
    view.put_claim(claim("b", "n1"));
    assert!(!is_stirred(&mut view), "it has its channel");
    view.put_claim(claim("c", "n1"));
    assert!(is_stirred(&mut view));
    assert_eq!(settle(&mut view), ["channels", "fence", "channels"], "drained, fenced, freed");
    assert_eq!(states(&view), [(uid("b"), ChannelState::Active)]);
}

#[test]
fn a_reclaimed_channel_that_is_needed_at_the_last_moment_is_opened_again() {
    for entered in [false, true] {
        let mut view = full();
        view.put_claim(claim("b", "n1"));
        view.put_claim(claim("c", "n1"));
        let drained: Vec<_> = writes(&view).into_iter().filter(|write| !only_health(write)).collect();
        for write in drained {
            apply(&mut view, write);
        }
        assert_eq!(states(&view)[0], (uid("a"), ChannelState::Draining));
        view.dirty = Dirty::default();
        if entered {
            enter(&mut view, "n1", "a", 1);
        } else {
            view.put_claim(claim("a", "n1"));
        }
        assert!(is_stirred(&mut view));
        settle(&mut view);
        let expected = [(uid("a"), ChannelState::Active), (uid("b"), ChannelState::Active)];
        assert_eq!(states(&view), expected, "c waits until one of them goes");
    }
}

#[test]
fn numbers_that_lost_nodes_hold_are_counted() {
    let mut view = full();
    enter(&mut view, "n1", "a", 1);
    assert_eq!(clique(&view, &key()).quarantined, 0);
    view.put_node("n1", NodeState { lost: true });
    assert_eq!(clique(&view, &key()).quarantined, 0, "its ComputeDomain lives: nobody else wants the number");
    view.drop_cd(&uid("a"));
    assert_eq!(clique(&view, &key()).quarantined, 1);
    view.drop_node("n1");
    assert_eq!(clique(&view, &key()).quarantined, 1);
    view.put_node("n1", NodeState::default());
    assert_eq!(clique(&view, &key()).quarantined, 0, "it can be waited for");
}

#[test]
fn an_exclusive_claim_beside_others_moves_no_node_and_says_so() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    for (cd, mode) in [("green", IsolationMode::Channel), ("red", IsolationMode::Domain)] {
        let cd = sample_cd(cd, mode);
        view.put_template(wanted_template(&cd, cd.spec.as_ref().unwrap()));
        view.put_cd(cd);
    }
    // Made by hand for one slot, so the scheduler has left the others to green.
    view.put_claim(claim("red", "n1"));
    view.put_claim(claim("green", "n1"));
    assert_eq!(settle(&mut view), Vec::<&str>::new());
    let Some(Write::Status { status, .. }) = compute_domain(&view, &uid("red"), "").pop() else { panic!() };
    let isolated = status.conditions.iter().find(|condition| condition.type_ == ISOLATED).unwrap();
    assert!(isolated.message.contains("must ask for all slots"), "{isolated:?}");

    view.drop_claim(&claim("green", "n1").key.uid);
    settle(&mut view);
    assert_eq!(serves(&view, "n1"), exclusive_domain_name(&sample_clique(), &uid("red")));
    // Green comes while red is there: it waits, and says for what.
    view.put_claim(claim("green", "n1"));
    assert_eq!(settle(&mut view), Vec::<&str>::new());
    let Some(Write::Status { status, .. }) = compute_domain(&view, &uid("green"), "").pop() else { panic!() };
    let ready = status.conditions.iter().find(|condition| condition.type_ == READY).unwrap();
    assert!(ready.message.contains("serves the exclusive IMEX domain"), "{ready:?}");
}

#[test]
fn a_domain_deleted_by_hand_goes_when_nothing_is_forgotten_with_it() {
    let mut view = full();
    enter(&mut view, "n1", "a", 1);
    let mut domain = view.domain(&home()).unwrap().clone();
    assert_eq!(domain.metadata.finalizers, Some(vec![crate::names::DOMAIN_FINALIZER.into()]));
    domain.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    view.put_domain(domain);
    assert_eq!(settle(&mut view), Vec::<&str>::new(), "its channels go on");
    for cd in ["a", "b"] {
        view.put_cd(Cd { deleting: true, ..sample_cd(cd, IsolationMode::Channel) });
    }
    assert!(!settle(&mut view).contains(&"delete"), "n1 has not left");
    change_channels(&mut view, "n1");
    let mut done = Vec::new();
    while !writes(&view).iter().any(|write| matches!(write, Write::Examine { .. })) {
        for write in writes(&view).into_iter().filter(|write| !only_health(write)) {
            done.push(apply(&mut view, write));
        }
    }
    assert!(done.ends_with(&["delete", "create"]), "its epoch is restored before it gets members: {done:?}");
}

#[test]
fn a_domain_that_others_keep_is_not_written_to() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    let mut domain = view.domain(&home()).unwrap().clone();
    domain.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    domain.metadata.finalizers.as_mut().unwrap().push("other.io/hold".into());
    view.put_domain(domain.clone());
    assert!(matches!(&writes(&view)[..], [Write::DeleteDomain { .. }]), "ours is taken off");
    domain.metadata.finalizers = Some(vec!["other.io/hold".into()]);
    view.put_domain(domain);
    let plan = clique(&view, &key());
    assert!(plan.problems["n1"].message.contains("kept by the finalizers of others (other.io/hold)"), "{plan:?}");
    assert_eq!(settle(&mut view), ["refuse"], "the node is told, and that is all");
}

#[test]
fn a_domain_of_nobody_that_others_keep_is_left_alone() {
    let mut view = View::default();
    with_node(&mut view, new_node("n1"));
    settle(&mut view);
    let name = exclusive_domain_name(&sample_clique(), &uid("red"));
    let mut domain = crate::protocol::samples::exclusive(&name, &uid("red"));
    domain.spec.clique = key();
    domain.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    domain.metadata.finalizers = Some(vec!["other.io/hold".into()]);
    view.put_domain(domain);
    assert_eq!(settle(&mut view), Vec::<&str>::new());
}

#[test]
fn a_finalizer_taken_off_by_hand_is_put_back() {
    let mut view = full();
    let mut domain = view.domain(&home()).unwrap().clone();
    domain.metadata.finalizers = None;
    view.put_domain(domain);
    let [Write::Domain(write)] = &writes(&view)[..] else { panic!() };
    assert!(write.members.is_some());
}

fn change_channels(view: &mut View, node: &str) {
    let mut object = view.imex_node(node).unwrap().clone();
    object.status.as_mut().unwrap().channels.clear();
    view.put_imex_node(object);
}
