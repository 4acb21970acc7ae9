use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;

use super::{Cd, TemplateKey};
use crate::api::{
    ComputeDomainRef, ComputeDomainStatus, DomainHealth, EpochMark, IMEXDomain, IMEXDomainStatus, IMEXNode, Member,
    Refusal,
};
use crate::protocol;

/// One thing to do for the controller, decided on the copies that it carries. Their resourceVersions guard it.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Mark the ComputeDomain as made under another's schema.
    Mark(Cd),
    /// Add our finalizer to the ComputeDomain.
    Guard(Cd),
    /// Take our finalizer off the ComputeDomain, and say what is left behind.
    Unguard {
        /// The ComputeDomain.
        cd: Box<Cd>,
        /// Where its template would be. Without its label the view may not know of it: it is looked for first.
        template: Option<TemplateKey>,
        /// The Events of it.
        notes: Vec<Note>,
    },
    /// Create the ComputeDomain's template.
    CreateTemplate {
        /// UID of the ComputeDomain.
        cd: String,
        /// The template.
        template: Box<ResourceClaimTemplate>,
    },
    /// Put labels and finalizers of the template as they are in this copy.
    MendTemplate(Box<ResourceClaimTemplate>),
    /// Take our finalizer off the template and delete it. If `unless_alive` names a UID, only if the API has no such
    /// ComputeDomain in the template's namespace.
    ReleaseTemplate {
        /// The template.
        template: Box<ResourceClaimTemplate>,
        /// The UID that must not exist.
        unless_alive: Option<String>,
    },
    /// Ask again later whether a foreign template still stands in the way.
    RecheckTemplate(TemplateKey),
    /// Write the ComputeDomain's status and say what has turned.
    Status {
        /// The ComputeDomain.
        cd: Box<Cd>,
        /// The new status.
        status: ComputeDomainStatus,
        /// The Events of it.
        notes: Vec<Note>,
    },
    /// Create the IMEXDomain.
    CreateDomain(Box<IMEXDomain>),
    /// Delete the IMEXDomain, which nobody uses.
    DeleteDomain {
        /// The domain.
        domain: Box<IMEXDomain>,
        /// Names of the nodes that are read anew before, see [`super::placement::vacant`].
        nodes: BTreeSet<String>,
    },
    /// Write the IMEXDomain.
    Domain(Box<DomainWrite>),
    /// Tell the node which domain it is about to serve, or that it stays.
    Announce {
        /// The node.
        node: Box<IMEXNode>,
        /// Name of the IMEXDomain.
        next: Option<String>,
    },
    /// Move the node into the domain; the copy of the domain is read anew for it.
    Move {
        /// The node.
        node: Box<IMEXNode>,
        /// Name of the IMEXDomain.
        target: String,
    },
    /// Fence the node.
    Fence {
        /// The node.
        node: Box<IMEXNode>,
        /// The fence.
        mark: EpochMark,
    },
    /// Tell the node why it is refused, or that it is not any more.
    Refuse {
        /// The node.
        node: Box<IMEXNode>,
        /// Why.
        refused: Option<Refusal>,
    },
    /// Delete the IMEXNode if its Node is gone and it lists no channel.
    Prune(Box<IMEXNode>),
    /// Objects seem to contradict each other, which they also do for the moment in which one watch is behind another.
    /// Read domain and nodes anew, restore what was lost from the map, count what is violated.
    Examine {
        /// Name of the IMEXDomain.
        domain: String,
        /// Names of the IMEXNodes in question.
        nodes: BTreeSet<String>,
    },
}

/// The changes of one IMEXDomain, at most one write of its spec and one of its status.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainWrite {
    /// The copy that this was decided on.
    pub domain: IMEXDomain,
    /// New members.
    pub members: Option<BTreeMap<String, Member>>,
    /// Channels to drain: their ComputeDomains are gone or being deleted.
    pub drain: BTreeSet<String>,
    /// Channels to drain if the API has no such ComputeDomain: the view has none, and may be behind.
    pub drain_if_gone: Vec<ComputeDomainRef>,
    /// Draining channels to open again: their ComputeDomains live, and somebody needs them after all.
    pub revive: BTreeSet<String>,
    /// Free what can be freed.
    pub free: bool,
    /// The nodes for that decision.
    pub nodes: Vec<IMEXNode>,
    /// Names of those that must be read anew for it, whether they are among `nodes` or not.
    pub reread: BTreeSet<String>,
    /// New health.
    pub health: Option<DomainHealth>,
}

impl DomainWrite {
    /// It changes nothing.
    pub fn is_empty(&self) -> bool {
        self.members.is_none() && !self.changes_channels() && self.health.is_none()
    }

    /// It says in other words what the status says of the domain's health, and changes nothing else: a daemon that starts
    /// has one word after the other for why it is not READY.
    pub fn changes_words_alone(&self) -> bool {
        let (Some(new), Some(status)) = (&self.health, &self.domain.status) else { return false };
        let told = status.health.as_ref().map(|old| DomainHealth { message: new.message.clone(), ..old.clone() });
        self.members.is_none() && !self.changes_channels() && told.as_ref() == Some(new)
    }

    /// The new status of `domain`, which is the copy that this was decided on, but for its members. `gone` are those of
    /// `drain_if_gone` that the API has no more, `nodes` the nodes, and those of `reread` as they are now. `None` if
    /// nothing is left to change.
    pub fn status(&self, domain: &IMEXDomain, gone: &BTreeSet<String>, nodes: &[IMEXNode]) -> Option<IMEXDomainStatus> {
        let mut domain = domain.clone();
        let before = domain.status.clone().unwrap_or_default();
        if self.free
            && let Some(status) = protocol::free(&domain, nodes)
        {
            domain.status = Some(status);
        }
        if let Some(status) = protocol::revive(&domain, &self.revive) {
            domain.status = Some(status);
        }
        let drain = self.drain.union(gone).cloned().collect();
        if let Some(status) = protocol::drain(&domain, &drain) {
            domain.status = Some(status);
        }
        let mut status = domain.status.unwrap_or_default();
        status.health = self.health.clone().or(status.health);
        (status != before).then_some(status)
    }

    /// It changes the channel map, which somebody waits for.
    pub fn changes_channels(&self) -> bool {
        !self.drain.is_empty() || !self.drain_if_gone.is_empty() || !self.revive.is_empty() || self.free
    }
}

/// An Event about a ComputeDomain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// A person should look at it.
    pub warning: bool,
    /// The reason.
    pub reason: String,
    /// What has happened and what to do.
    pub message: String,
}
