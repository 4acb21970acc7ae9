//! Nodes that go to an exclusive domain and come home.

use super::*;

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
