//! What must never be otherwise. Model, tests, demo and production ask the same predicates.

mod lasting;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::api::{DomainKind, IMEXDomain, IMEXNode};
use crate::claim::Prepared;

pub use lasting::Lasting;
pub use node::{DaemonWatch, Life, of_node};

/// One instant of a cluster, or of the part of it that a caller knows.
///
/// The objects must be of one instant, and `prepared` not older than them: a claim is prepared after its node has
/// entered and undone before it leaves.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The IMEXDomains by name.
    pub domains: BTreeMap<String, IMEXDomain>,
    /// The IMEXNodes by name.
    pub nodes: BTreeMap<String, IMEXNode>,
    /// The claims prepared on each node.
    pub prepared: BTreeMap<String, Vec<Prepared>>,
    /// The daemon of each node.
    pub daemons: BTreeMap<String, RunningDaemon>,
}

/// The IMEX daemon of a node as it really is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunningDaemon {
    /// The IMEX domain that it serves; `None` while none runs.
    pub domain: Option<String>,
    /// How often we stopped it while a claim was prepared on the node.
    pub stopped_under_claims: u32,
}

/// One thing that is as it must never be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Violation {
    /// `S1` … `S4`.
    pub invariant: &'static str,
    /// Which objects, and what is wrong with them.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

/// The violations of each invariant; all empty is well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub struct Report {
    /// [`one_number_one_compute_domain`].
    pub s1: Vec<Violation>,
    /// [`claims_belong_to_the_served_domain`].
    pub s2: Vec<Violation>,
    /// [`used_numbers_are_held`].
    pub s3: Vec<Violation>,
    /// [`no_daemon_stops_under_a_claim`].
    pub s4: Vec<Violation>,
}

impl Report {
    /// Checks all four.
    pub fn of(world: &World) -> Self {
        Self {
            s1: one_number_one_compute_domain(world),
            s2: claims_belong_to_the_served_domain(world),
            s3: used_numbers_are_held(world),
            s4: no_daemon_stops_under_a_claim(world),
        }
    }

    /// Whether all is well.
    pub fn holds(&self) -> bool {
        self.all().next().is_none()
    }

    /// Every violation.
    pub fn all(&self) -> impl Iterator<Item = &Violation> {
        self.s1.iter().chain(&self.s2).chain(&self.s3).chain(&self.s4)
    }
}

/// Somebody's belief that a ComputeDomain has a number in a domain.
struct Holding<'a> {
    domain: &'a str,
    cd_uid: &'a str,
    channel: u32,
    by: String,
}

impl World {
    fn mapped(&self) -> impl Iterator<Item = Holding<'_>> {
        self.domains.iter().flat_map(|(name, domain)| {
            domain.status.iter().flat_map(|status| &status.channels).map(move |(uid, entry)| Holding {
                domain: name,
                cd_uid: uid,
                channel: entry.channel,
                by: format!("IMEXDomain {name}"),
            })
        })
    }

    fn entered(&self) -> impl Iterator<Item = Holding<'_>> {
        self.nodes.iter().flat_map(|(node, object)| {
            object.status.iter().flat_map(|status| &status.channels).map(move |(uid, entry)| Holding {
                domain: &entry.domain,
                cd_uid: uid,
                channel: entry.channel,
                by: format!("IMEXNode {node}"),
            })
        })
    }

    fn claimed(&self) -> impl Iterator<Item = (&str, Holding<'_>)> {
        self.prepared.iter().flat_map(|(node, claims)| {
            claims.iter().map(move |claim| {
                let by = format!("claim {} on node {node}", claim.claim_uid);
                let holding = Holding { domain: &claim.domain, cd_uid: &claim.cd_uid, channel: claim.channel, by };
                (node.as_str(), holding)
            })
        })
    }
}

/// **S1** In one IMEX domain two ComputeDomains never hold the same number, and a ComputeDomain holds one number.
pub fn one_number_one_compute_domain(world: &World) -> Vec<Violation> {
    let mut by_number: BTreeMap<(&str, u32), BTreeMap<&str, String>> = BTreeMap::new();
    let mut by_cd: BTreeMap<(&str, &str), BTreeMap<u32, String>> = BTreeMap::new();
    let mut zero = Vec::new();
    for holding in world.mapped().chain(world.entered()).chain(world.claimed().map(|(_, holding)| holding)) {
        if holding.channel == 0 {
            zero.push(violation("S1", format!("{} gives channel 0 to ComputeDomain {}", holding.by, holding.cd_uid)));
        }
        let holders = by_number.entry((holding.domain, holding.channel)).or_default();
        holders.entry(holding.cd_uid).or_insert_with(|| holding.by.clone());
        by_cd.entry((holding.domain, holding.cd_uid)).or_default().entry(holding.channel).or_insert(holding.by);
    }
    let shared_number =
        by_number.into_iter().filter(|(_, holders)| holders.len() > 1).map(|((domain, channel), who)| {
            let who: Vec<_> = who.into_iter().map(|(uid, by)| format!("ComputeDomain {uid} ({by})")).collect();
            violation("S1", format!("channel {channel} of domain {domain} is held by {}", who.join(" and ")))
        });
    let many_numbers = by_cd.into_iter().filter(|(_, numbers)| numbers.len() > 1).map(|((domain, uid), numbers)| {
        let numbers: Vec<_> = numbers.into_iter().map(|(channel, by)| format!("{channel} ({by})")).collect();
        violation("S1", format!("ComputeDomain {uid} has in domain {domain} the channels {}", numbers.join(" and ")))
    });
    zero.into_iter().chain(shared_number).chain(many_numbers).collect()
}

/// **S2** All claims prepared on a node belong to the domain that its daemon serves; an exclusive domain has one
/// ComputeDomain. A daemon that has crashed serves none and is no violation.
pub fn claims_belong_to_the_served_domain(world: &World) -> Vec<Violation> {
    let elsewhere = world.claimed().filter_map(|(node, claim)| {
        let served = world.daemons.get(node)?.domain.as_deref()?;
        (served != claim.domain).then(|| {
            violation("S2", format!("{} is of domain {}, the daemon there serves {served}", claim.by, claim.domain))
        })
    });
    let torn = world.nodes.iter().filter_map(|(node, object)| {
        let domains: BTreeSet<&str> =
            object.status.as_ref()?.channels.values().map(|entry| entry.domain.as_str()).collect();
        (domains.len() > 1).then(|| {
            let domains: Vec<_> = domains.into_iter().collect();
            violation("S2", format!("node {node} has entered channels of the domains {}", domains.join(" and ")))
        })
    });
    let intruders = world.mapped().chain(world.entered()).chain(world.claimed().map(|(_, holding)| holding));
    let intruders = intruders.filter_map(|holding| {
        let spec = &world.domains.get(holding.domain)?.spec;
        let owner = spec.compute_domain.as_ref().map(|owner| owner.uid.as_str());
        (spec.kind == DomainKind::Exclusive && owner != Some(holding.cd_uid)).then(|| {
            let owner = owner.unwrap_or("nobody");
            let text = format!("{} has ComputeDomain {}", holding.by, holding.cd_uid);
            violation("S2", format!("{text} in domain {}, which is {owner}'s alone", holding.domain))
        })
    });
    elsewhere.chain(torn).chain(intruders).collect()
}

/// **S3** A number is freed only when no node uses it or can still begin to: what a node has entered is in the
/// domain's map, and what a claim uses its node has entered.
pub fn used_numbers_are_held(world: &World) -> Vec<Violation> {
    let unmapped = world.entered().filter_map(|holding| {
        let map = world.domains.get(holding.domain).and_then(|domain| domain.status.as_ref());
        let held = map.and_then(|status| status.channels.get(holding.cd_uid)).map(|entry| entry.channel);
        let says = match held {
            Some(channel) if channel == holding.channel => return None,
            Some(channel) => format!("says {channel}"),
            None => "has freed it".into(),
        };
        let text = format!("{} uses channel {} for ComputeDomain {}", holding.by, holding.channel, holding.cd_uid);
        Some(violation("S3", format!("{text}, domain {} {says}", holding.domain)))
    });
    let unentered = world.claimed().filter_map(|(node, claim)| {
        let status = world.nodes.get(node).and_then(|object| object.status.as_ref());
        let entered = status.and_then(|status| status.channels.get(claim.cd_uid));
        let same = entered.is_some_and(|entry| entry.channel == claim.channel && entry.domain == claim.domain);
        (!same).then(|| {
            let text = format!("{} uses channel {} of domain {}", claim.by, claim.channel, claim.domain);
            violation("S3", format!("{text}, which the node has not entered for ComputeDomain {}", claim.cd_uid))
        })
    });
    unmapped.chain(unentered).collect()
}

/// **S4** No prepared claim ever sees a daemon stop caused by us.
pub fn no_daemon_stops_under_a_claim(world: &World) -> Vec<Violation> {
    let stopped = world.daemons.iter().filter(|(_, daemon)| daemon.stopped_under_claims > 0);
    stopped
        .map(|(node, daemon)| {
            let times = daemon.stopped_under_claims;
            violation("S4", format!("the daemon of node {node} was stopped {times} times under prepared claims"))
        })
        .collect()
}

fn violation(invariant: &'static str, what: String) -> Violation {
    Violation { invariant, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::samples::*;

    fn world(domains: Vec<IMEXDomain>, nodes: Vec<IMEXNode>) -> World {
        World {
            domains: domains.into_iter().map(|d| (d.metadata.name.clone().unwrap(), d)).collect(),
            nodes: nodes.into_iter().map(|n| (n.metadata.name.clone().unwrap(), n)).collect(),
            ..Default::default()
        }
    }

    fn claim(cd_uid: &str, channel: u32, domain: &str) -> Prepared {
        Prepared { claim_uid: "c".into(), cd_uid: cd_uid.into(), channel, domain: domain.into() }
    }

    fn counts(world: &World) -> [usize; 4] {
        let report = Report::of(world);
        [report.s1.len(), report.s2.len(), report.s3.len(), report.s4.len()]
    }

    #[test]
    fn a_cluster_at_work_is_well() {
        let domain = with_channel(with_channel(shared("d"), "green", 1), "blue", 2);
        let mut world = world(vec![domain], vec![listing("d", "green", 1), member_of("n2", "d")]);
        world.prepared.insert("n1".into(), vec![claim("green", 1, "d")]);
        world.daemons.insert("n1".into(), RunningDaemon { domain: Some("d".into()), stopped_under_claims: 0 });
        assert!(Report::of(&world).holds(), "{:?}", Report::of(&world));
        let json = serde_json::to_value(Report::of(&world)).unwrap();
        assert_eq!(json, serde_json::json!({"S1": [], "S2": [], "S3": [], "S4": []}));
    }

    #[test]
    fn s1_sees_two_on_one_number_and_one_on_two() {
        let twice = with_channel(with_channel(shared("d"), "green", 1), "blue", 1);
        assert_eq!(counts(&world(vec![twice], vec![])), [1, 0, 0, 0]);
        let moved = with_channel(with_channel(shared("d"), "green", 2), "blue", 1);
        let report = Report::of(&world(vec![moved], vec![listing("d", "green", 1)]));
        assert_eq!((report.s1.len(), report.s3.len()), (2, 1), "{report:?}");
        assert_eq!(counts(&world(vec![with_channel(shared("d"), "green", 0)], vec![])), [1, 0, 0, 0]);
    }

    #[test]
    fn s2_sees_claims_beside_the_daemon_and_guests_in_an_exclusive_domain() {
        let domain = with_channel(exclusive("x", "red"), "red", 1);
        let mut world = world(vec![domain], vec![listing("x", "red", 1)]);
        world.prepared.insert("n1".into(), vec![claim("red", 1, "x")]);
        world.daemons.insert("n1".into(), RunningDaemon::default());
        assert_eq!(counts(&world), [0, 0, 0, 0]);
        world.daemons.get_mut("n1").unwrap().domain = Some("d".into());
        assert_eq!(counts(&world), [0, 1, 0, 0]);
        world.daemons.clear();
        let guest = with_channel(world.domains["x"].clone(), "green", 2);
        world.domains.insert("x".into(), guest);
        assert_eq!(counts(&world), [0, 1, 0, 0]);
    }

    #[test]
    fn s3_sees_a_number_freed_under_a_node_or_a_claim() {
        assert_eq!(counts(&world(vec![shared("d")], vec![listing("d", "green", 1)])), [0, 0, 1, 0]);
        assert_eq!(counts(&world(vec![], vec![listing("d", "green", 1)])), [0, 0, 1, 0]);
        let mut world = world(vec![with_channel(shared("d"), "green", 1)], vec![member_of("n1", "d")]);
        world.prepared.insert("n1".into(), vec![claim("green", 1, "d")]);
        assert_eq!(counts(&world), [0, 0, 1, 0]);
    }

    #[test]
    fn s4_sees_a_stop_of_ours() {
        let mut world = World::default();
        world.daemons.insert("n1".into(), RunningDaemon { domain: None, stopped_under_claims: 1 });
        assert_eq!(counts(&world), [0, 0, 0, 1]);
    }
}
