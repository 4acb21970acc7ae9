use std::collections::BTreeMap;

use super::*;
use crate::api::{IMEXDomain, IMEXDomainSpec, IMEXNode, IMEXNodeSpec, Member};
use crate::fault::{Class, Fault, reason};

const WEEK: u32 = 7 * 24 * 3600;

fn agents() -> Agents {
    Agents { namespace: "heddle".into(), service_account: "heddle-agent".into() }
}

fn extra(nodes: &[&str]) -> BTreeMap<String, Vec<String>> {
    let nodes = nodes.iter().map(ToString::to_string).collect();
    let pod = vec!["heddle-agent-x7k2p".to_owned()];
    BTreeMap::from([
        ("authentication.kubernetes.io/node-name".into(), nodes),
        ("authentication.kubernetes.io/pod-name".into(), pod),
    ])
}

fn asked() -> Asked {
    Asked {
        common_names: vec!["d.peer.imex.heddle.dev".into()],
        dns_names: vec!["d.peer.imex.heddle.dev".into()],
        key: P256.into(),
        signed: true,
        ..Asked::default()
    }
}

fn request() -> Request {
    Request {
        name: request_name("n1", 7),
        username: "system:serviceaccount:heddle:heddle-agent".into(),
        extra: extra(&["n1"]),
        usages: vec!["digital signature".into(), "server auth".into(), "client auth".into()],
        expiration_seconds: Some(3600),
        asked: Ok(asked()),
    }
}

fn domain(name: &str, members: &[&str]) -> IMEXDomain {
    let members = members.iter().map(|node| (node.to_string(), Member::default())).collect();
    IMEXDomain::new(name, IMEXDomainSpec { clique: "c.1".into(), members, ..Default::default() })
}

fn node(name: &str, domain: Option<&str>, next: Option<&str>) -> IMEXNode {
    let named = |name: Option<&str>| name.map(ToString::to_string);
    IMEXNode::new(name, IMEXNodeSpec { domain: named(domain), next: named(next), ..Default::default() })
}

fn refused(result: Result<impl std::fmt::Debug, Fault>, why: &'static str) -> String {
    let fault = result.unwrap_err();
    assert_eq!((fault.class, fault.reason), (Class::Permanent, why), "{fault}");
    assert!(fault.message.len() < 600, "{fault}");
    fault.message
}

#[test]
fn what_the_agent_makes_is_signed() {
    let verdict = fits(&request(), &agents(), WEEK).unwrap();
    assert_eq!(verdict, Verdict { node: "n1".into(), domain: "d".into(), seconds: 3600 });
    member(&verdict, None, Some(&domain("d", &["n1"]))).unwrap();
}

#[test]
fn the_life_is_asked_for_and_bounded() {
    for (asked, gets) in [(None, WEEK), (Some(1), 600), (Some(-5), WEEK), (Some(3600), 3600), (Some(i32::MAX), WEEK)] {
        let request = Request { expiration_seconds: asked, ..request() };
        assert_eq!(fits(&request, &agents(), WEEK).unwrap().seconds, gets, "{asked:?}");
    }
}

#[test]
fn who_is_no_agent_of_a_node_gets_nothing() {
    for (attack, says) in [
        (Request { username: "system:admin".into(), ..request() }, "system:admin"),
        (Request { username: "system:serviceaccount:heddle:heddle-controller".into(), ..request() }, "controller"),
        (Request { username: "system:serviceaccount:team:heddle-agent".into(), ..request() }, "team"),
        (Request { username: String::new(), ..request() }, "not the agents'"),
        (Request { username: "x".repeat(100_000), ..request() }, "not the agents'"),
        (Request { extra: BTreeMap::new(), ..request() }, "not bound to a node"),
        (Request { extra: extra(&[]), ..request() }, "not bound to a node"),
        (Request { extra: extra(&[""]), ..request() }, "not bound to a node"),
        (Request { extra: extra(&["n1", "n2"]), ..request() }, "not bound to a node"),
    ] {
        let why = refused(fits(&attack, &agents(), WEEK), reason::NOT_AN_AGENT);
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn what_asks_for_anything_more_gets_nothing() {
    let with = |change: fn(&mut Asked)| {
        let mut asked = asked();
        change(&mut asked);
        Request { asked: Ok(asked), ..request() }
    };
    for (attack, says) in [
        (Request { name: request_name("n2", 7), ..request() }, "of node n1"),
        (Request { extra: extra(&["n2"]), ..request() }, "of node n2"),
        (Request { asked: Err("no PEM".into()), ..request() }, "no PEM"),
        (Request { usages: vec!["server auth".into(), "client auth".into()], ..request() }, "usages"),
        (Request { usages: [request().usages, vec!["cert sign".into()]].concat(), ..request() }, "cert sign"),
        (Request { usages: vec!["server auth".into(); 3], ..request() }, "usages"),
        (with(|asked| asked.dns_names.push("e.peer.imex.heddle.dev".into())), "e.peer"),
        (with(|asked| asked.dns_names.clear()), "one DNS name"),
        (with(|asked| asked.dns_names = vec!["kubernetes.default".into()]), "kubernetes.default"),
        (with(|asked| asked.dns_names = vec!["*.peer.imex.heddle.dev".into()]), "one DNS name"),
        (with(|asked| asked.common_names = vec!["e.peer.imex.heddle.dev".into()]), "subject"),
        (with(|asked| asked.common_names.push("root".into())), "subject"),
        (with(|asked| asked.other_subject = vec!["O=system:masters".into()]), "subject"),
        (with(|asked| asked.other_names = vec!["IP 10.0.0.1".into()]), "10.0.0.1"),
        (with(|asked| asked.others = vec!["basicConstraints CA:TRUE".into()]), "CA:TRUE"),
        (with(|asked| asked.key = "RSA".into()), "RSA"),
        (with(|asked| asked.key = "EC P-384".into()), "P-384"),
        (with(|asked| asked.signed = false), "own key"),
    ] {
        let why = refused(fits(&attack, &agents(), WEEK), reason::REQUEST_NOT_EXACT);
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn only_members_of_the_domain_get_its_identity() {
    let verdict = fits(&request(), &agents(), WEEK).unwrap();
    let stranger = domain("d", &["n2"]);
    for (node, domain) in [
        (None, None),
        (None, Some(&stranger)),
        (Some(node("n1", Some("e"), None)), Some(&stranger)),
        (Some(node("n2", Some("d"), None)), Some(&stranger)),
        (Some(node("n1", Some("d"), None)), None),
    ] {
        let why = refused(member(&verdict, node.as_ref(), domain), reason::NOT_A_MEMBER);
        assert!(why.contains('d'), "{why}");
    }
    let another = domain("e", &["n1"]);
    refused(member(&verdict, None, Some(&another)), reason::NOT_A_MEMBER);
    for assigned in [node("n1", Some("d"), None), node("n1", Some("e"), Some("d"))] {
        member(&verdict, Some(&assigned), Some(&stranger)).unwrap();
    }
    let away = Member { away: true, ..Default::default() };
    let mut kept = domain("d", &["n1"]);
    kept.spec.members.insert("n1".into(), away);
    member(&verdict, None, Some(&kept)).unwrap();
}
