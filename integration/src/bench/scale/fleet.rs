//! Light agents: each node's half of the protocol by the functions that the real agent decides with, without daemons,
//! claims on disk or a connection of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Context;
use heddle_core::api::{ComputeDomainRef, DaemonStatus, IMEXDomain, IMEXNode, IMEXNodeSpec, IsolationMode};
use heddle_core::imex::{Answer, Report, Wishes, decide};
use heddle_core::names;
use heddle_core::protocol::{Allocate, allocate};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};
use serde_json::Value;
use uuid::Uuid;

use super::tally::{SIMULATED, Tally};
use crate::api::{ApiServer, Change, EventType, History};
use crate::imex::VERSION;

/// Stamp of whatever is entered: it has no meaning here.
const NOW: &str = "2026-01-01T00:00:00Z";
/// End of every certificate: nobody signs any here, the controller looks at what is reported.
const CERTIFIED_UNTIL: &str = "2096-01-01T00:00:00Z";

/// All nodes, and what they see of the API.
pub struct Fleet {
    client: Client,
    history: History,
    nodes: BTreeMap<String, Light>,
    domains: BTreeMap<String, IMEXDomain>,
    served_by: BTreeMap<String, BTreeSet<String>>,
    dirty: BTreeSet<String>,
    /// What is counted.
    pub tally: Tally,
    /// When the template of a ComputeDomain was seen, by UID.
    pub templates: BTreeMap<String, Instant>,
    /// When a ComputeDomain was gone, by UID.
    pub gone: BTreeMap<String, Instant>,
}

/// One node.
#[derive(Default)]
struct Light {
    clique: String,
    address: String,
    boot: String,
    /// Its daemon is down, as while the node boots.
    down: bool,
    object: Option<IMEXNode>,
    wanted: BTreeMap<String, ComputeDomainRef>,
    prepared: BTreeMap<String, Instant>,
}

impl Fleet {
    /// No nodes yet.
    pub fn new(server: &ApiServer) -> Self {
        Self {
            client: server.client_as(SIMULATED),
            history: server.history(),
            nodes: BTreeMap::new(),
            domains: BTreeMap::new(),
            served_by: BTreeMap::new(),
            dirty: BTreeSet::new(),
            tally: Tally::start(server),
            templates: BTreeMap::new(),
            gone: BTreeMap::new(),
        }
    }

    /// A client of whatever is simulated.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A node boots for the first time.
    ///
    /// # Errors
    /// When the API server refuses its object.
    pub async fn add(&mut self, name: &str, clique: &str, address: String) -> anyhow::Result<()> {
        let light = Light { clique: clique.into(), address, boot: boot_id(), ..Light::default() };
        self.nodes.insert(name.into(), light);
        let nodes: Api<IMEXNode> = Api::all(self.client.clone());
        let made = nodes.create(&PostParams::default(), &IMEXNode::new(name, IMEXNodeSpec::default())).await;
        self.see_node(made.with_context(|| format!("IMEXNode {name} was refused"))?);
        self.turn().await
    }

    /// Claims of the ComputeDomain are to be prepared on the node from now on.
    pub fn want(&mut self, node: &str, cd: &ComputeDomainRef) {
        if let Some(light) = self.nodes.get_mut(node) {
            light.wanted.insert(cd.uid.clone(), cd.clone());
            self.dirty.insert(node.into());
        }
    }

    /// The last claim of the ComputeDomain is undone there.
    pub fn unwant(&mut self, node: &str, uid: &str) {
        if let Some(light) = self.nodes.get_mut(node) {
            light.wanted.remove(uid);
            light.prepared.remove(uid);
            self.dirty.insert(node.into());
        }
    }

    /// When the node was allowed to prepare claims of the ComputeDomain.
    pub fn prepared(&self, node: &str, uid: &str) -> Option<Instant> {
        self.nodes.get(node)?.prepared.get(uid).copied()
    }

    /// Whether the node lists the ComputeDomain's channel.
    pub fn lists(&self, node: &str, uid: &str) -> bool {
        let status = self.nodes.get(node).and_then(|light| light.object.as_ref()?.status.as_ref());
        status.is_some_and(|status| status.channels.contains_key(uid))
    }

    /// How many nodes have no domain, or a daemon that does not serve it.
    pub fn unserved(&self) -> usize {
        let serves = |light: &&Light| {
            let Some(object) = &light.object else { return false };
            let served = object.status.as_ref().and_then(|status| status.daemon.domain.as_ref());
            object.spec.domain.is_some() && served == object.spec.domain.as_ref()
        };
        self.nodes.values().filter(|light| !serves(light)).count()
    }

    /// The node goes down, or comes up again with another boot.
    pub fn power(&mut self, node: &str, down: bool) {
        if let Some(light) = self.nodes.get_mut(node) {
            light.down = down;
            if !down {
                light.boot = boot_id();
            }
            self.dirty.insert(node.into());
        }
    }

    /// Takes in what has been written, and lets every agent that it concerns decide and write.
    ///
    /// # Errors
    /// When the API server refuses a write for another reason than that somebody was faster.
    pub async fn turn(&mut self) -> anyhow::Result<()> {
        while let Some(change) = self.history.try_next()? {
            self.see(&change);
        }
        for node in std::mem::take(&mut self.dirty) {
            self.work(&node).await?;
        }
        Ok(())
    }

    /// Whether anything waits for a turn.
    pub fn is_idle(&self) -> bool {
        self.dirty.is_empty()
    }

    fn see(&mut self, change: &Change) {
        let name = || change.object()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let gone = change.event == EventType::Deleted;
        let mut told = 0;
        match change.kind() {
            "IMEXNode" if !gone => {
                told = 1;
                if let Ok(node) = serde_json::from_value(change.object().clone()) {
                    self.see_node(node);
                }
            }
            "IMEXDomain" => {
                let name = name();
                let serving = self.served_by.get(&name).cloned().unwrap_or_default();
                told = serving.len();
                self.dirty.extend(serving);
                match serde_json::from_value(change.object().clone()) {
                    Ok(domain) if !gone => self.see_domain(domain),
                    _ => drop(self.domains.remove(&name)),
                }
            }
            "ResourceClaimTemplate" if !gone => {
                if let Some(uid) = label(change.object()) {
                    self.templates.entry(uid.to_owned()).or_insert_with(Instant::now);
                }
            }
            "ComputeDomain" if gone => {
                let uid = change.object()["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
                self.templates.remove(&uid);
                self.gone.insert(uid, Instant::now());
            }
            _ => {}
        }
        self.tally.change(change, told);
    }

    fn see_node(&mut self, node: IMEXNode) {
        let name = node.name_any();
        let Some(light) = self.nodes.get_mut(&name) else { return };
        if light.object.as_ref().is_some_and(|known| version(known) >= version(&node)) {
            return;
        }
        let before = light.object.as_ref().and_then(|known| known.spec.domain.clone());
        if before != node.spec.domain {
            before.and_then(|before| self.served_by.get_mut(&before)?.take(&name));
            if let Some(domain) = &node.spec.domain {
                self.served_by.entry(domain.clone()).or_default().insert(name.clone());
            }
        }
        light.object = Some(node);
        self.dirty.insert(name);
    }

    fn see_domain(&mut self, domain: IMEXDomain) {
        let name = domain.name_any();
        if self.domains.get(&name).is_none_or(|known| version(known) < version(&domain)) {
            self.domains.insert(name, domain);
        }
    }

    /// What an agent does when something that it watches has changed.
    async fn work(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(light) = self.nodes.get(name) else { return Ok(()) };
        let Some(node) = &light.object else { return Ok(()) };
        let domain = node.spec.domain.as_ref().and_then(|domain| self.domains.get(domain));
        let report = light.report(name, node, domain);
        let wishes = light.wishes(node);
        let decision = decide(node, domain, &report, &wishes, false, NOW);
        let mut prepared = Vec::new();
        let mut lacking = Vec::new();
        for (uid, answer) in &decision.enters {
            match answer {
                Answer::Entered(_) if !light.prepared.contains_key(uid) => prepared.push(uid.clone()),
                Answer::NeedsChannel => lacking.extend(light.wanted.get(uid).cloned()),
                _ => {}
            }
        }
        let write = decision.status.map(|status| IMEXNode { status: Some(status), ..node.clone() });
        let domain = domain.cloned();
        if let Some(light) = self.nodes.get_mut(name) {
            light.prepared.extend(prepared.into_iter().map(|uid| (uid, Instant::now())));
        }
        if let Some(write) = write {
            let nodes: Api<IMEXNode> = Api::all(self.client.clone());
            match nodes.replace_status(name, &PostParams::default(), &write).await {
                Ok(written) => self.see_node(written),
                Err(error) => self.excuse(error, name)?,
            }
        }
        if let Some(domain) = domain.filter(|_| !lacking.is_empty()) {
            self.allocate(name, domain, &lacking).await?;
        }
        Ok(())
    }

    /// The first node of a ComputeDomain picks its number.
    async fn allocate(&mut self, node: &str, mut domain: IMEXDomain, cds: &[ComputeDomainRef]) -> anyhow::Result<()> {
        let mode = IsolationMode::Channel;
        for cd in cds {
            if let Ok(Allocate::Write { status, .. }) = allocate(&domain, cd, mode, names::DEFAULT_CHANNEL_COUNT) {
                domain.status = Some(status);
                let domains: Api<IMEXDomain> = Api::all(self.client.clone());
                match domains.replace_status(&domain.name_any(), &PostParams::default(), &domain).await {
                    Ok(written) => {
                        self.see_domain(written.clone());
                        domain = written;
                    }
                    Err(error) => return self.excuse(error, node),
                }
            }
        }
        self.dirty.insert(node.into());
        Ok(())
    }

    /// Who was slower looks again when the other's write is seen.
    fn excuse(&mut self, error: kube::Error, node: &str) -> anyhow::Result<()> {
        match error {
            kube::Error::Api(status) if status.is_conflict() => {
                self.tally.conflict();
                self.dirty.insert(node.into());
                Ok(())
            }
            error => Err(error).with_context(|| format!("a write of node {node} was refused")),
        }
    }
}

impl Light {
    fn report(&self, name: &str, node: &IMEXNode, domain: Option<&IMEXDomain>) -> Report {
        let member = domain.and_then(|domain| domain.spec.members.get(name));
        let daemon = match member {
            _ if self.down => {
                DaemonStatus { state: "DOWN".into(), message: Some("the node boots".into()), ..DaemonStatus::default() }
            }
            Some(member) => DaemonStatus {
                state: "READY".into(),
                domain: node.spec.domain.clone(),
                index: Some(member.index),
                since: NOW.into(),
                version: VERSION.into(),
                ..DaemonStatus::default()
            },
            None => DaemonStatus { state: "DOWN".into(), ..DaemonStatus::default() },
        };
        let domains = [&node.spec.domain, &node.spec.next].into_iter().flatten();
        Report {
            clique: Some(Some(self.clique.clone())),
            boot_id: Some(self.boot.clone()),
            channel_count: Some(names::DEFAULT_CHANNEL_COUNT),
            driver_version: Some(VERSION.into()),
            addresses: vec![self.address.clone()],
            daemon: Some(daemon),
            certificates: Some(domains.map(|domain| (domain.clone(), CERTIFIED_UNTIL.to_owned())).collect()),
            agent_version: env!("CARGO_PKG_VERSION").into(),
            ..Report::default()
        }
    }

    fn wishes(&self, node: &IMEXNode) -> Wishes {
        let listed = node.status.iter().flat_map(|status| status.channels.keys());
        let ready = !self.down && node.status.as_ref().is_some_and(|status| status.daemon.state == "READY");
        let enters = self.wanted.iter().filter(|_| ready);
        Wishes {
            enters: enters.map(|(uid, cd)| (uid.clone(), (cd.clone(), IsolationMode::Channel))).collect(),
            leaves: listed.filter(|uid| !self.wanted.contains_key(*uid)).cloned().collect(),
            keeps: BTreeMap::new(),
        }
    }
}

/// How long the fleet sleeps at most between two turns.
pub const BREATH: Duration = Duration::from_millis(2);

fn boot_id() -> String {
    Uuid::from_u128(fastrand::u128(..)).hyphenated().to_string()
}

fn version<K: ResourceExt>(object: &K) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// The UID on our label.
fn label(object: &Value) -> Option<&str> {
    object["metadata"]["labels"].get(names::COMPUTE_DOMAIN_LABEL)?.as_str()
}
