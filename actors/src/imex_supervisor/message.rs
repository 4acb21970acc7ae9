use heddle_core::imex::{DomainConfig, Standing};
use heddle_core::inventory::Inventory;
use heddle_core::runtime_guard::Guard;
use heddle_proto::runner::State;
use heddle_proto::runner::runner_client::RunnerClient;
use tonic::transport::Channel;

use super::host::HostSeen;
use crate::node_link::DomainView;
use crate::peer_identity::Identities;
use crate::runtime::{self, Overflow};

/// What an [`ImexSupervisor`](super::ImexSupervisor) is told.
#[derive(Debug)]
pub enum Message {
    /// From the node link.
    View(DomainView),
    /// From the inventory.
    Inventory(Inventory),
    /// From the runtime guard.
    Guard(Guard),
    /// From the peer identity.
    Identities(Identities),
    /// From the allocator: may the daemon be ended, or why not.
    MaySwitch(Result<(), String>),
    /// From the mode keeper.
    Standing(Standing),
    /// What was seen of the daemon that the host runs.
    Host(Box<HostSeen>),
    /// The runner was reached.
    Connected(RunnerClient<Channel>),
    /// What the runner says.
    State(Box<State>),
    /// The runner is gone; why.
    Lost(String),
    /// A request to the runner has ended.
    Stepped(Stepped),
    /// A report that waited is due.
    Due,
    /// Details that waited are due.
    Details,
    /// The pause after a failed request is over.
    Again,
}

/// How a request to the runner ended.
#[derive(Debug)]
pub enum Stepped {
    /// It has taken the configuration, or none.
    Applied(Option<Box<DomainConfig>>, Box<State>),
    /// It has taken the certificate.
    Renewed(Box<State>),
    /// It would have to end the daemon for this, and was not told that it may.
    Refused(Box<DomainConfig>),
    /// The allocator does not let the daemon be ended.
    Held(String),
    /// It failed.
    Failed(String),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::View(_) => "View",
            Self::Inventory(_) => "Inventory",
            Self::Guard(_) => "Guard",
            Self::Identities(_) => "Identities",
            Self::MaySwitch(_) => "MaySwitch",
            Self::Standing(_) => "Standing",
            Self::Host(_) => "Host",
            Self::Connected(_) => "Connected",
            Self::State(_) => "State",
            Self::Lost(_) => "Lost",
            Self::Stepped(_) => "Stepped",
            Self::Due => "Due",
            Self::Details => "Details",
            Self::Again => "Again",
        }
    }

    fn overflow(&self) -> Overflow {
        match self {
            Self::View(_)
            | Self::Inventory(_)
            | Self::Guard(_)
            | Self::Identities(_)
            | Self::MaySwitch(_)
            | Self::Standing(_)
            | Self::Host(_) => Overflow::Replace,
            // Not State: it must keep its place between Connected and Lost.
            _ => Overflow::Reject,
        }
    }
}
