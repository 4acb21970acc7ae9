use std::collections::{BTreeMap, BTreeSet};

use super::clash;
use crate::api::{IMEXDomain, IMEXNodeStatus, NodeChannel};
use crate::claim::Prepared;
use crate::fault::Fault;

/// Which claims hold which ComputeDomains on this node: the reference counts behind enter and leave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    claims: BTreeMap<String, Hold>,
    restored: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Hold {
    cd_uid: String,
    /// The channel, once the claim was told it.
    entry: Option<(u32, String)>,
}

impl Ledger {
    /// The claims of the checkpoints. Before they are known nothing is left and nothing is switched.
    pub fn restore(&mut self, claims: impl IntoIterator<Item = Prepared>) {
        self.restored = true;
        for claim in claims {
            self.grant(&claim);
        }
    }

    /// A claim begins to hold its ComputeDomain: before the node has entered it, lest it be left in between.
    pub fn hold(&mut self, claim_uid: &str, cd_uid: &str) {
        let hold =
            self.claims.entry(claim_uid.to_owned()).or_insert_with(|| Hold { cd_uid: cd_uid.to_owned(), entry: None });
        if hold.cd_uid != cd_uid {
            *hold = Hold { cd_uid: cd_uid.to_owned(), entry: None };
        }
    }

    /// A claim was told its channel, and may be prepared with it from now on.
    pub fn grant(&mut self, claim: &Prepared) {
        let hold = Hold { cd_uid: claim.cd_uid.clone(), entry: Some((claim.channel, claim.domain.clone())) };
        self.claims.insert(claim.claim_uid.clone(), hold);
    }

    /// A claim holds nothing any more.
    pub fn release(&mut self, claim_uid: &str) {
        self.claims.remove(claim_uid);
    }

    /// The ComputeDomain that a claim holds.
    pub fn held_by(&self, claim_uid: &str) -> Option<&str> {
        self.claims.get(claim_uid).map(|hold| hold.cd_uid.as_str())
    }

    /// Whether any claim holds the ComputeDomain.
    pub fn is_held(&self, cd_uid: &str) -> bool {
        self.claims.values().any(|hold| hold.cd_uid == cd_uid)
    }

    /// The claims that hold a channel; none before the checkpoints are known.
    pub fn claims(&self) -> Option<Vec<Prepared>> {
        let held = self.claims.iter().filter_map(|(claim_uid, hold)| {
            let (channel, domain) = hold.entry.clone()?;
            Some(Prepared { claim_uid: claim_uid.clone(), cd_uid: hold.cd_uid.clone(), channel, domain })
        });
        self.restored.then(|| held.collect())
    }

    /// How many claims hold a channel; none before the checkpoints are known.
    fn prepared(&self) -> Option<usize> {
        self.restored.then(|| self.claims.values().filter(|hold| hold.entry.is_some()).count())
    }

    /// Why the daemon must not be ended: the claims of which some are prepared or may be at any moment.
    ///
    /// # Errors
    /// That reason.
    pub fn may_switch(&self) -> Result<(), String> {
        match self.prepared() {
            None => Err("the claims that were prepared before the agent's start are not known yet".into()),
            Some(0) => Ok(()),
            Some(n) => Err(format!("{n} claims are prepared on this node")),
        }
    }

    /// The ComputeDomains to be left: the node lists them and no claim holds them, or only claims that wait hold them and the
    /// domain says otherwise than the list.
    pub fn abandoned(&self, status: Option<&IMEXNodeStatus>, domain: Option<&IMEXDomain>) -> BTreeSet<String> {
        if !self.restored {
            return BTreeSet::new();
        }
        let listed = status.into_iter().flat_map(|status| &status.channels);
        let left = listed.filter(|(uid, entry)| {
            let wrong = || clash(uid, entry, None, domain).is_some();
            !self.is_held(uid) || (!self.entries().any(|(held, _)| held == uid.as_str()) && wrong())
        });
        left.map(|(uid, _)| uid.clone()).collect()
    }

    /// The entries that claims rest on and that the node does not list.
    pub fn lost(&self, status: Option<&IMEXNodeStatus>) -> BTreeMap<String, NodeChannel> {
        let listed = |uid: &str| status.is_some_and(|status| status.channels.contains_key(uid));
        self.entries().filter(|(uid, _)| !listed(uid)).map(|(uid, entry)| (uid.to_owned(), entry)).collect()
    }

    /// The ComputeDomains whose prepared claims the objects contradict.
    pub fn clashes(&self, status: Option<&IMEXNodeStatus>, domain: Option<&IMEXDomain>) -> BTreeMap<String, Fault> {
        self.entries().filter_map(|(uid, entry)| Some((uid.to_owned(), clash(uid, &entry, status, domain)?))).collect()
    }

    /// Whether the checkpoints are known.
    pub fn is_restored(&self) -> bool {
        self.restored
    }

    fn entries(&self) -> impl Iterator<Item = (&str, NodeChannel)> {
        self.claims.values().filter_map(|hold| {
            let (channel, domain) = hold.entry.clone()?;
            Some((hold.cd_uid.as_str(), NodeChannel { channel, domain, since: String::new() }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(claim: &str, cd: &str, channel: u32) -> Prepared {
        Prepared { claim_uid: claim.into(), cd_uid: cd.into(), channel, domain: "d".into() }
    }

    fn listing(channels: &[(&str, u32)]) -> IMEXNodeStatus {
        let entry = |channel| NodeChannel { channel, domain: "d".into(), since: String::new() };
        let channels = channels.iter().map(|(uid, channel)| ((*uid).to_owned(), entry(*channel))).collect();
        IMEXNodeStatus { channels, ..Default::default() }
    }

    #[test]
    fn the_last_claim_of_a_compute_domain_leaves() {
        let mut ledger = Ledger::default();
        ledger.restore([prepared("a", "green", 4), prepared("b", "green", 4), prepared("c", "blue", 5)]);
        let status = listing(&[("green", 4), ("blue", 5)]);
        ledger.release("a");
        assert!(ledger.abandoned(Some(&status), None).is_empty());
        ledger.release("b");
        assert_eq!(ledger.abandoned(Some(&status), None), BTreeSet::from(["green".to_owned()]));
        ledger.hold("d", "green");
        assert!(ledger.abandoned(Some(&status), None).is_empty(), "a claim that comes meanwhile keeps the entry");
    }

    #[test]
    fn an_entry_that_the_domain_contradicts_is_left_before_a_claim_that_waits_gets_another() {
        let mut domain = super::super::domain::tests::domain("d", 1);
        let entry = |channel| crate::api::ChannelEntry { channel, ..Default::default() };
        domain.status.get_or_insert_default().channels = [("blue".to_owned(), entry(4))].into();
        let status = listing(&[("green", 4)]);
        let mut ledger = Ledger::default();
        ledger.restore([prepared("a", "green", 4)]);
        assert!(ledger.abandoned(Some(&status), Some(&domain)).is_empty(), "a claim rests on it");
        ledger.hold("b", "green");
        ledger.release("a");
        assert_eq!(ledger.abandoned(Some(&status), Some(&domain)).len(), 1);
        domain.status.as_mut().unwrap().channels.clear();
        assert!(ledger.abandoned(Some(&status), Some(&domain)).is_empty(), "the map gets it back");
    }

    #[test]
    fn nothing_is_left_or_switched_before_the_checkpoints_are_known() {
        let mut ledger = Ledger::default();
        assert!(ledger.abandoned(Some(&listing(&[("green", 4)])), None).is_empty());
        assert!(ledger.may_switch().is_err());
        ledger.restore([]);
        assert_eq!(ledger.abandoned(Some(&listing(&[("green", 4)])), None).len(), 1);
        assert!(ledger.may_switch().is_ok());
    }

    #[test]
    fn a_claim_that_only_waits_does_not_hold_up_a_switch() {
        let mut ledger = Ledger::default();
        ledger.restore([]);
        ledger.hold("a", "red");
        assert!(ledger.may_switch().is_ok(), "it may be this very switch that it waits for");
        ledger.grant(&prepared("a", "red", 1));
        assert!(ledger.may_switch().is_err());
        ledger.release("a");
        assert!(ledger.may_switch().is_ok());
    }

    #[test]
    fn a_lost_entry_is_found() {
        let mut ledger = Ledger::default();
        ledger.restore([prepared("a", "green", 4), prepared("b", "blue", 5)]);
        ledger.hold("c", "yellow");
        assert!(ledger.lost(Some(&listing(&[("green", 4), ("blue", 5)]))).is_empty());
        assert_eq!(ledger.lost(Some(&listing(&[("green", 4)])))["blue"].channel, 5);
        assert_eq!(ledger.lost(None).len(), 2);
    }

    #[test]
    fn an_entry_with_another_number_is_a_clash() {
        let mut ledger = Ledger::default();
        ledger.restore([prepared("a", "green", 4), prepared("b", "blue", 5)]);
        let status = listing(&[("green", 4), ("blue", 6)]);
        assert!(ledger.lost(Some(&status)).is_empty());
        assert_eq!(ledger.clashes(Some(&status), None).into_keys().collect::<Vec<_>>(), ["blue"]);
    }
}
