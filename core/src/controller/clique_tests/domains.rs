//! The IMEXDomain itself: lost, deleted, kept by others, not to be read.

use super::*;

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
