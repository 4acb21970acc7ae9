use super::*;

fn candidates(names: &[&str]) -> BTreeMap<String, Candidate> {
    let candidate = |name: &&str| {
        let candidate = Candidate {
            addresses: vec![format!("10.0.0.{}", name.len())],
            channel_count: 2048,
            driver_version: "580.95.05".into(),
            ..Candidate::default()
        };
        (name.to_string(), candidate)
    };
    names.iter().map(candidate).collect()
}

fn plan(current: &Membership, max: u32, candidates: &BTreeMap<String, Candidate>) -> Membership {
    membership("d", &current.members, max, candidates, DriverMatch::Branch)
}

fn first(max: u32, candidates: &BTreeMap<String, Candidate>) -> Membership {
    plan(&Membership::default(), max, candidates)
}

fn indices(plan: &Membership) -> Vec<(&str, u32)> {
    plan.members.iter().map(|(node, member)| (node.as_str(), member.index)).collect()
}

fn refused(plan: &Membership) -> Vec<(&str, &'static str)> {
    plan.problems.iter().map(|(node, fault)| (node.as_str(), fault.reason)).collect()
}

#[test]
fn indices_are_the_lowest_free_and_kept() {
    let one = first(18, &candidates(&["b", "c"]));
    assert_eq!(indices(&one), [("b", 0), ("c", 1)]);
    let two = plan(&one, 18, &candidates(&["a", "b", "c"]));
    assert_eq!(indices(&two), [("a", 2), ("b", 0), ("c", 1)]);
    let three = plan(&two, 18, &candidates(&["a", "c", "d"]));
    assert_eq!(indices(&three), [("a", 2), ("c", 1), ("d", 0)]);
    // Removed and added again it may get another.
    assert_eq!(
        indices(&plan(&three, 18, &candidates(&["a", "b", "c", "d"]))),
        [("a", 2), ("b", 3), ("c", 1), ("d", 0)]
    );
}

/// Members with indices that a hand has written, and candidates whose daemons say these.
fn written<const N: usize>(all: [(&str, u32, Option<u32>); N]) -> (Membership, BTreeMap<String, Candidate>) {
    let mut candidates = candidates(&all.map(|(node, ..)| node));
    let mut written = first(18, &candidates);
    for (node, index, says) in all {
        written.members.get_mut(node).unwrap().index = index;
        candidates.get_mut(node).unwrap().index = says;
    }
    (written, candidates)
}

#[test]
fn an_index_that_two_have_stays_with_the_daemon_that_says_it() {
    let (edited, all) = written([("a", 1, Some(0)), ("b", 1, Some(1)), ("c", 2, Some(2))]);
    let mended = plan(&edited, 18, &all);
    assert_eq!(indices(&mended), [("a", 0), ("b", 1), ("c", 2)], "the other gets back what its daemon has");
    assert_eq!(plan(&mended, 18, &all), mended);
    // Both daemons have been started with it, or none has.
    for says in [Some(1), None] {
        let (edited, all) = written([("a", 1, says), ("b", 1, says), ("c", 0, Some(0))]);
        assert_eq!(indices(&plan(&edited, 18, &all)), [("a", 1), ("b", 2), ("c", 0)]);
    }
    // All at once, and a newcomer takes nobody's.
    let (edited, mut all) = written([("a", 7, Some(0)), ("b", 7, Some(1)), ("c", 7, Some(2))]);
    all.extend(candidates(&["0"]));
    assert_eq!(indices(&plan(&edited, 18, &all)), [("0", 3), ("a", 7), ("b", 1), ("c", 2)]);
}

#[test]
fn daemons_with_jobs_keep_their_own_index_when_a_hand_has_swapped_all() {
    let (edited, mut all) = written([("a", 1, Some(0)), ("b", 2, Some(1)), ("c", 0, Some(2))]);
    assert_eq!(indices(&plan(&edited, 18, &all)), [("a", 1), ("b", 2), ("c", 0)], "without jobs they follow");
    all.get_mut("b").unwrap().busy = true;
    assert_eq!(indices(&plan(&edited, 18, &all)), [("a", 3), ("b", 1), ("c", 0)]);
    all.values_mut().for_each(|candidate| candidate.busy = true);
    let mended = plan(&edited, 18, &all);
    assert_eq!(indices(&mended), [("a", 0), ("b", 1), ("c", 2)]);
    assert_eq!(plan(&mended, 18, &all), mended);
    // Who says what another has takes it from nobody.
    let (right, mut all) = written([("a", 0, Some(0)), ("b", 1, Some(0))]);
    all.get_mut("b").unwrap().busy = true;
    assert_eq!(plan(&right, 18, &all), right);
}

#[test]
fn an_index_past_the_end_is_replaced_unless_jobs_run_on_it() {
    let (edited, mut all) = written([("a", 0, Some(0)), ("b", 4000, Some(1))]);
    assert_eq!(indices(&plan(&edited, 18, &all)), [("a", 0), ("b", 1)]);
    all.get_mut("b").unwrap().busy = true;
    assert_eq!(indices(&plan(&edited, 18, &all)), [("a", 0), ("b", 1)], "its daemon has another");
    // maxMembers was lowered under them.
    let (lowered, mut all) = written([("a", 0, Some(0)), ("b", 5, Some(5))]);
    assert_eq!(indices(&plan(&lowered, 2, &all)), [("a", 0), ("b", 1)]);
    all.get_mut("b").unwrap().busy = true;
    assert_eq!(plan(&lowered, 2, &all), lowered);
    all.get_mut("b").unwrap().busy = false;
    assert_eq!(plan(&lowered, 1, &all), lowered, "nobody is thrown out");
}

#[test]
fn a_changed_address_keeps_its_index() {
    let one = first(18, &candidates(&["a"]));
    let mut moved = candidates(&["a"]);
    moved.get_mut("a").unwrap().addresses = vec!["10.9.9.9".into()];
    let two = plan(&one, 18, &moved);
    assert_eq!(two.members["a"], Member { index: 0, address: "10.9.9.9".into(), away: false });
    // Peers go on with the one that they know where the node has both.
    moved.get_mut("a").unwrap().addresses = vec!["10.7.7.7".into(), "10.9.9.9".into()];
    assert_eq!(plan(&two, 18, &moved), two);
    moved.get_mut("a").unwrap().addresses.clear();
    assert_eq!(plan(&two, 18, &moved), two, "what is not reported is as it was");
}

#[test]
fn a_full_domain_says_who_is_left_out() {
    let plan = first(2, &candidates(&["a", "b", "c"]));
    assert_eq!(indices(&plan), [("a", 0), ("b", 1)]);
    assert_eq!(refused(&plan), [("c", reason::DOMAIN_FULL)]);
}

/// What makes a node differ from the others, and the reason that it is told.
type Spoil = (fn(&mut Candidate), &'static str, &'static str);

const SPOILS: [Spoil; 3] = [
    (|odd| odd.channel_count = 1024, reason::MEMBER_MISMATCH, "has 1024 IMEX channels"),
    (|odd| odd.driver_version = "570.211.01".into(), reason::MEMBER_MISMATCH, "has NVIDIA driver 570.211.01"),
    (|odd| odd.addresses = vec!["fd00::7".into()], reason::NO_COMMON_FAMILY, "has no IPv4 address"),
];

#[test]
fn an_odd_newcomer_becomes_no_member_and_is_told_why() {
    for (spoil, expected, says) in SPOILS {
        let one = first(18, &candidates(&["a", "c"]));
        let mut all = candidates(&["a", "b", "c", "new"]);
        spoil(all.get_mut("b").unwrap());
        all.insert("new".into(), Candidate::default());
        let two = plan(&one, 18, &all);
        assert_eq!(indices(&two), [("a", 0), ("c", 1), ("new", 2)], "{says}");
        assert_eq!(refused(&two), [("b", expected)]);
        assert!(two.problems["b"].message.contains(says), "{}", two.problems["b"]);
        // All at once it is the same.
        assert_eq!(refused(&first(18, &all)), [("b", expected)]);
        assert!(!first(18, &all).members.contains_key("b"));
    }
}

#[test]
fn an_odd_member_stays_one_for_its_jobs_and_is_told() {
    for (spoil, expected, says) in SPOILS {
        let names = ["a", "b", "c"];
        let one = first(18, &candidates(&names));
        let mut all = candidates(&names);
        spoil(all.get_mut("b").unwrap());
        let two = plan(&one, 18, &all);
        assert_eq!((&two.members, refused(&two)), (&one.members, vec![("b", expected)]), "{says}");
        assert!(two.problems["b"].message.contains(says), "{}", two.problems["b"]);
        all.get_mut("b").unwrap().busy = true;
        assert_eq!(plan(&one, 18, &all).members, one.members);
    }
}

#[test]
fn a_newcomer_never_throws_out_whom_it_finds() {
    for (spoil, expected, _) in SPOILS {
        let mut found = candidates(&["a"]);
        found.get_mut("a").unwrap().busy = true;
        let one = first(18, &found);
        let mut all = candidates(&["a", "b", "c", "d"]);
        all.get_mut("a").unwrap().busy = true;
        ["b", "c", "d"].into_iter().for_each(|new| spoil(all.get_mut(new).unwrap()));
        let two = plan(&one, 18, &all);
        assert_eq!(
            (&two.members, refused(&two)),
            (&one.members, vec![("b", expected), ("c", expected), ("d", expected)])
        );
    }
}

#[test]
fn one_that_lists_a_channel_of_a_domain_that_was_lost_is_taken_back_whatever_it_has() {
    let mut all = candidates(&["a", "b", "c"]);
    let b = all.get_mut("b").unwrap();
    (b.busy, b.channel_count) = (true, 1024);
    let plan = first(18, &all);
    assert!(plan.members.contains_key("b"));
    assert_eq!(refused(&plan), [("a", reason::MEMBER_MISMATCH), ("c", reason::MEMBER_MISMATCH)]);
}

#[test]
fn within_a_branch_drivers_may_differ_and_the_rule_can_be_set() {
    let mut all = candidates(&["a", "b", "c"]);
    all.get_mut("b").unwrap().driver_version = "580.65.06".into();
    let odd = |drivers| refused(&membership("d", &BTreeMap::new(), 18, &all, drivers)).len();
    assert_eq!([DriverMatch::Branch, DriverMatch::Exact, DriverMatch::Off].map(odd), [0, 1, 0]);
}

#[test]
fn members_of_a_domain_of_one_family_get_addresses_of_it() {
    let mut all = candidates(&["a", "b", "c"]);
    for (node, addresses) in
        [("a", vec!["10.0.0.1", "fd00::1"]), ("b", vec!["fd00::2"]), ("c", vec!["10.0.0.3", "fd00::3"])]
    {
        all.get_mut(node).unwrap().addresses = addresses.into_iter().map(String::from).collect();
    }
    let plan = first(18, &all);
    let addresses: Vec<_> = plan.members.values().map(|member| member.address.as_str()).collect();
    assert_eq!((addresses, refused(&plan)), (vec!["fd00::1", "fd00::2", "fd00::3"], vec![]));
}

#[test]
fn a_clique_of_two_modes_is_no_domain() {
    let modes = |host: &[&str]| {
        let mut all = candidates(&["a", "b", "c"]);
        for (node, candidate) in &mut all {
            let of_host = host.contains(&node.as_str());
            candidate.imex_mode = Some(if of_host { ImexMode::HostManaged } else { ImexMode::DriverManaged });
        }
        all
    };
    assert_eq!(refused(&first(18, &modes(&[]))), []);
    assert_eq!(refused(&first(18, &modes(&["a", "b", "c"]))), []);
    let mixed = first(18, &modes(&["b"]));
    assert_eq!(refused(&mixed), [("b", reason::MEMBER_MISMATCH)]);
    assert_eq!(indices(&mixed), [("a", 0), ("c", 1)], "the others do not expect it");
    let words = &mixed.problems["b"].message;
    assert!(words.contains("on node b is host-managed, on the others of domain d it is driver-managed"), "{words}");
    // A clique that changes its mode node by node: who has changed is refused until most have.
    let all = first(18, &modes(&[]));
    assert_eq!(refused(&plan(&all, 18, &modes(&["a"]))), [("a", reason::MEMBER_MISMATCH)]);
    assert_eq!(refused(&plan(&all, 18, &modes(&["a", "b"]))), [("c", reason::MEMBER_MISMATCH)]);
    assert_eq!(plan(&all, 18, &modes(&["a"])).members.len(), 3, "nobody is thrown out");
}

#[test]
fn issue_433_hosts_with_another_node_map_are_refused() {
    let mut all = candidates(&["a", "b", "c"]);
    for (map, candidate) in [Some("x"), Some("y"), Some("x")].into_iter().zip(all.values_mut()) {
        candidate.imex_mode = Some(ImexMode::HostManaged);
        candidate.node_map = map.map(Into::into);
    }
    let plan = first(18, &all);
    assert_eq!(refused(&plan), [("b", reason::MEMBER_MISMATCH)]);
    assert!(plan.problems["b"].message.contains("IMEX_NODE_CONFIG_FILE"), "{}", plan.problems["b"]);
    all.get_mut("b").unwrap().node_map = None;
    assert_eq!(refused(&first(18, &all)), [], "as far as the files can be read");
}

#[test]
fn agents_that_authenticate_differently_are_told_so() {
    let mut all = candidates(&["a", "b", "c"]);
    all.values_mut().for_each(|candidate| candidate.peer_authentication = Some("domain-ca".into()));
    all.get_mut("c").unwrap().peer_authentication = Some("files".into());
    let plan = first(18, &all);
    assert_eq!(refused(&plan), [("c", reason::AUTHENTICATION_MISMATCH)]);
    assert!(
        plan.problems["c"].message.contains("by files, the others of domain d by domain-ca"),
        "{}",
        plan.problems["c"]
    );
}
