use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heddle_core::api::{ComputeDomainRef, DaemonStatus, IMEXDomain, IMEXNode, IsolationMode, NodeChannel};
use heddle_core::condition::Draft;
use heddle_core::identity::Authentication;
use heddle_core::imex::{Answer, Standing};
use heddle_core::inventory::Inventory;

use super::write::Written;
use crate::runtime::{self, Overflow, Reply};

/// The node's own object and the IMEX domain that it names, as they are known now.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainView {
    /// The IMEXNode.
    pub node: Arc<IMEXNode>,
    /// The IMEXDomain of `node.spec.domain`; none while it names none or it has not been read.
    pub domain: Option<Arc<IMEXDomain>>,
}

/// What the node's files say of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Boot id; none while it cannot be read.
    pub boot_id: Option<String>,
    /// `ImexChannelCount`; none while the kernel module is not loaded.
    pub channel_count: Option<u32>,
    /// Addresses for peers, the preferred one first.
    pub addresses: Vec<String>,
}

/// What a [`NodeLink`](super::NodeLink) is told.
#[derive(Debug)]
pub enum Message {
    /// From the watch of the own object; none if it does not exist.
    NodeSeen(Option<Box<IMEXNode>>),
    /// From the watch of the domain, or from the allocator which has just written it.
    DomainSeen {
        /// Name of the IMEXDomain.
        name: String,
        /// None if it does not exist.
        domain: Option<Arc<IMEXDomain>>,
    },
    /// From the inventory.
    Inventory(Inventory),
    /// From the IMEX supervisor.
    Daemon(DaemonStatus),
    /// From the mode keeper.
    Standing(Standing),
    /// How the peers of a daemon of ours are authenticated.
    Authentication(Authentication),
    /// From the peer identity: until when the node can meet the peers of IMEX domains.
    Certificates(BTreeMap<String, String>),
    /// From whoever knows of it: a condition of the node.
    Condition(Draft),
    /// From the allocator: enter this ComputeDomain's channel. Answered when the object says so, or says why not.
    Enter {
        /// Whose channel.
        cd: ComputeDomainRef,
        /// How it is kept apart.
        mode: IsolationMode,
        /// Where the answer goes.
        reply: Reply<Answer>,
    },
    /// From the allocator: leave these. Retried until it is done.
    Leave {
        /// UIDs of the ComputeDomains.
        cd_uids: BTreeSet<String>,
    },
    /// From the allocator: a prepared claim rests on this entry; put it back if it was lost.
    Keep {
        /// UID of the ComputeDomain.
        cd_uid: String,
        /// The entry.
        entry: NodeChannel,
        /// Where the answer goes.
        reply: Reply<Answer>,
    },
    /// A write has ended.
    Written(Written),
    /// The pause after a failed write is over.
    Retry,
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::NodeSeen(_) => "NodeSeen",
            Self::DomainSeen { .. } => "DomainSeen",
            Self::Inventory(_) => "Inventory",
            Self::Daemon(_) => "Daemon",
            Self::Standing(_) => "Standing",
            Self::Authentication(_) => "Authentication",
            Self::Certificates(_) => "Certificates",
            Self::Condition(_) => "Condition",
            Self::Enter { .. } => "Enter",
            Self::Leave { .. } => "Leave",
            Self::Keep { .. } => "Keep",
            Self::Written(_) => "Written",
            Self::Retry => "Retry",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::NodeSeen(_) | Self::Inventory(_) | Self::Daemon(_) | Self::Certificates(_) => Overflow::Replace,
            // Not DomainSeen: a copy of the domain that the node has just left must not push out one of the new.
            _ => Overflow::Reject,
        }
    }
}
