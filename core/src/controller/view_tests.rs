use super::samples::*;
use super::*;
use crate::api::IsolationMode;
use crate::imex::shared_domain_name;
use crate::protocol::samples::{shared, with_channel};

fn taken(view: &mut View) -> Dirty {
    std::mem::take(&mut view.dirty)
}

fn set<const N: usize>(names: [&str; N]) -> std::collections::BTreeSet<String> {
    names.map(String::from).into()
}

#[test]
fn an_object_never_goes_back() {
    let mut view = View::default();
    let mut new = new_node("n1");
    new.metadata.uid = Some("a".into());
    new.metadata.resource_version = Some("12".into());
    let mut old = new.clone();
    old.metadata.resource_version = Some("9".into());
    old.status = None;
    view.put_imex_node(new.clone());
    view.put_imex_node(old.clone());
    assert_eq!(view.imex_node("n1"), Some(&new), "an old copy of it");
    old.metadata.uid = Some("b".into());
    view.put_imex_node(old.clone());
    assert_eq!(view.imex_node("n1"), Some(&old), "another of its name");
    assert_eq!(view.nodes_of_clique(&sample_clique().to_string()).len(), 0);
}

#[test]
fn a_node_that_nobody_could_ever_read_is_forgotten_when_it_is_gone() {
    let mut view = View::default();
    view.set_unreadable(Kind::ImexNode, "n1", true);
    assert_eq!((view.keys(Kind::ImexNode), view.imex_node("n1")), (set(["n1"]), None), "a list without it drops it");
    view.drop(Kind::ImexNode, "n1");
    assert!(view.unreadable_nodes().is_empty() && view.keys(Kind::ImexNode).is_empty());
    view.set_unreadable(Kind::Domain, "d", true);
    assert!(view.is_unknown_domain("d"));
    assert_eq!(view.keys(Kind::Domain), set(["d"]));
    view.drop(Kind::Domain, "d");
    assert!(!view.is_unknown_domain("d") && view.keys(Kind::Domain).is_empty());
    // Of other kinds what was known of an object before is all there is to know.
    view.set_unreadable(Kind::Claim, "c", true);
    assert!(view.keys(Kind::Claim).is_empty());
}

#[test]
fn the_copy_that_is_known_asks_for_nothing() {
    let mut view = View::default();
    let version = || Some("12".to_owned());
    let green = Cd { resource_version: version(), ..sample_cd("green", IsolationMode::Channel) };
    let mut template = wanted_template(&green, green.spec.as_ref().unwrap());
    let (mut node, mut domain) = (new_node("n1"), shared(&shared_domain_name(&sample_clique())));
    template.metadata.resource_version = version();
    node.metadata.resource_version = version();
    domain.metadata.resource_version = version();
    let put = |view: &mut View| {
        view.put_cd(green.clone());
        view.put_template(template.clone());
        view.put_imex_node(node.clone());
        view.put_domain(domain.clone());
        taken(view)
    };
    assert!(!put(&mut view).is_empty());
    assert!(put(&mut view).is_empty());
    // Read through another's CRD the same version says something else.
    view.put_cd(Cd { spec: Err("it has no spec".into()), ..green.clone() });
    assert!(taken(&mut view).cds.contains(green.uid()));
}

#[test]
fn a_change_concerns_what_it_touches() {
    let mut view = View::default();
    let clique = sample_clique().to_string();
    for node in ["n1", "n2"] {
        view.put_node(node, NodeState::default());
        view.put_imex_node(new_node(node));
    }
    let mut domain = with_channel(shared(&shared_domain_name(&sample_clique())), &uid("green"), 1);
    domain.spec.clique = clique.clone();
    view.put_domain(domain);
    let green = sample_cd("green", IsolationMode::Channel);
    view.put_cd(green.clone());
    view.put_cd(sample_cd("red", IsolationMode::Domain));
    taken(&mut view);

    view.put_claim(claim("green", "n1"));
    assert_eq!(taken(&mut view), Dirty { cds: set([&uid("green")]), ..Default::default() });
    view.put_claim(claim("green", "n1"));
    assert!(taken(&mut view).is_empty(), "nothing new");
    view.put_claim(claim("red", "n2"));
    assert_eq!(taken(&mut view), Dirty { cds: set([&uid("red")]), cliques: set([&clique]), ..Default::default() });
    view.put_cd(Cd { status: Some(Default::default()), ..green.clone() });
    assert_eq!(taken(&mut view), Dirty { cds: set([&uid("green")]), ..Default::default() });
    view.put_cd(Cd { deleting: true, ..green });
    assert_eq!(taken(&mut view), Dirty { cds: set([&uid("green")]), cliques: set([&clique]), ..Default::default() });
    view.put_imex_node(new_node("n2"));
    let dirty = Dirty { cds: set([&uid("red")]), cliques: set([&clique]), nodes: set(["n2"]) };
    assert_eq!(taken(&mut view), dirty);
    view.put_node("n2", NodeState::default());
    assert!(taken(&mut view).is_empty(), "a heartbeat");
}

#[test]
fn who_waits_for_a_template_hears_of_it() {
    let mut view = View::default();
    let green = sample_cd("green", IsolationMode::Channel);
    let mut second = sample_cd("second", IsolationMode::Channel);
    second.spec = green.spec.clone();
    view.put_cd(green.clone());
    view.put_cd(second.clone());
    view.put_template(wanted_template(&green, green.spec.as_ref().unwrap()));
    taken(&mut view);
    view.put_cd(Cd { deleting: true, ..green });
    assert!(taken(&mut view).cds.contains(second.uid()));
    view.drop_template(&("team".into(), "green-channel".into()));
    assert!(taken(&mut view).cds.contains(second.uid()));
}

#[test]
fn what_is_dropped_leaves_no_trace_in_the_relations() {
    let mut view = View::default();
    let clique = sample_clique().to_string();
    view.put_node("n1", NodeState { lost: true });
    view.put_imex_node(new_node("n1"));
    view.put_claim(claim("green", "n1"));
    view.put_cd(sample_cd("green", IsolationMode::Channel));
    assert_eq!(view.cds_on("n1").len(), 1);
    for kind in Kind::ALL {
        view.keys(kind).iter().for_each(|key| view.drop(kind, key));
    }
    assert!(view.lost("n1") && view.cds_on("n1").is_empty() && view.nodes_of_clique(&clique).is_empty());
    taken(&mut view);
    view.touch_all();
    assert!(taken(&mut view).is_empty());
}

#[test]
fn a_label_counts_in_its_own_namespace_only() {
    let mut view = View::default();
    let red = sample_cd("red", IsolationMode::Domain);
    view.put_cd(red.clone());
    let mut forged = claim("red", "n1");
    forged.key.namespace = "other".into();
    view.put_claim(forged);
    assert_eq!((view.claims(&red).count(), view.cds_on("n1").len()), (0, 0));
}
