use heddle_core::api::{
    ChannelSpec, ChannelState, ComputeDomainRef, ComputeDomainSpec, IMEXDomain, IMEXDomainStatus, IMEXNode,
    IMEXNodeSpec, IMEXNodeStatus, IsolationMode, TemplateRef,
};
use heddle_core::claim::ClaimKey;
use heddle_core::clique::CliqueId;
use heddle_core::controller::{Cd, Kind, LabelledClaim};
use heddle_core::invariants::{Report, RunningDaemon, World};

use crate::agent::{Act, Agent, CHANNEL_COUNT};
use crate::controller::Controller;
use crate::store::{Change, Sent, Store};

/// A fault built into the test, which it must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    FreeWithoutFence,
    FreeWithoutDraining,
    EnterUnguarded,
    MoveWhileListed,
    TrustOldEntry,
}

/// How often things happened that a run without them would prove nothing about.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    prepared: u32,
    refused: u32,
    drained: u32,
    fenced: u32,
    freed: u32,
    given_again: u32,
    moved_out: u32,
    moved_back: u32,
    quarantined: u32,
    announced: u32,
    pub reclaimed: u32,
    pub revived: u32,
}

impl Seen {
    pub fn add(&mut self, other: &Self) {
        for (mine, (_, theirs)) in [
            &mut self.prepared,
            &mut self.refused,
            &mut self.drained,
            &mut self.fenced,
            &mut self.freed,
            &mut self.given_again,
            &mut self.moved_out,
            &mut self.moved_back,
            &mut self.quarantined,
            &mut self.announced,
        ]
        .into_iter()
        .zip(other.table())
        {
            *mine += theirs;
        }
    }

    pub fn table(&self) -> [(&'static str, u32); 10] {
        [
            ("a claim prepared", self.prepared),
            ("a write refused", self.refused),
            ("a channel drained", self.drained),
            ("a node fenced", self.fenced),
            ("a channel freed", self.freed),
            ("a freed number given again", self.given_again),
            ("a node moved to an exclusive domain", self.moved_out),
            ("a node moved home", self.moved_back),
            ("a number quarantined", self.quarantined),
            ("a move announced", self.announced),
        ]
    }
}

const NODES: usize = 3;
/// ComputeDomains alive at a time; the last two are exclusive.
const CDS: usize = 5;

pub fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

#[derive(Clone)]
pub struct Cluster {
    store: Store,
    agents: Vec<Agent>,
    controllers: [Controller; 2],
    sent: Vec<Sent>,
    serial: u32,
    ever_freed: std::collections::BTreeSet<(String, u32)>,
    checked: (u64, Vec<(usize, Option<String>)>),
    bug: Bug,
    /// Moves of nodes that had no certificate of where they went.
    pub uncertified: Vec<String>,
    pub seen: Seen,
}

impl Cluster {
    /// A cluster at work: nodes assigned, daemons running.
    pub fn new(bug: Bug) -> Self {
        thread_local!(static AT_WORK: Cluster = Cluster::start());
        Self { bug, ..AT_WORK.with(Clone::clone) }
    }

    fn start() -> Self {
        let agents: Vec<_> = (0..NODES).map(|n| Agent::new(&format!("n{n}"))).collect();
        let mut cluster = Self {
            store: Store::default(),
            agents,
            controllers: Default::default(),
            sent: Vec::new(),
            serial: 0,
            ever_freed: Default::default(),
            checked: Default::default(),
            bug: Bug::None,
            uncertified: Vec::new(),
            seen: Seen::default(),
        };
        for agent in &cluster.agents {
            let mut node = IMEXNode::new(&agent.name, IMEXNodeSpec::default());
            node.status = Some(IMEXNodeStatus {
                clique: Some(clique().to_string()),
                channel_count: CHANNEL_COUNT,
                addresses: vec![agent.name.clone()],
                ..Default::default()
            });
            cluster.store.put_node(node);
            cluster.store.alive.insert(agent.name.clone());
        }
        assert!(cluster.settle(), "the cluster does not start");
        cluster
    }

    /// One thing happens; told in words.
    pub fn step(&mut self, (kind, a, b): (u8, u8, u8)) -> String {
        let (a, b) = (a as usize, b as usize);
        match kind % 40 {
            0..=4 => self.schedule(a, b),
            5..=7 => self.end_claim(a),
            8 => self.create(a),
            9..=10 => self.delete(a),
            11 => self.crash_controller(a),
            12 => self.lose(a, b),
            13..=14 => self.act(a, b),
            15..=26 => self.serve(a, b),
            27 => self.see(a, b),
            28 => {
                let bug = self.bug;
                self.controllers[a % 2].decide(bug);
                format!("controller {} decides {:?}", a % 2, self.controllers[a % 2].decided.len())
            }
            29..=30 => self.execute(a % 2, b),
            31..=33 => self.control(a % 2, b.is_multiple_of(2)),
            34..=38 => (0..=b % 8).map(|_| self.arrive(a)).collect::<Vec<_>>().join("; "),
            _ if self.sent.is_empty() => "nothing".into(),
            _ => format!("lost on its way: {:?}", self.sent.swap_remove(a % self.sent.len())),
        }
    }

    fn cd(&self, pick: usize) -> Option<&Cd> {
        self.store.cds.values().nth(pick % self.store.cds.len().max(1))
    }

    fn create(&mut self, pick: usize) -> String {
        let slot = pick % CDS;
        let name = format!("cd{slot}");
        if self.store.cds.values().any(|cd| cd.reference.name == name) {
            return "nothing".into();
        }
        self.serial += 1;
        let isolation_mode = if slot + 2 >= CDS { IsolationMode::Domain } else { IsolationMode::Channel };
        let uid = format!("{name}-{}", self.serial);
        let channel = ChannelSpec { resource_claim_template: TemplateRef { name: name.clone() }, ..Default::default() };
        let cd = Cd {
            reference: ComputeDomainRef { namespace: "team".into(), name, uid: uid.clone() },
            created: None,
            deleting: false,
            finalizers: Vec::new(),
            generation: None,
            resource_version: None,
            spec: Ok(ComputeDomainSpec { num_nodes: 0, isolation_mode, channel }),
            status: None,
            origin: Default::default(),
        };
        self.store.cds.insert(uid.clone(), cd);
        format!("{uid} is created")
    }

    fn delete(&mut self, pick: usize) -> String {
        let Some(uid) = self.cd(pick).map(|cd| cd.uid().to_string()) else { return "nothing".into() };
        if self.store.cds[&uid].deleting {
            self.store.cds.remove(&uid);
            return format!("{uid} is gone");
        }
        self.store.cds.get_mut(&uid).unwrap().deleting = true;
        format!("{uid} is being deleted")
    }

    /// The scheduler: an exclusive claim takes all slots of a node.
    fn schedule(&mut self, pick: usize, node: usize) -> String {
        let node = self.agents[node % NODES].name.clone();
        let Some(cd) = self.cd(pick).filter(|cd| !cd.deleting && self.store.alive.contains(&node)) else {
            return self.create(pick);
        };
        let mut beside = self.store.claims.values().filter(|claim| claim.nodes.contains(&node)).peekable();
        let exclusive = |claim: &LabelledClaim| self.store.cds.get(&claim.cd_uid).is_none_or(Cd::exclusive);
        if (cd.exclusive() && beside.peek().is_some()) || beside.any(exclusive) {
            return "nothing".into();
        }
        let name = format!("claim-{}-{node}-{}", cd.uid(), self.serial);
        let key = ClaimKey { namespace: "team".into(), name: name.clone(), uid: name.clone() };
        let claim = LabelledClaim { key, cd_uid: cd.uid().into(), nodes: [node].into() };
        self.serial += 1;
        self.store.claims.insert(name.clone(), claim);
        format!("{name} is allocated")
    }

    /// The claim's pod is deleted; by force, for the node does not know it yet.
    fn end_claim(&mut self, pick: usize) -> String {
        let Some(uid) = self.store.claims.keys().nth(pick % self.store.claims.len().max(1)).cloned() else {
            return "nothing".into();
        };
        self.store.claims.remove(&uid);
        format!("{uid} is deleted")
    }

    fn crash_controller(&mut self, pick: usize) -> String {
        if !pick.is_multiple_of(4) {
            return self.control(pick % 2, true);
        }
        self.controllers[pick / 4 % 2] = Controller::default();
        format!("controller {} starts anew", pick / 4 % 2)
    }

    fn lose(&mut self, pick: usize, rarely: usize) -> String {
        if !rarely.is_multiple_of(4) || self.agents.iter().any(|agent| agent.lost) {
            return self.arrive(pick);
        }
        let agent = &mut self.agents[pick % NODES];
        agent.lost = true;
        self.store.alive.remove(&agent.name);
        self.store.claims.retain(|_, claim| !claim.nodes.contains(&agent.name));
        format!("{} is lost", agent.name)
    }

    fn act(&mut self, node: usize, act: usize) -> String {
        const ACTS: [Act; 10] = [
            Act::SeeNode,
            Act::SeeDomain,
            Act::Prepare,
            Act::Unprepare,
            Act::Leave,
            Act::Observe,
            Act::Switch,
            Act::Certify,
            Act::GiveUp,
            Act::Crash,
        ];
        self.agent(node % NODES, ACTS[act % ACTS.len()], act / ACTS.len())
    }

    fn agent(&mut self, node: usize, act: Act, pick: usize) -> String {
        let before = self.agents[node].prepared.len();
        let sent = self.agents[node].act(act, pick, &self.store, self.bug);
        if self.agents[node].prepared.len() > before {
            self.seen.prepared += 1;
        }
        let told = format!("n{node}: {act:?} -> {sent:?}");
        self.sent.extend(sent);
        told
    }

    /// An agent does its work with whatever it knows.
    fn serve(&mut self, node: usize, what: usize) -> String {
        const WORK: [&[Act]; 8] = [
            &[Act::SeeNode, Act::SeeDomain, Act::Prepare],
            &[Act::Unprepare, Act::SeeNode, Act::Switch],
            &[Act::SeeNode, Act::SeeDomain, Act::Prepare],
            &[Act::SeeNode, Act::SeeDomain, Act::Prepare],
            &[Act::SeeNode, Act::Prepare],
            &[Act::SeeNode, Act::Certify, Act::SeeNode, Act::Switch],
            &[Act::Unprepare, Act::Leave],
            &[Act::Unprepare, Act::SeeNode, Act::Leave],
        ];
        let (node, acts, pick) = (node % NODES, WORK[what % WORK.len()], what / WORK.len());
        let promptly = !pick.is_multiple_of(3);
        let mut told = Vec::new();
        for _ in 0..if promptly { 4 } else { 1 } {
            for act in acts {
                let before = self.sent.len();
                told.push(self.agent(node, *act, pick));
                if promptly && self.sent.len() > before {
                    told.push(self.arrive(before));
                }
            }
        }
        told.join("; ")
    }

    /// A leave is on its way when its agent dies. The next one prepares a claim of the same ComputeDomain, and then the
    /// leave arrives. Whether the claim is prepared in the end.
    pub fn a_leave_outlives_its_agent(&mut self) -> bool {
        self.create(0);
        self.schedule(0, 0);
        assert!(self.settle() && self.agents[0].prepared.len() == 1);
        self.end_claim(0);
        for act in [Act::Unprepare, Act::Leave, Act::Crash] {
            self.agent(0, act, 0);
        }
        assert_eq!(self.sent.len(), 1, "the leave");
        self.schedule(0, 0);
        for act in [Act::SeeNode, Act::SeeDomain, Act::Prepare, Act::Prepare] {
            self.agent(0, act, 0);
            if self.sent.len() > 1 {
                self.arrive(1);
            }
        }
        self.arrive(0);
        self.agents[0].prepared.len() == 1
    }

    /// The one number is taken back from a ComputeDomain that nobody uses, for another that waits for it; a claim of the
    /// first comes at that moment, and its node enters with a view from before. Who has the number in the end.
    pub fn a_reclaim_meets_an_enter(&mut self) -> Vec<String> {
        self.create(0);
        self.schedule(0, 0);
        assert!(self.settle());
        self.end_claim(0);
        assert!(self.settle() && self.agents[0].prepared.is_empty());
        self.agent(0, Act::SeeNode, 0);
        self.agent(0, Act::SeeDomain, 0);
        self.create(1);
        self.schedule(1, 1);
        // The controller has decided to drain it, and a claim of it comes.
        self.controllers[0].see_all(&self.store);
        self.controllers[0].decide(self.bug);
        self.schedule(0, 0);
        self.agent(0, Act::Prepare, 0);
        assert_eq!(self.sent.len(), 1, "the enter");
        while !self.controllers[0].decided.is_empty() {
            self.execute(0, 0);
        }
        while !self.sent.is_empty() {
            self.arrive(self.sent.len() - 1);
            assert!(self.report().holds(), "{:?}", self.report());
        }
        assert!(self.come_to_rest());
        self.agents.iter().flat_map(|agent| agent.prepared.values().map(|claim| claim.cd_uid.clone())).collect()
    }

    /// Nothing but that nobody needs the number any more happens to the first ComputeDomain: the second gets it.
    pub fn the_unused_makes_room(&mut self) -> Vec<String> {
        self.create(0);
        self.schedule(0, 0);
        assert!(self.settle());
        self.create(1);
        self.schedule(1, 1);
        assert!(self.settle() && self.agents[1].prepared.is_empty(), "there is one number");
        let first = self.store.claims.keys().position(|claim| claim.contains("cd0")).unwrap();
        self.end_claim(first);
        assert!(self.come_to_rest());
        self.agents.iter().flat_map(|agent| agent.prepared.values().map(|claim| claim.cd_uid.clone())).collect()
    }

    fn see(&mut self, controller: usize, pick: usize) -> String {
        let kind = Kind::ALL[pick % Kind::ALL.len()];
        self.controllers[controller % 2].see(kind, pick / Kind::ALL.len(), &self.store);
        format!("controller {} sees a {kind:?}", controller % 2)
    }

    fn execute(&mut self, controller: usize, pick: usize) -> String {
        let sent = self.controllers[controller].execute(pick, &self.store, self.bug);
        let told = format!("controller {controller} sends {sent:?}");
        self.sent.extend(sent);
        told
    }

    /// A controller sees everything, decides, and sends all of it, which arrives at once if promptly.
    fn control(&mut self, controller: usize, promptly: bool) -> String {
        self.controllers[controller].see_all(&self.store);
        self.controllers[controller].decide(self.bug);
        let mut told = vec![];
        while !self.controllers[controller].decided.is_empty() {
            let before = self.sent.len();
            told.push(self.execute(controller, 0));
            if promptly && self.sent.len() > before {
                told.push(self.arrive(before));
            }
        }
        told.join("; ")
    }

    fn arrive(&mut self, pick: usize) -> String {
        if self.sent.is_empty() {
            return "nothing".into();
        }
        let sent = self.sent.remove(pick % self.sent.len());
        let told = format!("{sent:?}");
        let by_agent = matches!(sent.kind, Change::NodeStatus(_)).then(|| sent.name.clone());
        let before = self.count(&sent);
        let accepted = self.store.arrive(sent.clone());
        if accepted {
            self.note(&sent, before);
        } else {
            self.seen.refused += 1;
        }
        // An answer that comes after the agent has given up finds nobody.
        for agent in self.agents.iter_mut().filter(|agent| Some(&agent.name) == by_agent.as_ref()) {
            agent.answered(accepted, &self.store);
        }
        format!("{}: {told}", if accepted { "accepted" } else { "refused" })
    }

    fn count(&self, sent: &Sent) -> (usize, usize, Option<String>) {
        let status = self.store.domains.get(&sent.name).and_then(|domain| domain.status.as_ref());
        let draining = status.map_or(0, |s| s.channels.values().filter(|e| e.state == ChannelState::Draining).count());
        let domain = self.store.nodes.get(&sent.name).and_then(|node| node.spec.domain.clone());
        (status.map_or(0, |status| status.channels.len()), draining, domain)
    }

    fn note(&mut self, sent: &Sent, before: (usize, usize, Option<String>)) {
        let after = self.count(sent);
        match &sent.kind {
            Change::DomainStatus(status) => {
                self.seen.drained += u32::from(after.1 > before.1);
                self.seen.freed += u32::from(after.0 < before.0);
                self.seen.reclaimed += u32::from(after.1 > before.1 && self.lives(status, ChannelState::Draining));
                self.seen.revived += u32::from(after.1 < before.1 && after.0 == before.0);
                if after.0 > before.0 && !self.ever_freed.insert((sent.name.clone(), status.last_channel)) {
                    self.seen.given_again += 1;
                }
            }
            Change::NodeSpec(spec) if spec.domain == before.2 => {
                let announced = spec.next.is_some() && !self.certified(&sent.name, spec.next.as_deref());
                self.seen.announced += u32::from(announced);
                self.seen.fenced += u32::from(!announced);
            }
            Change::NodeSpec(spec) => {
                if before.2.is_some() && !self.certified(&sent.name, spec.domain.as_deref()) {
                    self.uncertified.push(format!("{} to {:?}", sent.name, spec.domain));
                }
                let exclusive = spec.domain.as_ref().is_some_and(|domain| domain.starts_with("exclusive"));
                self.seen.moved_out += u32::from(exclusive);
                self.seen.moved_back += u32::from(!exclusive && before.2.is_some());
            }
            _ => {}
        }
    }

    /// An entry in this state is of a ComputeDomain that lives.
    fn lives(&self, status: &IMEXDomainStatus, state: ChannelState) -> bool {
        let alive = |uid: &String| self.store.cds.get(uid).is_some_and(|cd| !cd.deleting);
        status.channels.iter().any(|(uid, entry)| entry.state == state && alive(uid))
    }

    fn certified(&self, node: &str, domain: Option<&str>) -> bool {
        let status = self.store.nodes.get(node).and_then(|node| node.status.as_ref());
        domain.is_some_and(|domain| status.is_some_and(|status| status.certificates.contains_key(domain)))
    }

    /// What the invariants are about has changed since this was asked last.
    pub fn changed(&mut self) -> bool {
        let prepared = self.agents.iter().map(|agent| (agent.prepared.len(), agent.daemon.clone())).collect();
        let now = (self.store.version(), prepared);
        let changed = now != self.checked;
        self.checked = now;
        changed
    }

    pub fn report(&self) -> Report {
        Report::of(&World {
            domains: self.store.domains.clone(),
            nodes: self.store.nodes.clone(),
            prepared: self.agents.iter().map(|a| (a.name.clone(), a.prepared.values().cloned().collect())).collect(),
            daemons: self
                .agents
                .iter()
                .map(|a| (a.name.clone(), RunningDaemon { domain: a.daemon.clone(), stopped_under_claims: 0 }))
                .collect(),
        })
    }

    /// Everybody does what is to be done until nothing is. Whether it comes to that.
    fn settle(&mut self) -> bool {
        let mut quiet = 0;
        for _ in 0..100 {
            let before = (self.store.version(), self.agents.iter().map(|agent| agent.prepared.len()).sum::<usize>());
            while !self.sent.is_empty() {
                self.arrive(0);
            }
            self.control(0, false);
            while !self.sent.is_empty() {
                self.arrive(0);
            }
            for node in 0..NODES {
                for act in [
                    Act::GiveUp,
                    Act::SeeNode,
                    Act::SeeDomain,
                    Act::Unprepare,
                    Act::Certify,
                    Act::SeeNode,
                    Act::Switch,
                    Act::Leave,
                    Act::Observe,
                ] {
                    self.agent(node, act, 0);
                    while !self.sent.is_empty() {
                        self.arrive(0);
                    }
                }
                for pick in 0..CDS {
                    self.agent(node, Act::SeeDomain, 0);
                    self.agent(node, Act::Prepare, pick);
                    while !self.sent.is_empty() {
                        self.arrive(0);
                    }
                }
            }
            let after = (self.store.version(), self.agents.iter().map(|agent| agent.prepared.len()).sum::<usize>());
            quiet = if after == before { quiet + 1 } else { 0 };
            if quiet > 2 {
                return true;
            }
        }
        false
    }

    /// Faults end, and everybody does what is left to do. Whether there is an end to it.
    pub fn come_to_rest(&mut self) -> bool {
        let rests = self.settle();
        let lost = self.agents.iter().filter(|agent| agent.lost && !agent.prepared.is_empty()).count();
        self.seen.quarantined += lost as u32;
        rests
    }

    /// What should not be left at rest.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (name, domain) in &self.store.domains {
            let channels = domain.status.iter().flat_map(|status| &status.channels);
            for (uid, entry) in channels.filter(|(uid, _)| self.store.cds.get(*uid).is_none_or(|cd| cd.deleting)) {
                let listed = |node: &IMEXNode| heddle_core::protocol::lists(node, name, uid).is_some();
                if !self.store.nodes.values().any(listed) {
                    left.push(format!("channel {} of {uid} in {name} is not freed", entry.channel));
                }
            }
        }
        for claim in self.store.claims.values() {
            let alive = self.store.cds.get(&claim.cd_uid).filter(|cd| !cd.deleting);
            let agent = self.agents.iter().find(|agent| claim.nodes.contains(&agent.name)).unwrap();
            let Some(cd) = alive.filter(|_| !agent.prepared.contains_key(&claim.key.uid)) else { continue };
            let domain = agent.daemon.as_ref().and_then(|domain| self.store.domains.get(domain));
            if !domain.is_some_and(|domain| self.is_full_of_use(domain)) {
                left.push(format!("{} of {} is not prepared", claim.key.uid, cd.uid()));
            }
        }
        left
    }

    /// Every number of the domain is a node's, or of a ComputeDomain with claims: none could be taken back.
    fn is_full_of_use(&self, domain: &IMEXDomain) -> bool {
        let name = domain.metadata.name.as_deref().unwrap();
        let channels = domain.status.iter().flat_map(|status| status.channels.keys());
        let used = channels.filter(|uid| {
            let listed = |node: &IMEXNode| heddle_core::protocol::lists(node, name, uid).is_some();
            let claimed = self.store.claims.values().any(|claim| &claim.cd_uid == *uid);
            claimed || self.store.nodes.values().any(listed)
        });
        used.count() + 1 >= CHANNEL_COUNT as usize
    }
}
