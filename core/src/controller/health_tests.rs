use super::*;
use crate::api::{MissingPeer, PeerLinks, Refusal};
use crate::controller::samples::new_node;
use crate::protocol::samples::shared;

const SINCE: &str = "2026-01-01T00:00:00Z";

/// Nodes `n0`, … whose daemons are READY in domain `d` and pairwise connected.
fn healthy(count: u32) -> (IMEXDomain, View) {
    let mut domain = shared("d");
    let mut view = View::default();
    for index in 0..count {
        let node_name = format!("n{index}");
        domain.spec.members.insert(node_name.clone(), Member { index, address: String::new(), away: false });
        let mut node = new_node(&node_name);
        let daemon = &mut node.status.as_mut().unwrap().daemon;
        (daemon.state, daemon.domain, daemon.index) = ("READY".into(), Some("d".into()), Some(index));
        let connected = (0..count).filter(|peer| *peer != index).collect();
        daemon.links = Some(PeerLinks { state: LinksState::Known, connected, ..PeerLinks::default() });
        view.put_imex_node(node);
    }
    (domain, view)
}

#[test]
fn other_words_for_the_same_health_are_told_from_news() {
    let health = |ready, message: &str| DomainHealth {
        expected: 3,
        ready,
        state: "Degraded".into(),
        message: Some(message.into()),
        ..DomainHealth::default()
    };
    let mut domain = shared("d");
    let write = |domain: &IMEXDomain, new| crate::controller::DomainWrite {
        domain: domain.clone(),
        members: None,
        drain: Default::default(),
        drain_if_gone: Vec::new(),
        revive: Default::default(),
        free: false,
        nodes: Vec::new(),
        reread: Default::default(),
        health: new,
    };
    assert!(
        !write(&domain, Some(health(2, "n2 has not reported yet"))).changes_words_alone(),
        "the first word is news"
    );
    domain.status.get_or_insert_default().health = Some(health(2, "n2 has not reported yet"));
    let starts = write(&domain, Some(health(2, "n2 runs no IMEX daemon")));
    assert!(starts.changes_words_alone());
    assert!(!write(&domain, Some(health(1, "n2 runs no IMEX daemon"))).changes_words_alone());
    assert!(!write(&domain, None).changes_words_alone());
    assert!(!crate::controller::DomainWrite { free: true, ..starts }.changes_words_alone());
}

fn change(view: &mut View, node: &str, change: impl FnOnce(&mut IMEXNode)) {
    let mut object = view.imex_node(node).unwrap().clone();
    change(&mut object);
    view.put_imex_node(object);
}

fn links(view: &mut View, node: &str, spoil: impl FnOnce(&mut PeerLinks)) {
    change(view, node, |node| spoil(node.status.as_mut().unwrap().daemon.links.as_mut().unwrap()));
}

fn lose(view: &mut View, node: &str, peer: u32, word: &str) {
    links(view, node, |links| {
        links.connected.retain(|known| *known != peer);
        links.missing.push(MissingPeer { index: peer, state: word.into() });
    });
}

#[test]
fn known_failure_degraded_up_is_over_expected_members_alone() {
    let (mut domain, mut view) = healthy(3);
    let health = domain_health(&domain, &view);
    assert_eq!((health.state.as_str(), health.expected, health.ready, health.message), ("Up", 3, 3, None));
    // Neither who is away counts, nor who is refused.
    domain.spec.members.get_mut("n1").unwrap().away = true;
    lose(&mut view, "n0", 1, "DISCONNECTED");
    change(&mut view, "n2", |node| node.spec.refused = Some(Refusal::default()));
    lose(&mut view, "n0", 2, "VERSION_MISMATCH");
    let health = domain_health(&domain, &view);
    assert_eq!((health.state.as_str(), health.expected, health.disconnected_pairs), ("Up", 1, 0));
    domain.spec.members.clear();
    assert_eq!(domain_health(&domain, &view).state, "Up", "nobody is missed in a domain without members");
}

#[test]
fn a_pair_is_connected_if_both_say_so() {
    let (domain, mut view) = healthy(4);
    lose(&mut view, "n1", 3, "RECOVERING");
    lose(&mut view, "n2", 0, "PONDERING");
    let health = domain_health(&domain, &view);
    assert_eq!((health.state.as_str(), health.ready, health.disconnected_pairs), ("Degraded", 4, 2));
    let text = "not connected are n0 and n2 (PONDERING), n1 and n3 (RECOVERING)";
    assert_eq!(health.message.as_deref(), Some(text), "words that nobody knows are passed on");
}

#[test]
fn who_is_not_ready_is_named_and_not_blamed_for_connections() {
    let (domain, mut view) = healthy(3);
    change(&mut view, "n1", |node| node.status.as_mut().unwrap().daemon.state = "DOWN".into());
    lose(&mut view, "n0", 1, "RECOVERING");
    let health = domain_health(&domain, &view);
    assert_eq!((health.state.as_str(), health.ready, health.disconnected_pairs), ("Degraded", 2, 0));
    assert_eq!(health.message.as_deref(), Some("n1 has its IMEX daemon in state DOWN"));
    for node in ["n0", "n2"] {
        view.drop_imex_node(node);
    }
    let health = domain_health(&domain, &view);
    assert_eq!(health.state, "Down");
    assert!(health.message.unwrap().contains("n0 has no agent"));
}

#[test]
fn what_is_not_known_is_unknown_and_the_last_word_stays() {
    let (domain, mut view) = healthy(2);
    links(&mut view, "n1", |links| {
        (links.state, links.since) = (LinksState::Unknown, SINCE.into());
        links.message = Some("nvidia-imex-ctl has not answered within 2s".into());
    });
    let health = domain_health(&domain, &view);
    assert_eq!((health.state.as_str(), health.ready), ("Unknown", 2));
    let said = health.message.unwrap();
    assert!(said.starts_with("n1 has not said since 2026-01-01T00:00:00Z") && said.contains("2s"), "{said}");
    lose(&mut view, "n1", 0, "DISCONNECTED");
    assert_eq!(domain_health(&domain, &view).state, "Degraded", "what it said last");
    // A member that has just come, of which the other has not heard.
    let (domain, mut view) = healthy(2);
    links(&mut view, "n1", |links| links.connected.clear());
    assert_eq!(domain_health(&domain, &view).state, "Unknown");
    change(&mut view, "n1", |node| node.status.as_mut().unwrap().daemon.links = None);
    assert_eq!(domain_health(&domain, &view).state, "Unknown");
}

#[test]
fn the_message_is_bounded() {
    let (domain, mut view) = healthy(18);
    for peer in 0..17 {
        lose(&mut view, "n17", peer, "RECOVERING");
    }
    let health = domain_health(&domain, &view);
    assert_eq!(health.disconnected_pairs, 17);
    assert!(health.message.unwrap().ends_with(" and 12 more"));
}
