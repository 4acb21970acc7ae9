//! What is written and sent, counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::{ApiServer, Change, Request, Verb};

/// `User-Agent` of all that is simulated here. Who else writes is the controller.
pub const SIMULATED: &str = "simulated";

/// Counts at one moment.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Committed writes by kind.
    pub committed: BTreeMap<String, u64>,
    /// Write requests of the controller, by resource, those that were refused among them.
    pub controller: BTreeMap<String, u64>,
    /// Write requests of the simulated agents, by resource.
    pub agents: BTreeMap<String, u64>,
    /// Writes of the simulated agents that were refused because somebody else was faster.
    pub conflicts: u64,
    /// Bytes that the controller's watches have brought.
    pub controller_bytes: u64,
    /// Bytes that the watches of all agents would have brought.
    pub agent_bytes: u64,
}

impl Counts {
    /// What came on top of `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let less = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let rest = now.iter().map(|(key, n)| (key.clone(), n - before.get(key).copied().unwrap_or_default()));
            rest.filter(|(_, n)| *n > 0).collect()
        };
        Self {
            committed: less(&self.committed, &earlier.committed),
            controller: less(&self.controller, &earlier.controller),
            agents: less(&self.agents, &earlier.agents),
            conflicts: self.conflicts - earlier.conflicts,
            controller_bytes: self.controller_bytes - earlier.controller_bytes,
            agent_bytes: self.agent_bytes - earlier.agent_bytes,
        }
    }

    /// All committed writes but renewals of Leases.
    pub fn all_committed(&self) -> u64 {
        self.committed.iter().filter(|(kind, _)| *kind != "Lease").map(|(_, count)| count).sum()
    }

    /// All write requests of the controller but renewals of its Lease.
    pub fn of_controller(&self) -> u64 {
        self.controller.iter().filter(|(resource, _)| *resource != "leases").map(|(_, count)| count).sum()
    }
}

/// Keeps the counts.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<Counts>>);

impl Tally {
    /// Counts the write requests of a server from now on.
    pub fn start(server: &ApiServer) -> Self {
        let tally = Self::default();
        let counted = tally.clone();
        server.fail_requests(move |request| {
            counted.request(request);
            None
        });
        tally
    }

    fn request(&self, request: &Request) {
        if matches!(request.verb, Verb::Get | Verb::List | Verb::Watch) {
            return;
        }
        let resource = match &request.subresource {
            Some(subresource) => format!("{}/{subresource}", request.plural),
            None => request.plural.clone(),
        };
        let mut counts = self.lock();
        let of = if request.user_agent == SIMULATED { &mut counts.agents } else { &mut counts.controller };
        *of.entry(resource).or_default() += 1;
    }

    /// A committed write, of which so many agents are told.
    pub fn change(&self, change: &Change, agents: usize) {
        // As a watch brings it: the object, and `{"type":…,"object":…}` around it.
        let bytes = change.size() as u64 + 32;
        let mut counts = self.lock();
        *counts.committed.entry(change.kind().to_owned()).or_default() += 1;
        counts.agent_bytes += bytes * agents as u64;
        let watched = ["ComputeDomain", "ResourceClaim", "ResourceClaimTemplate", "Node", "IMEXNode", "IMEXDomain"];
        if watched.contains(&change.kind()) {
            counts.controller_bytes += bytes;
        }
    }

    /// A write that somebody else was faster with.
    pub fn conflict(&self) {
        self.lock().conflicts += 1;
    }

    /// The counts as they are.
    pub fn now(&self) -> Counts {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
