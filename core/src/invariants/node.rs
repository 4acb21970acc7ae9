use std::collections::{BTreeMap, BTreeSet};

use super::{Report, RunningDaemon, World};
use crate::api::{IMEXDomain, IMEXNode};
use crate::claim::Prepared;
use crate::protocol::name;

/// What an agent can tell of its own node: by its object, the domain that it serves, its claims, and its daemon.
///
/// Of a domain that the agent does not have, nothing is held against the node.
pub fn of_node(
    node: &IMEXNode,
    domain: Option<&IMEXDomain>,
    prepared: &[Prepared],
    daemon: Option<&RunningDaemon>,
) -> Report {
    let node_name = name(node).to_owned();
    let world = |node: IMEXNode, prepared: Vec<Prepared>| World {
        domains: domain.map(|domain| (name(domain).to_owned(), domain.clone())).into_iter().collect(),
        nodes: BTreeMap::from([(node_name.clone(), node)]),
        prepared: BTreeMap::from([(node_name.clone(), prepared)]),
        daemons: daemon.map(|daemon| (node_name.clone(), daemon.clone())).into_iter().collect(),
    };
    let whole = Report::of(&world(node.clone(), prepared.to_vec()));
    let known = |of: &str| domain.is_some_and(|domain| name(domain) == of);
    let mut part = node.clone();
    if let Some(status) = &mut part.status {
        status.channels.retain(|_, entry| known(&entry.domain));
    }
    let of_domain = prepared.iter().filter(|claim| known(&claim.domain)).cloned().collect();
    let part = Report::of(&world(part, of_domain));
    Report { s2: whole.s2, s4: whole.s4, ..part }
}

/// The daemon of a node by one word of its runner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Counts the runners that there were.
    pub runner: u32,
    /// The daemon's process, 0 while none runs.
    pub pid: u32,
    /// How often this runner has ended one.
    pub ended: u32,
}

/// Follows the daemon of a node and the claims that rest on it.
#[derive(Clone, Debug, Default)]
pub struct DaemonWatch {
    last: Option<Life>,
    /// The claims that were prepared when that was said.
    under: BTreeSet<String>,
    stopped: u32,
}

impl DaemonWatch {
    /// The runner's word. A daemon that has crashed was not ended by us; one that went with its runner was.
    pub fn see(&mut self, now: Life, prepared: &[Prepared]) {
        let claims: BTreeSet<_> = prepared.iter().map(|claim| claim.claim_uid.clone()).collect();
        let Some(before) = self.last else {
            (self.last, self.under) = (Some(now), claims);
            return;
        };
        let other = now.runner != before.runner;
        // A runner that has just started may not have found the daemon that runs yet.
        if other && now.pid == 0 {
            return;
        }
        let ended = match other {
            true => before.pid != 0 && now.pid != before.pid,
            false => now.ended > before.ended,
        };
        if ended && !claims.is_disjoint(&self.under) {
            self.stopped += 1;
        }
        (self.last, self.under) = (Some(now), claims);
    }

    /// How often we stopped it under a prepared claim.
    pub fn stopped_under_claims(&self) -> u32 {
        self.stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::samples::*;

    fn claim(uid: &str) -> Prepared {
        Prepared { claim_uid: uid.into(), cd_uid: "green".into(), channel: 1, domain: "d".into() }
    }

    #[test]
    fn a_node_is_judged_by_the_domain_that_it_has() {
        let (node, domain) = (listing("d", "green", 1), with_channel(shared("d"), "green", 1));
        let serves = |domain: &str| RunningDaemon { domain: Some(domain.into()), stopped_under_claims: 0 };
        let claims = [claim("c")];
        assert!(of_node(&node, Some(&domain), &claims, Some(&serves("d"))).holds());
        assert!(of_node(&node, None, &claims, None).holds(), "nothing is known of the map");
        assert_eq!(of_node(&node, Some(&shared("d")), &claims, None).s3.len(), 1, "freed under it");
        assert_eq!(of_node(&node, None, &claims, Some(&serves("e"))).s2.len(), 1);
        let unlisted = of_node(&member_of("n1", "d"), Some(&domain), &claims, None);
        assert_eq!(unlisted.s3.len(), 1, "a claim uses what the node has not entered");
        let stopped = RunningDaemon { stopped_under_claims: 1, ..serves("d") };
        assert_eq!(of_node(&node, Some(&domain), &claims, Some(&stopped)).s4.len(), 1);
    }

    fn after(words: &[(Life, &[&str])]) -> u32 {
        let mut watch = DaemonWatch::default();
        for (life, claims) in words {
            let claims: Vec<_> = claims.iter().map(|uid| claim(uid)).collect();
            watch.see(*life, &claims);
        }
        watch.stopped_under_claims()
    }

    #[test]
    fn only_a_stop_of_ours_under_a_claim_counts() {
        let life = |runner, pid, ended| Life { runner, pid, ended };
        for (words, stopped) in [
            (&[(life(1, 7, 0), &["a"][..]), (life(1, 0, 1), &["a"])][..], 1),
            (&[(life(1, 7, 0), &["a"]), (life(1, 8, 0), &["a"])], 0),
            (&[(life(1, 7, 0), &[]), (life(1, 8, 1), &[])], 0),
            (&[(life(1, 7, 0), &["a"]), (life(1, 8, 1), &["b"])], 0),
            // A runner was killed, and the next goes on with its daemon; or was ended, and took it along.
            (&[(life(1, 7, 0), &["a"]), (life(2, 0, 0), &["a"]), (life(2, 7, 0), &["a"])], 0),
            (&[(life(1, 7, 0), &["a"]), (life(2, 0, 0), &["a"]), (life(2, 9, 0), &["a"])], 1),
            (&[(life(1, 0, 0), &["a"]), (life(2, 9, 0), &["a"])], 0),
        ] {
            assert_eq!(after(words), stopped, "{words:?}");
        }
    }
}
