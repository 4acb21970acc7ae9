use super::samples::*;
use super::*;
use crate::api::{
    ChannelEntry, ChannelState, ComputeDomainStatus, IMEXNode, ImexMode, IsolationMode, Member, NodeChannel, ReadyState,
};
use crate::fault::reason;
use crate::imex::{Standing, host_refusal, shared_domain_name};
use crate::protocol::samples::{shared, with_channel};

const NOW: &str = "2026-01-01T00:00:00Z";

/// Nodes `n0`, … that have entered channel 7 of the shared domain for `green`, whose template is in place.
fn at_work(nodes: u32) -> View {
    let mut view = View::default();
    let home = shared_domain_name(&sample_clique());
    let mut domain = with_channel(shared(&home), &uid("green"), 7);
    domain.spec.clique = sample_clique().to_string();
    for index in 0..nodes {
        let node_name = format!("n{index}");
        let address = format!("10.0.0.{index}");
        domain.spec.members.insert(node_name.clone(), Member { index, address, away: false });
        let mut node = new_node(&node_name);
        node.spec.domain = Some(home.clone());
        let status = node.status.as_mut().unwrap();
        status.daemon.state = "READY".into();
        status.daemon.domain = Some(home.clone());
        status.daemon.index = Some(index);
        let entry = NodeChannel { channel: 7, domain: home.clone(), since: String::new() };
        status.channels.insert(uid("green"), entry);
        view.put_node(&node_name, NodeState::default());
        view.put_imex_node(node);
        view.put_claim(claim("green", &node_name));
    }
    view.put_domain(domain);
    let green = sample_cd("green", IsolationMode::Channel);
    view.put_template(wanted_template(&green, green.spec.as_ref().unwrap()));
    view.put_cd(green);
    view
}

fn status(view: &View) -> (ComputeDomainStatus, Vec<Note>) {
    let mut writes = compute_domain(view, &uid("green"), NOW);
    match writes.pop() {
        Some(Write::Status { status, notes, .. }) => (status, notes),
        other => panic!("{other:?}"),
    }
}

fn said<'a>(status: &'a ComputeDomainStatus, type_: &str) -> (&'a str, &'a str, &'a str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_).unwrap();
    (&condition.status, &condition.reason, &condition.message)
}

fn change(view: &mut View, node: &str, change: impl FnOnce(&mut IMEXNode)) {
    let mut object = view.imex_node(node).unwrap().clone();
    change(&mut object);
    view.put_imex_node(object);
}

#[test]
fn a_status_that_says_it_all_is_not_written_again() {
    let mut view = at_work(2);
    let (written, notes) = status(&view);
    assert_eq!((written.status, written.channel.as_deref()), (Some(ReadyState::Ready), Some("7")));
    assert_eq!((written.node_count, written.ready_node_count), (2, 2));
    assert_eq!(said(&written, READY), ("True", "NodesReady", "all of its nodes are ready: 2"));
    let reasons: Vec<_> = notes.iter().map(|note| note.reason.as_str()).collect();
    assert_eq!(reasons, ["NodesReady", "Assigned", "ByChannel"]);
    let known = Cd { status: Some(written), ..view.cd(&uid("green")).unwrap().clone() };
    view.put_cd(known);
    assert_eq!(compute_domain(&view, &uid("green"), "2027-01-01T00:00:00Z"), []);
}

#[test]
fn a_condition_keeps_the_time_since_when_it_holds() {
    let mut view = at_work(1);
    let (written, _) = status(&view);
    view.put_cd(Cd { status: Some(written), ..view.cd(&uid("green")).unwrap().clone() });
    change(&mut view, "n0", |node| node.status.as_mut().unwrap().daemon.state = "DOWN".into());
    let Some(Write::Status { status, notes, .. }) = compute_domain(&view, &uid("green"), "2027-01-01T00:00:00Z").pop()
    else {
        panic!()
    };
    let turned =
        |type_: &str| status.conditions.iter().find(|c| c.type_ == type_).unwrap().last_transition_time.0.to_string();
    assert_eq!((turned(READY).as_str(), turned(CHANNEL_ASSIGNED).as_str()), ("2027-01-01T00:00:00Z", NOW));
    assert_eq!(said(&status, READY).2, "0 of 1 nodes are ready: n0 has its IMEX daemon in state DOWN");
    assert_eq!(said(&status, DEGRADED).1, "DaemonNotReady");
    assert!(notes.iter().any(|note| note.warning && note.reason == "DaemonNotReady"));
}

#[test]
fn what_a_node_lacks_is_said() {
    type Spoil = fn(&mut IMEXNode);
    let cases: [(Spoil, &str); 4] = [
        (|node| node.status.as_mut().unwrap().daemon.domain = None, "n0 runs no IMEX daemon"),
        (
            |node| node.status.as_mut().unwrap().daemon.domain = Some("x".into()),
            "still runs its IMEX daemon for domain x",
        ),
        (|node| node.status.as_mut().unwrap().daemon.index = Some(5), "says it is member 5 of domain"),
        (|node| node.status.as_mut().unwrap().channels.clear(), "has not entered a channel yet"),
    ];
    for (spoil, why) in cases {
        let mut view = at_work(1);
        change(&mut view, "n0", spoil);
        let (status, _) = status(&view);
        assert!(said(&status, READY).2.contains(why), "{} lacks {why}", said(&status, READY).2);
        assert_eq!(status.status, Some(ReadyState::NotReady));
    }
}

fn open_the_door(node: &mut IMEXNode) {
    let said = crate::condition::draft("RuntimeGuarded", "False", "RuntimeGuardOpen", "pods get channels; set x in /y");
    node.status.as_mut().unwrap().conditions = crate::condition::settle(&[], vec![said], None, NOW);
}

#[test]
fn a_node_with_an_open_second_door_isolates_nothing() {
    let mut view = at_work(8);
    let (written, _) = status(&view);
    assert_eq!(said(&written, ISOLATED).0, "True");
    (1..8).for_each(|n| change(&mut view, &format!("n{n}"), open_the_door));
    let (written, notes) = status(&view);
    let (turned, reason, message) = said(&written, ISOLATED);
    assert_eq!((turned, reason), ("False", "RuntimeGuardOpen"));
    let expected = "any pod on n1, n2, n3, n4, n5 and 2 more can have its channel: pods get channels; set x in /y";
    assert_eq!(message, expected);
    assert!(notes.iter().any(|note| note.warning && note.reason == "RuntimeGuardOpen"));
    assert_eq!(said(&written, READY).0, "True", "it works, it is only not alone");
}

#[test]
fn only_the_doors_of_nodes_that_serve_it_count() {
    let mut view = at_work(1);
    let mut other = new_node("n9");
    open_the_door(&mut other);
    view.put_imex_node(other);
    change(&mut view, "n0", |node| {
        open_the_door(node);
        node.status.as_mut().unwrap().clique = None;
    });
    assert_eq!(said(&status(&view).0, ISOLATED).0, "True", "without fabric there is nothing to reach");
}

#[test]
fn a_node_without_fabric_is_ready_without_a_channel() {
    let mut view = at_work(1);
    view.drop_domain(&shared_domain_name(&sample_clique()));
    change(&mut view, "n0", |node| {
        node.spec = Default::default();
        node.status = Some(Default::default());
    });
    let (status, _) = status(&view);
    assert_eq!((said(&status, READY).0, said(&status, CHANNEL_ASSIGNED).1), ("True", "NoFabric"));
}

#[test]
fn the_list_of_nodes_is_cut_and_the_counts_are_not() {
    let view = at_work(100);
    let (status, _) = status(&view);
    assert_eq!((status.nodes.len(), status.node_count, status.cliques[0].nodes), (64, 100, 100));
    let mut broken = view.clone();
    for n in 0..100 {
        change(&mut broken, &format!("n{n}"), |node| node.status.as_mut().unwrap().daemon.state = "DOWN".into());
    }
    let (status, _) = self::status(&broken);
    assert!(said(&status, READY).2.ends_with(" and 95 more"), "{}", said(&status, READY).2);
}

#[test]
fn num_nodes_is_waited_for() {
    let mut view = at_work(1);
    view.put_imex_node(new_node("n9"));
    let mut green = view.cd(&uid("green")).unwrap().clone();
    green.spec.as_mut().unwrap().num_nodes = 2;
    view.put_cd(green);
    assert_eq!(said(&status(&view).0, READY), ("False", "WaitingForNodes", "1 nodes are ready, numNodes is 2"));
}

#[test]
fn an_exhausted_domain_is_told() {
    let mut view = at_work(1);
    let mut domain = view.domain(&shared_domain_name(&sample_clique())).unwrap().clone();
    domain.status = None;
    (1..4).for_each(|n| domain = with_channel(domain.clone(), &format!("other-{n}"), n));
    view.put_domain(domain);
    change(&mut view, "n0", |node| {
        let status = node.status.as_mut().unwrap();
        status.channels.clear();
        status.channel_count = 4;
    });
    let (status, notes) = status(&view);
    let (_, reason, message) = said(&status, CHANNEL_ASSIGNED);
    assert_eq!(reason, "ChannelsExhausted");
    assert!(message.contains("(3 in use)"), "{message}");
    assert!(notes.iter().any(|note| note.warning && note.reason == "ChannelsExhausted"));
}

#[test]
fn one_without_spec_is_told_and_deleted_like_any_other() {
    let mut view = View::default();
    let odd = Cd { spec: Err("it has no spec".into()), ..sample_cd("green", IsolationMode::Channel) };
    view.put_cd(odd.clone());
    let (status, notes) = status(&view);
    assert_eq!(said(&status, READY).1, "InvalidSpec");
    assert!(notes[0].warning);
    view.put_cd(Cd { deleting: true, ..odd });
    assert!(matches!(&compute_domain(&view, &uid("green"), NOW)[..], [Write::Unguard { .. }]));
}

#[test]
fn deletion_waits_for_whom_it_names_but_not_for_the_lost() {
    let mut view = at_work(2);
    let green = view.cd(&uid("green")).unwrap().clone();
    view.put_cd(Cd { deleting: true, ..green });
    let writes = compute_domain(&view, &uid("green"), NOW);
    assert!(matches!(&writes[..], [Write::ReleaseTemplate { .. }, Write::Status { .. }]));
    view.drop_template(&("team".into(), "green-channel".into()));
    let (waiting, _) = status(&view);
    let text = said(&waiting, READY).2;
    assert!(text.contains("claim green-n0 on node n0") && text.contains("to drain"), "{text}");

    let mut domain = view.domain(&shared_domain_name(&sample_clique())).unwrap().clone();
    domain.status = crate::protocol::drain(&domain, &[uid("green")].into());
    view.put_domain(domain);
    view.drop_claim(&claim("green", "n0").key.uid);
    view.put_node("n1", NodeState { lost: true });
    let (waiting, _) = status(&view);
    let text = said(&waiting, READY).2;
    assert!(text.ends_with("waits for node n0 to leave its channel, which pods there use"), "{text}");

    change(&mut view, "n0", |node| node.status.as_mut().unwrap().channels.clear());
    let writes = compute_domain(&view, &uid("green"), NOW);
    let [Write::Unguard { cd, template, notes }] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(template, &Some(("team".into(), "green-channel".into())), "one without its label is looked for");
    let [Note { warning: true, reason, message }] = &notes[..] else { panic!("{notes:?}") };
    assert_eq!(reason, reason::CHANNEL_QUARANTINED);
    assert!(message.contains("channel 7") && message.ends_with("heddle channel release --node n1"), "{message}");

    // Where it waits for somebody else still, the condition says so, and no Event again.
    let mut told = (**cd).clone();
    let template = wanted_template(&told, told.spec.as_ref().unwrap());
    view.put_template(template);
    let (waiting, notes) = status(&view);
    let text = said(&waiting, DEGRADED);
    assert_eq!(text.1, reason::CHANNEL_QUARANTINED);
    assert!(notes.iter().any(|note| note.warning && note.reason == reason::CHANNEL_QUARANTINED));
    told.status = Some(waiting);
    view.put_cd(told);
    view.drop_template(&("team".into(), "green-channel".into()));
    let writes = compute_domain(&view, &uid("green"), NOW);
    assert!(matches!(&writes[..], [Write::Unguard { notes, .. }] if notes.is_empty()), "{writes:?}");
}

#[test]
fn a_template_without_its_label_is_released_with_its_compute_domain() {
    let mut view = View::default();
    let green = Cd { deleting: true, ..sample_cd("green", IsolationMode::Channel) };
    let mut template = wanted_template(&green, green.spec.as_ref().unwrap());
    template.metadata.labels = None;
    view.put_template(template.clone());
    let released = |unless_alive| Write::ReleaseTemplate { template: Box::new(template.clone()), unless_alive };
    assert!(view.dirty.cds.contains(green.uid()));
    assert_eq!(
        compute_domain(&view, green.uid(), NOW),
        [released(Some(uid("green")))],
        "it has no ComputeDomain any more"
    );
    view.put_cd(green.clone());
    assert_eq!(compute_domain(&view, green.uid(), NOW)[0], released(None));
    // A name that no object can have is not asked for.
    view.drop_template(&("team".into(), "green-channel".into()));
    let mut odd = green.clone();
    odd.spec.as_mut().unwrap().channel.resource_claim_template.name = "a/../b".into();
    view.put_cd(odd);
    let writes = compute_domain(&view, green.uid(), NOW);
    assert!(matches!(&writes[..], [Write::Unguard { template: None, .. }]), "{writes:?}");
}

#[test]
fn a_number_that_another_uses_or_a_node_of_another_number_is_a_clash() {
    let mut view = at_work(2);
    view.dirty = Dirty::default();
    // Released for a node that was off for good, freed, given to green; and now the node is back.
    change(&mut view, "n1", |node| {
        let channels = &mut node.status.as_mut().unwrap().channels;
        let entry = channels[&uid("green")].clone();
        channels.insert(uid("old"), entry);
    });
    assert!(view.dirty.cds.contains(&uid("green")), "it is told without a claim there");
    let (told, notes) = status(&view);
    let text = "node n1 uses its channel 7 for the ComputeDomain of UID uid-old, which is gone; delete the pods there, or power the node off";
    assert_eq!(said(&told, ISOLATED), ("False", reason::CHANNEL_CLASH, text));
    assert_eq!(said(&told, DEGRADED).1, reason::CHANNEL_CLASH);
    assert!(notes.iter().any(|note| note.warning && note.reason == reason::CHANNEL_CLASH));

    let mut view = at_work(1);
    change(&mut view, "n0", |node| {
        node.status.as_mut().unwrap().channels.get_mut(&uid("green")).unwrap().channel = 9;
    });
    let text = said(&status(&view).0, ISOLATED).2.to_owned();
    assert!(text.starts_with("node n0 uses channel 9 for it, domain shared-"), "{text}");
}

#[test]
fn a_number_that_the_map_has_lost_and_given_to_another_is_told_to_the_one_that_had_it() {
    let mut view = at_work(2);
    let domain = view.domains_with(&uid("green")).next().unwrap().clone();
    let changed = |view: &mut View, uid_of_entry: Option<&str>| {
        let mut domain = domain.clone();
        let map = &mut domain.status.as_mut().unwrap().channels;
        let entry = map.remove(&uid("green")).unwrap();
        map.extend(uid_of_entry.map(|uid| (uid.to_owned(), entry)));
        domain.metadata.resource_version = None;
        view.put_domain(domain);
    };
    changed(&mut view, None);
    let assigned = |view: &View| said(&status(view).0, CHANNEL_ASSIGNED).2.to_owned();
    assert!(assigned(&view).contains("map has lost"), "{}", assigned(&view));
    view.dirty = Dirty::default();
    changed(&mut view, Some("uid-other"));
    assert!(view.dirty.cds.contains(&uid("green")));
    let (told, _) = status(&view);
    let (state, why, text) = said(&told, ISOLATED);
    assert_eq!((state, why), ("False", reason::CHANNEL_CLASH));
    assert!(text.contains("node n0 uses channel 7 for it, which domain shared-"), "{text}");
    assert!(text.contains("gives to the ComputeDomain of UID uid-other"), "{text}");
}

#[test]
fn more_nodes_than_the_cluster_has_is_told_until_it_has_them() {
    let mut view = at_work(2);
    let mut green = view.cd(&uid("green")).unwrap().clone();
    green.spec.as_mut().unwrap().num_nodes = 3;
    view.put_cd(green);
    let (told, notes) = status(&view);
    assert_eq!(said(&told, READY).1, reason::TOO_FEW_NODES);
    assert!(notes.iter().any(|note| note.warning && note.reason == reason::TOO_FEW_NODES));
    view.dirty = Dirty::default();
    change(&mut view, "n1", |node| node.status.as_mut().unwrap().daemon.version = "2".into());
    view.put_imex_node(new_node("n2"));
    assert!(std::mem::take(&mut view.dirty).cds.contains(&uid("green")));
    assert_eq!(said(&status(&view).0, READY).1, "WaitingForNodes");
    view.put_imex_node(new_node("n3"));
    assert!(!std::mem::take(&mut view.dirty).cds.contains(&uid("green")), "one more makes no difference");
    view.drop_imex_node("n3");
    view.dirty = Dirty::default();
    view.drop_imex_node("n2");
    assert!(view.dirty.cds.contains(&uid("green")));
}

#[test]
fn a_node_that_can_never_serve_it_says_why() {
    let mut view = at_work(1);
    change(&mut view, "n0", |node| {
        let status = node.status.as_mut().unwrap();
        status.channels.clear();
        status.channel_count = 1;
    });
    let text = said(&status(&view).0, READY).2.to_owned();
    assert!(text.contains("n0 has 1 IMEX channels; load the NVIDIA kernel module"), "{text}");
}

fn links(connected: &[u32], missing: &[(u32, &str)]) -> crate::api::PeerLinks {
    let missing = missing.iter().map(|(index, word)| crate::api::MissingPeer { index: *index, state: (*word).into() });
    let (connected, missing) = (connected.to_vec(), missing.collect());
    crate::api::PeerLinks { state: crate::api::LinksState::Known, connected, missing, ..Default::default() }
}

#[test]
fn nodes_that_are_not_connected_are_named() {
    let mut view = at_work(3);
    for (node, links) in [
        ("n0", links(&[2], &[(1, "RECOVERING")])),
        ("n1", links(&[2], &[(0, "RECOVERING")])),
        ("n2", links(&[0, 1], &[(7, "NEVER_CONNECTED")])),
    ] {
        change(&mut view, node, |node| node.status.as_mut().unwrap().daemon.links = Some(links));
    }
    let (written, notes) = status(&view);
    let (turned, reason, message) = said(&written, DEGRADED);
    assert_eq!((turned, reason), ("True", "PeersDisconnected"));
    assert!(message.starts_with("not connected are n0 and n1 (RECOVERING): look at"), "{message}");
    assert!(notes.iter().any(|note| note.warning && note.reason == "PeersDisconnected"));
    assert_eq!(said(&written, READY).0, "True", "jobs of either side go on");
    // Of others the ComputeDomain says nothing.
    change(&mut view, "n1", |node| node.status.as_mut().unwrap().daemon.links = Some(links(&[0, 2], &[])));
    change(&mut view, "n0", |node| node.status.as_mut().unwrap().daemon.links = Some(links(&[1, 2], &[])));
    assert_eq!(said(&status(&view).0, DEGRADED).1, "AsExpected");
}

#[test]
fn what_the_driver_asks_for_is_shown_beside_all_else_that_is_wrong() {
    let mut view = at_work(2);
    change(&mut view, "n0", |node| {
        node.status.as_mut().unwrap().daemon.recovery_action = Some("GPU 1: recover the IMEX domain".into());
    });
    let (written, _) = status(&view);
    let (turned, reason, message) = said(&written, DEGRADED);
    assert_eq!((turned, reason), ("True", "RecoveryNeeded"));
    assert!(message.contains("n0: GPU 1: recover the IMEX domain"), "{message}");
    change(&mut view, "n1", |node| node.status.as_mut().unwrap().daemon.state = "DOWN".into());
    let (written, _) = status(&view);
    let (_, reason, message) = said(&written, DEGRADED);
    assert_eq!(reason, "DaemonNotReady");
    assert!(message.contains("n1 has its IMEX daemon in state DOWN; n0: GPU 1"), "{message}");
}

/// One exclusive ComputeDomain `green` with claims on these nodes of the shared domain.
fn exclusive_on(nodes: u32, claimed: &[&str]) -> View {
    let mut view = at_work(nodes);
    for n in 0..nodes {
        view.drop_claim(&claim("green", &format!("n{n}")).key.uid);
        change(&mut view, &format!("n{n}"), |node| node.status.as_mut().unwrap().channels.clear());
    }
    let green = sample_cd("green", IsolationMode::Domain);
    view.put_template(wanted_template(&green, green.spec.as_ref().unwrap()));
    view.put_cd(green);
    claimed.iter().for_each(|node| view.put_claim(claim("green", node)));
    view
}

fn give_to_host(view: &mut View, node: &str) {
    change(view, node, |node| node.status.as_mut().unwrap().imex_mode = ImexMode::HostManaged);
}

#[test]
fn an_exclusive_compute_domain_is_refused_in_the_words_of_the_claims_event() {
    let mut view = exclusive_on(2, &["n0"]);
    give_to_host(&mut view, "n0");
    let (status, notes) = status(&view);
    let words = host_refusal(&view.cd(&uid("green")).unwrap().reference, "node n0");
    for type_ in [READY, ISOLATED] {
        assert_eq!(said(&status, type_), ("False", "HostManagedImex", words.message.as_str()));
    }
    assert!(notes.iter().any(|note| note.warning && note.reason == "HostManagedImex" && note.message == words.message));
    assert_eq!(status.status, Some(ReadyState::NotReady));
}

#[test]
fn where_every_daemon_is_its_hosts_an_exclusive_one_is_refused_before_its_first_pod() {
    let mut view = exclusive_on(2, &[]);
    assert_eq!(said(&status(&view).0, READY).1, "NoPods");
    give_to_host(&mut view, "n0");
    assert_eq!(said(&status(&view).0, READY).1, "NoPods", "there is a node that can serve it");
    view.dirty = Default::default();
    give_to_host(&mut view, "n1");
    assert!(view.dirty.cds.contains(&uid("green")), "it is decided anew when the last such node goes");
    let (status, _) = status(&view);
    let (turned, reason, message) = said(&status, READY);
    assert_eq!((turned, reason), ("False", "HostManagedImex"));
    assert!(message.contains("the IMEX daemon of every node is the host's"), "{message}");
    view.dirty = Default::default();
    change(&mut view, "n1", |node| node.status.as_mut().unwrap().imex_mode = ImexMode::DriverManaged);
    assert!(view.dirty.cds.contains(&uid("green")), "and when the first comes");
    assert_eq!(said(&self::status(&view).0, READY).1, "NoPods");
}

#[test]
fn a_shared_one_is_served_by_hosts_daemons_with_the_hosts_index() {
    let mut view = at_work(2);
    for node in ["n0", "n1"] {
        give_to_host(&mut view, node);
    }
    change(&mut view, "n1", |node| node.status.as_mut().unwrap().daemon.index = Some(13));
    let (status, _) = status(&view);
    assert_eq!(said(&status, READY), ("True", "NodesReady", "all of its nodes are ready: 2"));
    assert_eq!(said(&status, ISOLATED).1, "ByChannel");
    assert_eq!(status.nodes.iter().map(|node| node.index).collect::<Vec<_>>(), [0, 13]);
}

#[test]
fn issue_1163_a_node_that_waits_to_change_its_mode_says_so_where_a_claim_waits() {
    let mut view = at_work(2);
    change(&mut view, "n1", |node| {
        let status = node.status.as_mut().unwrap();
        status.channels.clear();
        let held = Standing { acts: ImexMode::DriverManaged, wanted: ImexMode::HostManaged, holding: 1 };
        status.conditions = crate::condition::settle(&[], vec![held.condition()], None, NOW);
    });
    let (status, _) = status(&view);
    let text = said(&status, READY).2;
    assert!(text.contains("n1 prepares no new claim: this node is set to host-managed IMEX"), "{text}");
    assert_eq!(status.ready_node_count, 1, "what is prepared goes on");
}

#[test]
fn a_move_that_waits_for_a_certificate_which_nobody_asks_for_says_so() {
    let mut view = exclusive_on(1, &["n0"]);
    view.peer_certificates = true;
    change(&mut view, "n0", |node| node.spec.next = Some("exclusive-x".into()));
    assert!(said(&status(&view).0, ISOLATED).2.ends_with("and waits for a certificate of the next"));
    change(&mut view, "n0", |node| node.status.as_mut().unwrap().peer_authentication = Some("files".into()));
    let (status, _) = status(&view);
    let (_, reason, text) = said(&status, ISOLATED);
    assert_eq!(reason, "AuthenticationMismatch");
    assert!(
        text.contains(
            "authenticates IMEX peers by files, the controller by domain-ca; set --peer-authentication alike"
        ),
        "{text}"
    );
}

/// Allocated and taken back between two writes of its status: no status has ever said that it had a channel.
#[test]
fn a_channel_that_came_and_went_unseen_is_told_of() {
    let mut view = at_work(1);
    change(&mut view, "n0", |node| node.status.as_mut().unwrap().channels.clear());
    view.drop_claim(&claim("green", "n0").key.uid);
    let home = shared_domain_name(&sample_clique());
    let mut domain = view.domain(&home).unwrap().clone();
    let mut turn = |view: &mut View, change: &dyn Fn(&mut std::collections::BTreeMap<String, ChannelEntry>)| {
        change(&mut domain.status.as_mut().unwrap().channels);
        view.put_domain(domain.clone());
    };
    turn(&mut view, &|channels| channels.values_mut().for_each(|entry| entry.state = ChannelState::Draining));
    turn(&mut view, &|channels| channels.clear());
    assert!(view.dirty.cds.contains(&uid("green")));
    let (written, notes) = status(&view);
    assert_eq!(said(&written, CHANNEL_ASSIGNED).1, reason::CHANNEL_RECLAIMED);
    assert!(notes.iter().any(|note| note.reason == reason::CHANNEL_RECLAIMED));

    // The next that it gets is no longer one that was taken back, nor is one of a ComputeDomain that goes.
    let other = with_channel(shared(&home), &uid("green"), 8).status.unwrap().channels;
    turn(&mut view, &|channels| *channels = other.clone());
    assert!(!view.taken_back(&uid("green")));
    let green = view.cd(&uid("green")).unwrap().clone();
    view.put_cd(Cd { deleting: true, ..green });
    turn(&mut view, &|channels| channels.values_mut().for_each(|entry| entry.state = ChannelState::Draining));
    turn(&mut view, &|channels| channels.clear());
    assert!(!view.taken_back(&uid("green")));
}
