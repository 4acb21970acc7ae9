use std::sync::Arc;

use heddle_core::api::{ComputeDomainRef, IMEXDomain, IsolationMode};
use heddle_core::claim::{ClaimKey, Grant, Prepared};
use heddle_core::fault::Fault;
use heddle_core::imex::{Answer, Standing};
use heddle_core::inventory::Inventory;
use heddle_core::runtime_guard::Guard;

use crate::node_link::DomainView;
use crate::runtime::{self, AskError, Overflow, Reply};

/// The domain in which the node's daemon is READY as the member that it should be, or why it is in none, in words.
pub type Ready = Result<String, String>;

/// What a [`ChannelAllocator`](super::ChannelAllocator) is told.
#[derive(Debug)]
pub enum Message {
    /// From a claim's preparer: enter the ComputeDomain's channel. Answered when the node has entered durably; until then
    /// whatever is missing is waited for.
    Enter {
        /// The claim.
        claim: ClaimKey,
        /// The ComputeDomain.
        cd: ComputeDomainRef,
        /// Its isolation mode.
        mode: IsolationMode,
        /// Where the answer goes.
        reply: Reply<Result<Grant, Fault>>,
    },
    /// What an `Enter` still waits for, in words.
    Missing {
        /// UID of the claim.
        claim_uid: String,
        /// Where the answer goes.
        reply: Reply<Fault>,
    },
    /// The claim gives up: its `Enter` is forgotten, and what was entered for it alone is left.
    Cancel {
        /// UID of the claim.
        claim_uid: String,
    },
    /// The claim is undone durably.
    Leave {
        /// UID of the claim.
        claim_uid: String,
        /// UID of the ComputeDomain.
        cd_uid: String,
    },
    /// All claims of the checkpoints, before the first call of the kubelet.
    Restore {
        /// Those that hold a channel.
        claims: Vec<Prepared>,
    },
    /// Is the claim's entry still in the node's object? Puts it back if it was lost.
    Verify {
        /// The claim, as its checkpoint tells it.
        prepared: Prepared,
        /// Where the answer goes.
        reply: Reply<Result<(), Fault>>,
    },
    /// From the IMEX supervisor: may the daemon be ended? If so, no claim is granted a channel until the next `Daemon`.
    Suspend {
        /// Where the answer goes; refused with the reason.
        reply: Reply<Result<(), String>>,
    },
    /// From the IMEX supervisor.
    Daemon(Ready),
    /// From the runtime guard.
    Guard(Guard),
    /// From the mode keeper.
    Standing(Standing),
    /// From the node link.
    View(DomainView),
    /// From the inventory.
    Inventory(Inventory),
    /// The node link's answer to an enter.
    Entered {
        /// UID of the ComputeDomain.
        cd_uid: String,
        /// Its answer.
        answer: Result<Answer, AskError>,
    },
    /// The random wait before an allocation is over.
    SecondLook {
        /// UID of the ComputeDomain.
        cd_uid: String,
    },
    /// The ComputeDomain was read anew, before a channel is allocated for it.
    Read {
        /// UID of the ComputeDomain.
        cd_uid: String,
        /// Why it is to get none.
        outcome: Result<(), Fault>,
    },
    /// An allocation has ended.
    Allocated {
        /// UID of the ComputeDomain.
        cd_uid: String,
        /// The domain as it is now.
        outcome: Result<Allocated, Fault>,
    },
    /// The node link's answer to a keep.
    Kept {
        /// UID of the ComputeDomain.
        cd_uid: String,
        /// Its answer.
        answer: Result<Answer, AskError>,
    },
    /// The pause after a failure is over.
    Again,
}

/// How the write of an allocation ended; the domain as it is now.
#[derive(Clone, Debug)]
pub enum Allocated {
    /// Written.
    Done(Arc<IMEXDomain>),
    /// Somebody else wrote first.
    Conflict(Arc<IMEXDomain>),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Enter { .. } => "Enter",
            Self::Missing { .. } => "Missing",
            Self::Cancel { .. } => "Cancel",
            Self::Leave { .. } => "Leave",
            Self::Restore { .. } => "Restore",
            Self::Verify { .. } => "Verify",
            Self::Suspend { .. } => "Suspend",
            Self::Daemon(_) => "Daemon",
            Self::Guard(_) => "Guard",
            Self::Standing(_) => "Standing",
            Self::View(_) => "View",
            Self::Inventory(_) => "Inventory",
            Self::Entered { .. } => "Entered",
            Self::SecondLook { .. } => "SecondLook",
            Self::Read { .. } => "Read",
            Self::Allocated { .. } => "Allocated",
            Self::Kept { .. } => "Kept",
            Self::Again => "Again",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::Daemon(_) | Self::Guard(_) | Self::Standing(_) | Self::View(_) | Self::Inventory(_) => {
                Overflow::Replace
            }
            _ => Overflow::Reject,
        }
    }
}
