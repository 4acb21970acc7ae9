use std::collections::{BTreeMap, BTreeSet};

use heddle_core::api::{IMEXDomain, IMEXDomainStatus, IMEXNode, IMEXNodeSpec, IMEXNodeStatus, Member};
use heddle_core::controller::{Cd, LabelledClaim};
use kube::Resource;

/// The API server: objects with resourceVersions, and writes that name the one they were decided on.
#[derive(Clone, Default)]
pub struct Store {
    pub domains: BTreeMap<String, IMEXDomain>,
    pub nodes: BTreeMap<String, IMEXNode>,
    pub cds: BTreeMap<String, Cd>,
    pub claims: BTreeMap<String, LabelledClaim>,
    /// The Nodes that exist.
    pub alive: BTreeSet<String>,
    version: u64,
}

/// A write that has been sent. It arrives at some time, or never.
#[derive(Clone, Debug)]
pub struct Sent {
    pub kind: Change,
    /// The object, and the resourceVersion that guards it; none is a write without guard.
    pub name: String,
    pub version: Option<String>,
}

#[derive(Clone, Debug)]
pub enum Change {
    NodeSpec(IMEXNodeSpec),
    NodeStatus(Box<IMEXNodeStatus>),
    NodeDelete,
    DomainCreate(Box<IMEXDomain>),
    DomainMembers(BTreeMap<String, Member>),
    DomainStatus(IMEXDomainStatus),
    DomainDelete,
}

pub fn version<K: Resource>(object: &K) -> Option<String> {
    object.meta().resource_version.clone()
}

impl Store {
    fn stamp<K: Resource>(&mut self, object: &mut K) {
        self.version += 1;
        object.meta_mut().resource_version = Some(self.version.to_string());
    }

    pub fn put_node(&mut self, mut node: IMEXNode) {
        self.version += 1;
        node.metadata.uid = Some(format!("node-{}", self.version));
        self.stamp(&mut node);
        self.nodes.insert(node.metadata.name.clone().unwrap(), node);
    }

    /// The resourceVersion given last.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the write was accepted.
    pub fn arrive(&mut self, sent: Sent) -> bool {
        let Sent { kind, name, version: guard } = sent;
        if let Change::DomainCreate(mut domain) = kind {
            if self.domains.contains_key(&name) {
                return false;
            }
            domain.metadata.uid = Some(format!("domain-{}", self.version + 1));
            self.stamp(&mut *domain);
            self.domains.insert(name, *domain);
            return true;
        }
        let current = match kind {
            Change::NodeSpec(_) | Change::NodeStatus(_) | Change::NodeDelete => self.nodes.get(&name).and_then(version),
            _ => self.domains.get(&name).and_then(version),
        };
        if current.is_none() || (guard.is_some() && guard != current) {
            return false;
        }
        match kind {
            Change::NodeDelete => {
                self.nodes.remove(&name);
            }
            Change::DomainDelete => {
                self.domains.remove(&name);
            }
            Change::NodeSpec(_) | Change::NodeStatus(_) => {
                let mut node = self.nodes[&name].clone();
                match kind {
                    Change::NodeSpec(spec) => node.spec = spec,
                    Change::NodeStatus(status) => node.status = Some(*status),
                    _ => unreachable!(),
                }
                self.stamp(&mut node);
                self.nodes.insert(name, node);
            }
            Change::DomainCreate(_) | Change::DomainMembers(_) | Change::DomainStatus(_) => {
                let mut domain = self.domains[&name].clone();
                match kind {
                    Change::DomainMembers(members) => domain.spec.members = members,
                    Change::DomainStatus(status) => domain.status = Some(status),
                    _ => unreachable!(),
                }
                self.stamp(&mut domain);
                self.domains.insert(name, domain);
            }
        }
        true
    }
}
