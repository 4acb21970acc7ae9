//! Errors that speak to a person, sorted where they are born.

use std::fmt;

/// What may be done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Trying again cannot help: the object itself must change.
    Permanent,
    /// Trying again may help.
    Retryable,
    /// This process cannot go on; it ends with a non-zero exit code.
    Fatal,
}

/// One thing that went wrong: the same words go to the kubelet, the condition, the Event and the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What may be done about it.
    pub class: Class,
    /// CamelCase reason of conditions and Events, from a closed set: the constants in [`reason`].
    pub reason: &'static str,
    /// What happened, to which object, what to do. One sentence, no trailing full stop.
    pub message: String,
}

impl Fault {
    /// A fault that no retry mends.
    pub fn permanent(reason: &'static str, message: impl fmt::Display) -> Self {
        Self { class: Class::Permanent, reason, message: message.to_string() }
    }

    /// A fault that may pass.
    pub fn retryable(reason: &'static str, message: impl fmt::Display) -> Self {
        Self { class: Class::Retryable, reason, message: message.to_string() }
    }

    /// The same, with how long it has lasted.
    #[must_use]
    pub fn lasting(self, seconds: u64) -> Self {
        Self { message: format!("{} (for {seconds} s)", self.message), ..self }
    }

    /// A fault that ends the process.
    pub fn fatal(reason: &'static str, message: impl fmt::Display) -> Self {
        Self { class: Class::Fatal, reason, message: message.to_string() }
    }
}

/// A text in which words of tenants may be, without what a terminal obeys instead of showing it: control characters, line
/// and paragraph separators, and those that turn the direction of writing.
pub fn plain(text: &str) -> impl Iterator<Item = char> {
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(move |c| if obeyed(c) { ' ' } else { c })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_not_shown() {
        let plain = |text| plain(text).collect::<String>();
        assert_eq!(plain("a\nb\u{1b}[31m\u{202e}c\u{2028}d\u{2066}\u{feff}e"), "a b [31m c d  e");
        assert_eq!(plain("größer, 大きい"), "größer, 大きい");
    }

    #[test]
    fn how_long_it_has_lasted_is_said_behind_what_is_missing() {
        let fault = Fault::retryable(reason::DAEMON_NOT_READY, "the IMEX daemon of this node is not READY");
        assert_eq!(fault.lasting(38).message, "the IMEX daemon of this node is not READY (for 38 s)");
    }
}

/// Reasons, as they appear in conditions, Events and metric labels.
pub mod reason {
    macro_rules! reasons {
        ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
            $($(#[$doc])* pub const $name: &str = $text;)*
            /// Every reason, for zero series and for the troubleshooting page.
            pub const ALL: &[&str] = &[$($text),*];
        };
    }
    reasons! {
        /// The claim's opaque config cannot be used.
        INVALID_CONFIG = "InvalidConfig";
        /// The claim is not allocated to this node and driver, or is another claim of the same name.
        CLAIM_MISMATCH = "ClaimMismatch";
        /// A container uses claims of two ComputeDomains.
        TWO_CHANNELS = "TwoChannelsInContainer";
        /// The claim names a ComputeDomain of another namespace.
        NAMESPACE_MISMATCH = "NamespaceMismatch";
        /// The ComputeDomain does not exist, or another one has its name.
        COMPUTE_DOMAIN_GONE = "ComputeDomainGone";
        /// The ComputeDomain is being deleted.
        COMPUTE_DOMAIN_DELETING = "ComputeDomainDeleting";
        /// The node's NVLink fabric is not usable.
        FABRIC_UNHEALTHY = "FabricUnhealthy";
        /// The node's IMEX daemon is not READY in the domain that the claim needs.
        DAEMON_NOT_READY = "DaemonNotReady";
        /// The node does not serve the IMEX domain that the claim needs yet.
        DOMAIN_PENDING = "DomainPending";
        /// The domain's view of this node is older than its fence.
        VIEW_STALE = "ViewStale";
        /// The ComputeDomain's channel is being drained; a new one follows.
        CHANNEL_DRAINING = "ChannelDraining";
        /// The ComputeDomain has no channel in this IMEX domain yet.
        CHANNEL_PENDING = "ChannelPending";
        /// No number is free.
        CHANNELS_EXHAUSTED = "ChannelsExhausted";
        /// Objects disagree about a channel; nothing is re-numbered by itself.
        CHANNEL_CLASH = "ChannelClash";
        /// An unused channel is being taken back, because another ComputeDomain found none.
        CHANNEL_RECLAIMED = "ChannelReclaimed";
        /// A lost node keeps a channel from being given to others.
        CHANNEL_QUARANTINED = "ChannelQuarantined";
        /// A person has taken channels off a node that is off for good.
        CHANNEL_RELEASED = "ChannelReleased";
        /// A node that may run containers is not to be released.
        NODE_ALIVE = "NodeAlive";
        /// The node lists no such channel.
        NOTHING_TO_RELEASE = "NothingToRelease";
        /// The kernel module of the node serves no IMEX channel that could be given away.
        NO_CHANNELS = "NoImexChannels";
        /// The node's own files (CDI, checkpoint, device list) could not be read or written.
        NODE_IO = "NodeIO";
        /// A claim's checkpoint is not as it was written; it is in quarantine.
        CHECKPOINT_CORRUPT = "CheckpointCorrupt";
        /// The API server could not be asked.
        API_UNAVAILABLE = "ApiUnavailable";
        /// Another call for the same claim is under way, or has undone it.
        SUPERSEDED = "Superseded";
        /// This agent stands by: another one acts for the node and has not ended yet.
        STANDING_BY = "StandingBy";
        /// The time the kubelet gives is over.
        DEADLINE = "DeadlineExceeded";
        /// A template of the wanted name exists and is not ours.
        TEMPLATE_CONFLICT = "TemplateConflict";
        /// A CustomResourceDefinition that the API serves is not this release's.
        CRD_OUTDATED = "CRDOutdated";
        /// What a ComputeDomain asked for may have been dropped when it was made.
        FIELDS_DROPPED = "FieldsDropped";
        /// The API server does not take the ComputeDomain's template.
        TEMPLATE_REFUSED = "TemplateRefused";
        /// The ComputeDomain's spec cannot be served.
        INVALID_SPEC = "InvalidSpec";
        /// The ComputeDomain asks for more nodes than the cluster has.
        TOO_FEW_NODES = "TooFewNodes";
        /// An IMEX domain has no index left for this node.
        DOMAIN_FULL = "DomainFull";
        /// The domain's members differ in something that must be equal.
        MEMBER_MISMATCH = "MemberMismatch";
        /// The node has no address of the family in which the domain's members meet.
        NO_COMMON_FAMILY = "NoCommonAddressFamily";
        /// Nodes of an IMEX domain say that they are not connected with each other.
        PEERS_DISCONNECTED = "PeersDisconnected";
        /// The driver says that the node's part in its IMEX domain must be recovered.
        RECOVERY_NEEDED = "RecoveryNeeded";
        /// The NVIDIA Container Toolkit has not described the GPU, so no container can be given it.
        NO_TOOLKIT_ENTRY = "GpuNotInToolkit";
        /// NVML could not be used.
        NVML = "NvmlUnavailable";
        /// The node's container runtime gives pods IMEX channels by itself.
        RUNTIME_GUARD_OPEN = "RuntimeGuardOpen";
        /// It cannot be told whether the node's container runtime gives pods IMEX channels by itself.
        RUNTIME_GUARD_UNKNOWN = "RuntimeGuardUnknown";
        /// The node has no certificate with which its IMEX daemon could meet its peers.
        NO_PEER_IDENTITY = "PeerIdentityMissing";
        /// A request for a peer certificate was not made by the agent of a node.
        NOT_AN_AGENT = "NotAnAgent";
        /// A request for a peer certificate asks for something else or for more.
        REQUEST_NOT_EXACT = "RequestNotExact";
        /// A node asks for the identity of an IMEX domain that it has nothing to do with.
        NOT_A_MEMBER = "NotAMember";
        /// A node asks for more peer certificates than it can need.
        TOO_MANY_REQUESTS = "TooManyRequests";
        /// The node's IMEX daemon is the host's, so no ComputeDomain can have one of its own there.
        HOST_MANAGED_IMEX = "HostManagedImex";
        /// The node is to change its IMEX mode, and claims are prepared under the one before.
        IMEX_MODE_PENDING = "ImexModePending";
        /// Agent and controller authenticate the peers of IMEX daemons differently.
        AUTHENTICATION_MISMATCH = "AuthenticationMismatch";
        /// A part of this process failed, is busy or is being restarted.
        ACTOR_FAILED = "ActorFailed";
        /// A setting cannot be used.
        SETTINGS = "InvalidSettings";
    }

    /// The reason of this text, if it is one.
    pub fn named(text: &str) -> Option<&'static str> {
        ALL.iter().copied().find(|reason| *reason == text)
    }
}
