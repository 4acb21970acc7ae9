use std::collections::{BTreeMap, BTreeSet};

use heddle_core::api::{IMEXDomain, IMEXDomainStatus, IMEXNode, IMEXNodeStatus};
use heddle_core::claim::Prepared;
use heddle_core::imex::{Answer, Report, Wishes, decide, is_exclusive};
use heddle_core::protocol::{self, Allocate};

use crate::cluster::Bug;
use crate::store::{Change, Sent, Store, version};

/// One number for three ComputeDomains, so that it runs out, and is given again soon.
pub const CHANNEL_COUNT: u32 = 2;

/// The agent of one node: what survives a crash, and what it has in memory.
#[derive(Clone, Default)]
pub struct Agent {
    pub name: String,
    /// Checkpoints.
    pub prepared: BTreeMap<String, Prepared>,
    /// The daemon lives on its own.
    pub daemon: Option<String>,
    /// The node is dead and will stay so.
    pub lost: bool,
    node: Option<IMEXNode>,
    domain: Option<IMEXDomain>,
    /// A write of before whose fate it does not know may still arrive, until one of its own has arrived since.
    strays: bool,
    /// Claims whose ComputeDomain it has seen alive. It is asked once in a call of the kubelet, which ends when it has to
    /// wait for too long.
    checked: BTreeSet<String>,
    /// It has sent a write and has no answer.
    waiting: bool,
}

/// What the agent does.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    SeeNode,
    SeeDomain,
    Prepare,
    Unprepare,
    Leave,
    Observe,
    Switch,
    Certify,
    GiveUp,
    Crash,
}

impl Agent {
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), strays: true, ..Default::default() }
    }

    /// The answer to its write.
    pub fn answered(&mut self, accepted: bool, store: &Store) {
        if std::mem::take(&mut self.waiting) {
            self.node = store.nodes.get(&self.name).filter(|_| accepted).cloned();
            self.strays &= !accepted;
        }
    }

    fn node_write(&mut self, status: IMEXNodeStatus, guarded: bool) -> Option<Sent> {
        let version = version(self.node.as_ref()?).filter(|_| guarded);
        self.waiting = true;
        Some(Sent { kind: Change::NodeStatus(Box::new(status)), name: self.name.clone(), version })
    }

    /// A write that it sends, if any.
    pub fn act(&mut self, act: Act, pick: usize, store: &Store, bug: Bug) -> Option<Sent> {
        if self.lost {
            return None;
        }
        if self.waiting && !matches!(act, Act::GiveUp | Act::Crash) {
            return None;
        }
        match act {
            Act::GiveUp if self.waiting => {
                (self.waiting, self.strays) = (false, true);
            }
            Act::GiveUp => {}
            Act::SeeNode => self.node = store.nodes.get(&self.name).cloned(),
            Act::SeeDomain => {
                let name = self.node.as_ref()?.spec.domain.as_ref()?;
                self.domain = store.domains.get(name).cloned();
            }
            Act::Crash => {
                *self = Self {
                    prepared: std::mem::take(&mut self.prepared),
                    daemon: self.daemon.take(),
                    ..Self::new(&self.name)
                };
            }
            Act::Prepare => return self.prepare(pick, store, bug),
            Act::Unprepare => {
                let claim = self.prepared.keys().nth(pick % self.prepared.len().max(1))?.clone();
                // The kubelet keeps a claim prepared as long as the API has it.
                if !store.claims.contains_key(&claim) {
                    self.prepared.remove(&claim);
                }
            }
            Act::Leave => {
                let unused = self.unused(store);
                let status = protocol::leave(self.node.as_ref()?, self.domain.as_ref(), &unused)?;
                return self.node_write(status, true);
            }
            Act::Observe => {
                let status = protocol::observe(self.node.as_ref()?, self.domain.as_ref()?)?;
                return self.node_write(status, true);
            }
            Act::Certify => {
                let node = self.node.as_ref()?;
                let mut status = node.status.clone()?;
                status.certificates.retain(|domain, _| !is_exclusive(domain));
                for domain in [&node.spec.domain, &node.spec.next].into_iter().flatten() {
                    status.certificates.insert(domain.clone(), String::new());
                }
                if Some(&status) != node.status.as_ref() {
                    return self.node_write(status, true);
                }
            }
            Act::Switch => {
                let node = self.node.as_ref()?;
                if self.prepared.is_empty() && self.daemon != node.spec.domain {
                    self.daemon = node.spec.domain.clone();
                }
                let mut status = node.status.clone()?;
                if status.daemon.domain != self.daemon {
                    status.daemon.domain = self.daemon.clone();
                    status.daemon.state = "READY".into();
                    status.daemon.index = None;
                    return self.node_write(status, true);
                }
            }
        }
        None
    }

    /// The listed ComputeDomains that no claim here uses or waits for.
    fn unused(&self, store: &Store) -> BTreeSet<String> {
        let listed = self.node.iter().flat_map(|node| node.status.iter().flat_map(|status| status.channels.keys()));
        let wanted = |uid: &&String| {
            let waiting = store.claims.values().any(|c| &&c.cd_uid == uid && c.nodes.contains(&self.name));
            waiting || self.prepared.values().any(|claim| &&claim.cd_uid == uid)
        };
        listed.filter(|uid| !wanted(uid)).cloned().collect()
    }

    fn prepare(&mut self, pick: usize, store: &Store, bug: Bug) -> Option<Sent> {
        let waiting: Vec<_> = store
            .claims
            .values()
            .filter(|claim| claim.nodes.contains(&self.name) && !self.prepared.contains_key(&claim.key.uid))
            .collect();
        let claim = waiting.get(pick % waiting.len().max(1))?;
        let cd = store.cds.get(&claim.cd_uid).filter(|cd| !cd.deleting || self.checked.contains(&claim.key.uid))?;
        self.checked.insert(claim.key.uid.clone());
        let (node, domain) = (self.node.as_ref()?, self.domain.as_ref()?);
        let mode = cd.spec.as_ref().unwrap().isolation_mode;
        if self.daemon != domain.metadata.name {
            return None;
        }
        let report = Report { addresses: vec![self.name.clone()], ..Default::default() };
        let wishes =
            Wishes { enters: [(claim.cd_uid.clone(), (cd.reference.clone(), mode))].into(), ..Default::default() };
        let now = store.version().to_string();
        let strays = self.strays && bug != Bug::TrustOldEntry;
        let decision = decide(node, Some(domain), &report, &wishes, strays, &now);
        match decision.enters.get(&claim.cd_uid) {
            Some(Answer::Entered(channel)) => {
                let prepared = Prepared {
                    claim_uid: claim.key.uid.clone(),
                    cd_uid: claim.cd_uid.clone(),
                    channel: *channel,
                    domain: domain.metadata.name.clone()?,
                };
                self.prepared.insert(claim.key.uid.clone(), prepared);
            }
            Some(Answer::NeedsChannel) if decision.status.is_none() => {
                return match protocol::allocate(domain, &cd.reference, mode, CHANNEL_COUNT) {
                    Ok(Allocate::Write { status, .. }) => Some(self.domain_write(domain, status)),
                    _ => None,
                };
            }
            Some(Answer::Wait(_) | Answer::Refuse(_)) => {
                let uid = claim.key.uid.clone();
                self.checked.remove(&uid);
            }
            Some(Answer::NeedsChannel) | None => {}
        }
        self.node_write(decision.status?, bug != Bug::EnterUnguarded)
    }

    fn domain_write(&self, domain: &IMEXDomain, status: IMEXDomainStatus) -> Sent {
        let name = domain.metadata.name.clone().unwrap();
        Sent { kind: Change::DomainStatus(status), name, version: version(domain) }
    }
}
