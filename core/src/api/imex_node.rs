use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What one node must serve and what it has entered. Named after its Node.
///
/// The spec is written by the controller alone, the status by that node's agent alone: nobody contends. It outlives
/// its Node while it lists a channel.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "imex.heddle.dev",
    version = "v1alpha1",
    kind = "IMEXNode",
    plural = "imexnodes",
    status = "IMEXNodeStatus",
    derive = "PartialEq",
    printcolumn(name = "Domain", type_ = "string", json_path = ".spec.domain"),
    printcolumn(name = "Serves", type_ = "string", json_path = ".status.daemon.domain"),
    printcolumn(name = "Daemon", type_ = "string", json_path = ".status.daemon.state"),
    printcolumn(
        name = "Guarded",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="RuntimeGuarded")].status"#
    ),
    printcolumn(name = "Member", type_ = "string", json_path = r#".status.conditions[?(@.type=="Member")].reason"#),
    printcolumn(name = "Clique", type_ = "string", json_path = ".status.clique"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct IMEXNodeSpec {
    /// Name of the IMEXDomain that this node's daemon must serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Name of the IMEXDomain that it is about to serve: the agent gets a certificate for it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The node may enter a channel only with a view of the domain at least as new as this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<EpochMark>,
    /// Why the node gets no place in its clique's IMEX domain, or gives no new claim a channel there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// Why a node is refused. Claims that are prepared on it go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// One of the reasons of conditions and Events.
    pub reason: String,
    /// What is wrong with the node, and what to do.
    pub message: String,
}

/// Who runs a node's IMEX daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ImexMode {
    /// Heddle's runner.
    #[default]
    DriverManaged,
    /// The host: systemd, or the cluster's own tools. Heddle starts, moves and ends nothing.
    HostManaged,
}

impl fmt::Display for ImexMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DriverManaged => "driver-managed",
            Self::HostManaged => "host-managed",
        })
    }
}

impl FromStr for ImexMode {
    type Err = String;

    /// As it is written on command lines, in Helm values or in the API.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "driver-managed" | "driverManaged" | "DriverManaged" => Ok(Self::DriverManaged),
            "host-managed" | "hostManaged" | "HostManaged" => Ok(Self::HostManaged),
            _ => Err("expected driver-managed or host-managed".into()),
        }
    }
}

/// A point in the history of an IMEX domain's channel map.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct EpochMark {
    /// Name of the IMEXDomain.
    pub domain: String,
    /// Its `status.epoch`.
    pub epoch: u64,
}

/// What a node's agent reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IMEXNodeStatus {
    /// `<clusterUUID>.<cliqueId>`; absent on a node without NVLink fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clique: Option<String>,
    /// `/proc/sys/kernel/random/boot_id`.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
    /// `ImexChannelCount` of the kernel module.
    #[serde(default)]
    pub channel_count: u32,
    /// Version of the NVIDIA driver.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub driver_version: String,
    /// Addresses at which peers may reach the daemon, of either family, the preferred one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// The IMEX daemon as it is.
    #[serde(default)]
    pub daemon: DaemonStatus,
    /// The channels this node has entered, by ComputeDomain UID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub channels: BTreeMap<String, NodeChannel>,
    /// The newest channel map that this agent has decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<EpochMark>,
    /// Who runs the IMEX daemon.
    #[serde(default)]
    pub imex_mode: ImexMode,
    /// How the agent authenticates the daemon's peers; absent where that is the host's business.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_authentication: Option<String>,
    /// Until when the node can meet the peers of IMEX domains, RFC 3339, by the name of the IMEXDomain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub certificates: BTreeMap<String, String>,
    /// `ImexMode`, `Member`, `PeerIdentity`, `RuntimeGuarded`, `Preflight`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Version of the agent.
    #[serde(default)]
    pub agent_version: String,
}

/// A channel that a node has entered for a ComputeDomain.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct NodeChannel {
    /// The number.
    pub channel: u32,
    /// Name of the IMEXDomain that the number is of.
    pub domain: String,
    /// When it was entered, or written anew after a start of the agent, RFC 3339.
    #[serde(default)]
    pub since: String,
}

/// A node's IMEX daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DaemonStatus {
    /// The daemon's own word (`READY`, `WAITING_FOR_PEERS`, …), or `DOWN` while none runs.
    #[serde(default)]
    pub state: String,
    /// Name of the IMEXDomain that it was started for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Its index by its own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// SHA-256 of its node map, in hex: alike on all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_map_hash: Option<String>,
    /// Since when the state holds, RFC 3339.
    #[serde(default)]
    pub since: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Peers to which its connection stands.
    #[serde(default)]
    pub peers_connected: u32,
    /// Which peers those are; absent until the daemon has been asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<PeerLinks>,
    /// What NVML says must be done, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_action: Option<String>,
    /// End of its certificate's life, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_not_after: Option<String>,
    /// Why it is not READY, or what could not be checked of a host's daemon, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The daemon's connections by its own word, peers by their index in the domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerLinks {
    /// `Known`, or `Unknown` while the daemon cannot be asked: the rest is then what it said last.
    pub state: LinksState,
    /// Since when `state` holds, RFC 3339.
    #[serde(default)]
    pub since: String,
    /// Why it cannot be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Peers to which the connection stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connected: Vec<u32>,
    /// Peers that have an address and to which it does not stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingPeer>,
}

/// A peer to which a daemon's connection does not stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct MissingPeer {
    /// Its index.
    pub index: u32,
    /// The daemon's own word for the connection.
    pub state: String,
}

/// Whether a daemon's connections are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LinksState {
    /// They are as it said.
    Known,
    /// They were as it said last, and may be otherwise now.
    #[default]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_from_flags_from_helm_values_and_from_the_api() {
        for mode in [ImexMode::DriverManaged, ImexMode::HostManaged] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!(format!("{mode:?}").parse(), Ok(mode), "as the API writes it");
        }
        assert_eq!("hostManaged".parse(), Ok(ImexMode::HostManaged));
        assert_eq!("driverManaged".parse(), Ok(ImexMode::DriverManaged));
        assert!("host".parse::<ImexMode>().unwrap_err().contains("host-managed"));
    }
}
