//! Numbers: drained, freed, taken back, counted.

use super::*;

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
