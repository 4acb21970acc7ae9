//! Known failures aicr 2546, 2547, 2715: another driver's CRD of the same name, which drops `isolationMode`.

use super::samples::*;
use super::*;
use crate::api::{ComputeDomainStatus, IsolationMode};
use crate::fault::{Fault, reason};
use crate::names;
use crate::schema;

const NOW: &str = "2026-01-01T00:00:00Z";

fn misfit() -> Option<Fault> {
    Some(schema::outdated(names::COMPUTE_DOMAIN_CRD, &["spec.isolationMode is missing".into()], &["helm".into()]))
}

/// As it is read while another's schema is served.
fn pruned(cd: &Cd) -> Cd {
    let mut cd = cd.clone();
    cd.origin.pruned = true;
    if let Ok(spec) = &mut cd.spec {
        spec.isolation_mode = IsolationMode::Channel;
    }
    cd
}

fn new(name: &str, mode: IsolationMode) -> Cd {
    Cd { finalizers: Vec::new(), ..sample_cd(name, mode) }
}

fn decided(view: &View, name: &str) -> Vec<Write> {
    compute_domain(view, &uid(name), NOW)
}

fn ready(writes: &[Write]) -> (&str, &str) {
    let [Write::Status { status: ComputeDomainStatus { conditions, .. }, .. }] = writes else { panic!("{writes:?}") };
    let ready = conditions.iter().find(|condition| condition.type_ == READY).unwrap();
    (&ready.reason, &ready.message)
}

/// `red`, exclusive and served, with a claim on `n1`, which is at home.
fn with_red() -> (View, Cd) {
    let mut view = View::default();
    let red = sample_cd("red", IsolationMode::Domain);
    view.put_template(wanted_template(&red, red.spec.as_ref().unwrap()));
    view.put_cd(red.clone());
    view.put_node("n1", NodeState::default());
    view.put_imex_node(new_node("n1"));
    view.put_claim(claim("red", "n1"));
    (view, red)
}

fn exclusive_domains(view: &View) -> usize {
    let plan = clique(view, &sample_clique().to_string());
    let exclusive = |write: &&Write| matches!(write, Write::CreateDomain(d) if d.spec.compute_domain.is_some());
    plan.writes.iter().filter(exclusive).count()
}

#[test]
fn a_new_one_is_not_served_until_the_crd_fits() {
    let mut view = View::default();
    view.put_crd("imexnodes.imex.heddle.dev", Some(schema::unread("imexnodes.imex.heddle.dev", "forbidden")));
    view.put_cd(new("green", IsolationMode::Channel));
    let writes = decided(&view, "green");
    let (why, message) = ready(&writes);
    assert_eq!(why, reason::CRD_OUTDATED);
    assert!(message.contains("imexnodes.imex.heddle.dev cannot be read"), "{message}");
    let [Write::Status { notes, .. }] = &writes[..] else { panic!() };
    assert!(notes.iter().any(|note| note.warning && note.reason == reason::CRD_OUTDATED), "{notes:?}");

    view.dirty = Dirty::default();
    view.put_crd("imexnodes.imex.heddle.dev", None);
    assert!(view.dirty.cds.contains(&uid("green")), "it is decided anew by itself");
    assert!(matches!(&decided(&view, "green")[..], [Write::Guard(_)]));
    view.dirty = Dirty::default();
    view.put_crd("imexnodes.imex.heddle.dev", None);
    assert!(view.dirty.is_empty(), "nothing new");
}

#[test]
fn one_that_was_made_meanwhile_is_marked_and_stays_so() {
    let mut view = View::default();
    view.put_crd(names::COMPUTE_DOMAIN_CRD, misfit());
    let green = pruned(&new("green", IsolationMode::Domain));
    view.put_cd(green.clone());
    assert!(matches!(&decided(&view, "green")[..], [Write::Mark(_)]));
    // Its manifest says what it asked for: then there is no doubt, and nothing to mark.
    let mut told = green.clone();
    told.origin.wished = Some("Channel".into());
    view.put_cd(told);
    assert_eq!(ready(&decided(&view, "green")).0, reason::CRD_OUTDATED);

    let mut marked = green;
    marked.origin.marked = true;
    view.put_cd(marked.clone());
    let writes = decided(&view, "green");
    let (why, message) = ready(&writes);
    assert_eq!(why, reason::FIELDS_DROPPED);
    assert!(message.contains("delete it and create it anew"), "{message}");
    assert!(message.contains("-n team green imex.heddle.dev/made-under-foreign-crd-"), "{message}");
    view.put_crd(names::COMPUTE_DOMAIN_CRD, None);
    marked.origin.pruned = false;
    view.put_cd(marked.clone());
    assert_eq!(ready(&decided(&view, "green")).0, reason::FIELDS_DROPPED, "also once the schema is ours again");
    // Its owner says that it asked for nothing.
    marked.origin.marked = false;
    view.put_cd(marked);
    assert!(matches!(&decided(&view, "green")[..], [Write::Guard(_)]));
}

#[test]
fn a_copy_that_comes_before_the_news_of_the_crd_is_seen_for_what_it_is() {
    let mut view = View::default();
    let mut green = pruned(&new("green", IsolationMode::Domain));
    view.put_cd(green.clone());
    assert!(matches!(&decided(&view, "green")[..], [Write::Mark(_)]));
    green.finalizers = vec![names::FINALIZER.into()];
    view.put_cd(green);
    assert_eq!(
        ready(&decided(&view, "green")).0,
        reason::CRD_OUTDATED,
        "accepted before, and still without a template"
    );
}

#[test]
fn those_that_are_served_go_on_as_they_were() {
    let (mut view, red) = with_red();
    assert_eq!(exclusive_domains(&view), 1);
    view.put_crd(names::COMPUTE_DOMAIN_CRD, misfit());
    view.put_cd(pruned(&red));
    let touches = |writes: Vec<Write>| writes.iter().any(|write| !matches!(write, Write::Status { .. }));
    assert!(!touches(decided(&view, "red")), "its template stays");
    assert!(view.cd(&uid("red")).unwrap().exclusive(), "what was read before is remembered");
    assert_eq!(exclusive_domains(&view), 1, "and its nodes still become its own");

    // A controller that starts now has read nothing before: the template tells.
    let (mut anew, _) = with_red();
    anew.drop_cd(&uid("red"));
    anew.put_crd(names::COMPUTE_DOMAIN_CRD, misfit());
    anew.put_cd(pruned(&red));
    assert!(!anew.cd(&uid("red")).unwrap().exclusive() && anew.exclusive(anew.cd(&uid("red")).unwrap()));
    assert!(!touches(decided(&anew, "red")), "its template stays");
    assert_eq!(exclusive_domains(&anew), 1);

    // Deleted it goes.
    anew.put_cd(Cd { deleting: true, ..pruned(&red) });
    assert!(matches!(decided(&anew, "red")[0], Write::ReleaseTemplate { .. }));
}

#[test]
fn no_node_moves_for_one_that_is_not_served() {
    let (mut view, red) = with_red();
    view.drop_template(&("team".into(), "red-channel".into()));
    assert_eq!(exclusive_domains(&view), 1);
    view.put_crd(names::COMPUTE_DOMAIN_CRD, misfit());
    view.put_cd(Cd { finalizers: Vec::new(), ..red });
    assert_eq!(exclusive_domains(&view), 0);
}

#[test]
fn one_whose_mode_was_lost_for_good_goes_on_as_it_was_served() {
    let (mut view, red) = with_red();
    // Its object was written while another's schema was served, and ours gives it the default.
    let mut lost = red.clone();
    lost.spec.as_mut().unwrap().isolation_mode = IsolationMode::Channel;
    view.drop_cd(&uid("red"));
    view.put_cd(lost);
    let writes = decided(&view, "red");
    let [Write::Status { status, .. }] = &writes[..] else { panic!("its template stays: {writes:?}") };
    let degraded = status.conditions.iter().find(|condition| condition.type_ == DEGRADED).unwrap();
    assert_eq!((degraded.status.as_str(), degraded.reason.as_str()), ("True", reason::FIELDS_DROPPED));
    assert_eq!(exclusive_domains(&view), 1);
}

#[test]
fn nothing_is_written_of_one_that_would_lose_its_mode_by_it() {
    let (mut view, red) = with_red();
    view.put_crd(names::COMPUTE_DOMAIN_CRD, misfit());
    view.put_cd(pruned(&red));
    assert_eq!(decided(&view, "red"), []);
    view.put_crd(names::COMPUTE_DOMAIN_CRD, None);
    assert!(matches!(&decided(&view, "red")[..], [Write::Status { .. }]));
}
