use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use heddle_core::api::{
    ComputeDomainRef, IMEXDomain, IMEXNode, IMEXNodeSpec, IMEXNodeStatus, IsolationMode, LinksState, PeerLinks,
};
use heddle_core::clique::CliqueId;
use heddle_core::names;
use heddle_core::protocol::{self, Allocate, Enter};
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt};

use crate::cluster::clique;

/// A light agent: one node's half of the protocol, with claims that the test says.
#[derive(Clone)]
pub struct Agent {
    pub name: String,
    client: Client,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    /// The ComputeDomains that claims of this node want, by UID.
    wanted: BTreeMap<String, (ComputeDomainRef, IsolationMode)>,
    /// Their channels.
    prepared: BTreeMap<String, (String, u32)>,
    daemon_fails: bool,
    silent: bool,
    /// `ImexChannelCount`, if it is not the usual one.
    channel_count: Option<u32>,
    /// Its clique, if it is not the usual one.
    clique: Option<CliqueId>,
}

impl State {
    fn channel_count(&self) -> u32 {
        self.channel_count.unwrap_or(names::DEFAULT_CHANNEL_COUNT)
    }
}

impl Agent {
    pub fn new(name: &str, client: Client) -> Self {
        Self { name: name.into(), client, state: Rc::default() }
    }

    /// A claim of the ComputeDomain is to be prepared.
    pub fn want(&self, cd: ComputeDomainRef, mode: IsolationMode) {
        self.state.borrow_mut().wanted.insert(cd.uid.clone(), (cd, mode));
    }

    /// Its last claim is unprepared.
    pub fn unwant(&self, uid: &str) {
        self.state.borrow_mut().wanted.remove(uid);
        self.state.borrow_mut().prepared.remove(uid);
    }

    /// Domain and number that the ComputeDomain has here.
    pub fn prepared(&self, uid: &str) -> Option<(String, u32)> {
        self.state.borrow().prepared.get(uid).cloned()
    }

    /// The daemon is READY, or not.
    pub fn break_daemon(&self, broken: bool) {
        self.state.borrow_mut().daemon_fails = broken;
    }

    /// The node's kernel module serves so many channels.
    pub fn set_channel_count(&self, count: u32) {
        self.state.borrow_mut().channel_count = Some(count);
    }

    /// The node's GPUs are in this clique.
    pub fn set_clique(&self, clique: CliqueId) {
        self.state.borrow_mut().clique = Some(clique);
    }

    /// The node is back after a reboot, and nothing runs on it.
    pub fn reboot(&self) {
        *self.state.borrow_mut() = State::default();
    }

    /// The node is dead from now on.
    pub fn kill(&self) {
        self.state.borrow_mut().silent = true;
    }

    /// Does whatever the objects ask for now.
    pub async fn work(&self) {
        // A refused write means that the objects have changed, and then there is another turn.
        let _ = self.turn().await;
    }

    async fn turn(&self) -> kube::Result<()> {
        if self.state.borrow().silent {
            return Ok(());
        }
        let nodes: Api<IMEXNode> = Api::all(self.client.clone());
        let domains: Api<IMEXDomain> = Api::all(self.client.clone());
        let Some(mut node) = nodes.get_opt(&self.name).await? else {
            nodes.create(&PostParams::default(), &IMEXNode::new(&self.name, IMEXNodeSpec::default())).await?;
            return Ok(());
        };
        let domain = match &node.spec.domain {
            Some(domain) => domains.get_opt(domain).await?,
            None => None,
        };
        let mut status = node.status.clone().unwrap_or_default();
        self.report(&node, domain.as_ref(), &mut status);
        node.status = Some(status.clone());
        if let Some(left) = protocol::leave(&node, domain.as_ref(), &self.unused(&status)) {
            status = left;
        } else if let Some(domain) = &domain {
            if let Some(entered) = self.enter(&domains, &node, domain).await? {
                status = entered;
            } else if let Some(observed) = protocol::observe(&node, domain) {
                status = observed;
            }
        }
        node.status = Some(status);
        let before = nodes.get(&self.name).await?;
        if before.status != node.status && before.resource_version() == node.resource_version() {
            nodes.replace_status(&self.name, &PostParams::default(), &node).await?;
        }
        Ok(())
    }

    fn report(&self, node: &IMEXNode, domain: Option<&IMEXDomain>, status: &mut IMEXNodeStatus) {
        let state = self.state.borrow();
        status.clique = Some(state.clique.unwrap_or_else(clique).to_string());
        status.channel_count = state.channel_count();
        status.boot_id = "boot".into();
        // It needs no signer: the controller looks at what is reported.
        for domain in [&node.spec.domain, &node.spec.next].into_iter().flatten() {
            status.certificates.entry(domain.clone()).or_insert_with(|| "2096-01-01T00:00:00Z".into());
        }
        status.addresses = vec![format!("10.0.0.{}", self.name.trim_start_matches('n'))];
        let member = domain.and_then(|domain| domain.spec.members.get(&self.name));
        if state.prepared.is_empty() && member.is_some() {
            status.daemon.domain = node.spec.domain.clone();
            status.daemon.index = member.map(|member| member.index);
        }
        status.daemon.state = if state.daemon_fails { "DOWN".into() } else { "READY".into() };
        status.driver_version = "580.95.05".into();
        let peers = domain.into_iter().flat_map(|domain| domain.spec.members.values());
        let connected =
            peers.filter(|peer| !peer.away && status.daemon.index != Some(peer.index)).map(|peer| peer.index);
        let mut connected: Vec<_> = connected.collect();
        connected.sort_unstable();
        status.daemon.links = Some(PeerLinks { state: LinksState::Known, connected, ..PeerLinks::default() });
        status.daemon.message = state.daemon_fails.then(|| "killed by the test".into());
    }

    fn unused(&self, status: &IMEXNodeStatus) -> std::collections::BTreeSet<String> {
        let state = self.state.borrow();
        status.channels.keys().filter(|uid| !state.wanted.contains_key(*uid)).cloned().collect()
    }

    async fn enter(
        &self,
        domains: &Api<IMEXDomain>,
        node: &IMEXNode,
        domain: &IMEXDomain,
    ) -> kube::Result<Option<IMEXNodeStatus>> {
        let wanted: Vec<_> = self.state.borrow().wanted.values().cloned().collect();
        let serving = node.status.as_ref().and_then(|status| status.daemon.domain.as_deref());
        for (cd, mode) in wanted {
            if serving != domain.metadata.name.as_deref() {
                continue;
            }
            match protocol::enter(node, domain, &cd, mode, "2026-01-01T00:00:00Z") {
                Enter::Already(channel) => {
                    self.state.borrow_mut().prepared.insert(cd.uid, (domain.name_any(), channel));
                }
                Enter::Write { status, .. } => return Ok(Some(status)),
                Enter::NeedsChannel => {
                    let count = self.state.borrow().channel_count();
                    if let Ok(Allocate::Write { status, .. }) = protocol::allocate(domain, &cd, mode, count) {
                        let allocated = IMEXDomain { status: Some(status), ..domain.clone() };
                        domains.replace_status(&domain.name_any(), &PostParams::default(), &allocated).await?;
                        return Ok(None);
                    }
                }
                Enter::Wait(_) | Enter::Refuse(_) => {}
            }
        }
        Ok(None)
    }
}
