use heddle_core::api::IMEXNodeStatus;
use heddle_core::claim::ClaimKey;
use heddle_core::fault::Fault;
use heddle_core::inventory::Inventory;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::claim_preparer::{PrepareReply, UnprepareReply};
use super::context::Driver;
use crate::runtime::{self, Overflow, Reply};

/// What a [`DraServer`] is told.
#[derive(Debug)]
pub enum Message {
    /// From the kubelet.
    Prepare {
        /// Who was asked.
        driver: Driver,
        /// The claim.
        claim: ClaimKey,
        /// Others of the same pod are asked for in the same call.
        together: bool,
        /// Where the answer goes.
        reply: PrepareReply,
    },
    /// From the kubelet.
    Unprepare {
        /// Who was asked.
        driver: Driver,
        /// The claim.
        claim: ClaimKey,
        /// Where the answer goes.
        reply: UnprepareReply,
    },
    /// What a claim still waits for, in words.
    Missing {
        /// Who was asked.
        driver: Driver,
        /// UID of the claim.
        uid: String,
        /// Where the answer goes.
        reply: Reply<Fault>,
    },
    /// From the kubelet: it knows the driver now, or why it does not want it.
    Registered {
        /// Which one.
        driver: Driver,
        /// Why not.
        refused: Option<String>,
    },
    /// From the inventory.
    Inventory(Inventory),
    /// By which lost checkpoints are made anew.
    Rebuild {
        /// The node's own object.
        status: Box<IMEXNodeStatus>,
        /// All claims that exist.
        claims: Vec<ResourceClaim>,
    },
    /// From the ChannelAllocator: it has been built anew and does not know what the claims hold.
    Restore,
    /// No other agent acts for the node any more: this one does.
    Turn,
    /// Something may have happened to a CDI file or a socket.
    FilesChanged,
    /// A claim of an earlier boot does not exist any more.
    Leftover {
        /// Who prepared it.
        driver: Driver,
        /// The claim.
        claim: ClaimKey,
    },
    /// Nothing is under way for a claim.
    AtRest {
        /// Who was asked.
        driver: Driver,
        /// UID of the claim.
        uid: String,
        /// Calls that its preparer has taken.
        taken: u64,
    },
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "Prepare",
            Self::Unprepare { .. } => "Unprepare",
            Self::Missing { .. } => "Missing",
            Self::Registered { .. } => "Registered",
            Self::Inventory(_) => "Inventory",
            Self::Rebuild { .. } => "Rebuild",
            Self::Restore => "Restore",
            Self::Turn => "Turn",
            Self::FilesChanged => "FilesChanged",
            Self::Leftover { .. } => "Leftover",
            Self::AtRest { .. } => "AtRest",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::Inventory(_) | Self::Restore | Self::FilesChanged => Overflow::Replace,
            _ => Overflow::Reject,
        }
    }
}
