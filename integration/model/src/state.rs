use heddle_core::api::{IMEXDomain, IMEXNode};
use heddle_core::imex::DomainConfig;

use crate::held::Held;
use crate::settings::Faults;

/// A cluster at one moment: what the API server has, what everybody knows of it, and what is on its way.
///
/// A guard compares resourceVersions, so of each copy only that counts which the guard will find: whether the object has
/// changed since. There are no numbers, and the same situation is the same state whenever it comes up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The IMEXDomains, in the order of [`Names::domains`](crate::settings::Names).
    pub domains: Vec<Option<Held<IMEXDomain>>>,
    /// The IMEXNodes.
    pub nodes: Vec<Option<Held<IMEXNode>>>,
    /// The Nodes that exist, a bit each.
    pub there: u32,
    /// The ComputeDomains.
    pub cds: Vec<Life>,
    /// The claims that are allocated, a bit for each node and ComputeDomain.
    pub claims: u64,
    /// The agents.
    pub agents: Vec<Agent>,
    /// The controllers.
    pub leaders: Vec<Leader>,
    /// Writes that are on their way and that nobody waits for, each decided on what is there now: others fail, and are
    /// forgotten. Sorted.
    pub sent: Vec<Sent>,
    /// A backup of the first IMEXDomain.
    pub backup: Option<Held<IMEXDomain>>,
    /// The faults that may still happen.
    pub left: Faults,
}

/// Where a ComputeDomain is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Life {
    /// Not created yet.
    Absent,
    /// It serves.
    Alive,
    /// It has a deletion timestamp.
    Deleting,
    /// Its object is gone.
    Gone,
}

/// Somebody's copy of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen<K> {
    /// What was seen; none where there was none, or nothing is known.
    pub object: Option<K>,
    /// The object has not changed since.
    pub fresh: bool,
}

impl<K> Seen<K> {
    /// Nothing is known.
    pub const NOTHING: Self = Self { object: None, fresh: false };

    /// What is there now.
    pub fn now(object: Option<K>) -> Self {
        Self { object, fresh: true }
    }
}

/// An agent: what its node keeps over its death, and what it has in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Agent {
    /// Checkpoints: for each ComputeDomain the channel and the domain that its claim was prepared with.
    pub prepared: Vec<Option<(u8, u8)>>,
    /// What the daemon was started with.
    pub daemon: Option<Held<DomainConfig>>,
    /// The daemon was ended under a prepared claim.
    pub stopped: bool,
    /// Nothing will ever be heard of the node again.
    pub lost: bool,
    /// Its copy of its own object.
    pub node: Seen<Held<IMEXNode>>,
    /// Its copy of the domain that this names.
    pub domain: Seen<Held<IMEXDomain>>,
    /// The place of that domain.
    pub of: Option<u8>,
    /// ComputeDomains whose claim waits for its channel, a bit each.
    pub waiting: u32,
    /// The write of its own object that it waits for.
    pub write: Option<OwnWrite>,
    /// Earlier ones of its that may still arrive.
    pub ghosts: Vec<Held<IMEXNode>>,
    /// By what it knows one may.
    pub strays: bool,
    /// What it has given its runner.
    pub order: Option<Order>,
}

/// An agent's write of its own object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OwnWrite {
    /// It will be taken, if it arrives before another.
    Live(Held<IMEXNode>),
    /// It will be refused. `entering`: it enters a channel.
    Doomed {
        /// Whether it does.
        entering: bool,
    },
}

/// What an agent has given its runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Order {
    /// What the daemon is to serve.
    pub config: Held<DomainConfig>,
    /// The runner is told that no claim is prepared.
    pub no_claims_prepared: bool,
}

/// What a controller knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Leader {
    /// Its copies of the IMEXDomains.
    pub domains: Vec<Seen<Held<IMEXDomain>>>,
    /// Its copies of the IMEXNodes.
    pub nodes: Vec<Seen<Held<IMEXNode>>>,
    /// The Nodes it knows.
    pub there: u32,
    /// What it knows of ComputeDomains and claims.
    pub belief: Belief,
}

/// What a controller takes for true of the ComputeDomains. A bit for each, or for each node and each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Belief {
    /// Those that exist.
    pub cds: u32,
    /// Those that are being deleted.
    pub deleting: u32,
    /// The claims that are allocated.
    pub claims: u64,
}

/// A write on its way: what the object will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sent {
    /// Of an IMEXNode's spec; none deletes it.
    Node(u8, Option<Held<IMEXNode>>),
    /// Of an IMEXDomain; none deletes it.
    Domain(u8, Option<Held<IMEXDomain>>),
}

impl State {
    /// The bit of a claim.
    pub fn claim(&self, node: usize, cd: usize) -> u64 {
        1 << (node * self.cds.len() + cd)
    }

    /// What is true of the ComputeDomains.
    pub fn truth(&self) -> Belief {
        let bits = |lives: &[Life]| {
            let those = self.cds.iter().enumerate().filter(|(_, life)| lives.contains(life));
            those.fold(0, |bits, (c, _)| bits | 1 << c)
        };
        Belief { cds: bits(&[Life::Alive, Life::Deleting]), deleting: bits(&[Life::Deleting]), claims: self.claims }
    }

    /// Whether the claim is allocated.
    pub fn allocated(&self, node: usize, cd: usize) -> bool {
        self.claims & self.claim(node, cd) != 0
    }

    /// The IMEXNode is now this. Every other write that was decided on what it was will be refused.
    pub fn put_node(&mut self, n: usize, object: Option<Held<IMEXNode>>, guarded: bool) {
        let before = std::mem::replace(&mut self.nodes[n], object);
        let agent = &mut self.agents[n];
        agent.node.fresh = false;
        if guarded {
            agent.ghosts.clear();
            if let Some(OwnWrite::Live(write)) = agent.write {
                let listed = |uid| before.is_some_and(|node| channels(&node).any(|known| known == uid));
                let entering = channels(&write).any(|uid| !listed(uid));
                agent.write = Some(OwnWrite::Doomed { entering });
            }
        }
        self.leaders.iter_mut().for_each(|leader| leader.nodes[n].fresh = false);
        self.sent.retain(|sent| !matches!(sent, Sent::Node(node, _) if usize::from(*node) == n));
    }

    /// The IMEXDomain is now this.
    pub fn put_domain(&mut self, d: usize, object: Option<Held<IMEXDomain>>) {
        self.domains[d] = object;
        for agent in self.agents.iter_mut().filter(|agent| agent.of.map(usize::from) == Some(d)) {
            agent.domain.fresh = false;
        }
        self.leaders.iter_mut().for_each(|leader| leader.domains[d].fresh = false);
        self.sent.retain(|sent| !matches!(sent, Sent::Domain(domain, _) if usize::from(*domain) == d));
    }

    /// Sends a write. Whether it was not on its way already.
    pub fn send(&mut self, sent: Sent) -> bool {
        match self.sent.binary_search(&sent) {
            Ok(_) => false,
            Err(at) => {
                self.sent.insert(at, sent);
                true
            }
        }
    }
}

/// The ComputeDomains that the node lists.
pub fn channels(node: &IMEXNode) -> impl Iterator<Item = &String> {
    node.status.iter().flat_map(|status| status.channels.keys())
}
