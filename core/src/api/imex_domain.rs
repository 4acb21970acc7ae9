use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One IMEX domain: a set of daemons with the same node map.
///
/// The spec is written by the controller alone. `status.channels` is the channel map: agents add, the controller
/// drains and removes, every write guarded by the resourceVersion.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "imex.heddle.dev",
    version = "v1alpha1",
    kind = "IMEXDomain",
    plural = "imexdomains",
    status = "IMEXDomainStatus",
    derive = "PartialEq",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.kind"),
    printcolumn(name = "Clique", type_ = "string", json_path = ".spec.clique"),
    printcolumn(name = "Members", type_ = "integer", json_path = ".status.health.expected"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.health.ready"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.health.state"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("self.kind == oldSelf.kind && self.clique == oldSelf.clique && (!has(self.computeDomain) || !has(oldSelf.computeDomain) || self.computeDomain == oldSelf.computeDomain)").message("kind, clique and computeDomain are immutable"))]
#[x_kube(validation = Rule::new("(self.kind == 'Exclusive') == has(self.computeDomain)").message("an Exclusive IMEXDomain names its computeDomain, a Shared one names none"))]
#[serde(rename_all = "camelCase")]
pub struct IMEXDomainSpec {
    /// `<clusterUUID>.<cliqueId>`.
    #[schemars(length(min = 1, max = 253))]
    pub clique: String,
    /// Whether several ComputeDomains share it.
    #[serde(default)]
    pub kind: DomainKind,
    /// The one ComputeDomain of an exclusive domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_domain: Option<ComputeDomainRef>,
    /// Lines of the node map.
    #[serde(default = "default_max_members")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_members: u32,
    /// The members by node name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub members: BTreeMap<String, Member>,
}

fn default_max_members() -> u32 {
    crate::names::DEFAULT_MAX_MEMBERS
}

/// Whether several ComputeDomains share an IMEX domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DomainKind {
    /// All ComputeDomains of the clique with `isolationMode: Channel`.
    #[default]
    Shared,
    /// One ComputeDomain with `isolationMode: Domain`.
    Exclusive,
}

/// A ComputeDomain, by all that tells it from another of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ComputeDomainRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, the key of everything.
    pub uid: String,
}

/// A node in an IMEX domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Member {
    /// Line of the node map, from 0; kept for the life of the Node.
    pub index: u32,
    /// Address at which peers reach the daemon; empty while it is not known.
    #[serde(default)]
    pub address: String,
    /// The index is kept while the node serves an exclusive domain; others do not expect it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub away: bool,
}

/// The channel map and the health of an IMEX domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IMEXDomainStatus {
    /// The channels by ComputeDomain UID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub channels: BTreeMap<String, ChannelEntry>,
    /// Counts the changes of `channels`.
    #[serde(default)]
    pub epoch: u64,
    /// The number given last: the search for a free one starts behind it, so that a freed number rests.
    #[serde(default)]
    pub last_channel: u32,
    /// Condensed from the members' own reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<DomainHealth>,
}

impl IMEXDomainStatus {
    /// Whether an entry is of an epoch that the map has not come to: no fence reaches it.
    pub fn is_behind(&self, entry: &ChannelEntry) -> bool {
        entry.epoch > self.epoch
    }
}

/// A channel of one ComputeDomain.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelEntry {
    /// 1 … count−1.
    pub channel: u32,
    /// Whether nodes may enter.
    pub state: ChannelState,
    /// The epoch of the entry's last change.
    pub epoch: u64,
    /// `namespace/name`, for people.
    pub compute_domain: String,
}

/// Whether nodes may enter a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ChannelState {
    /// They may.
    #[default]
    Active,
    /// They may not; the number is freed once nobody uses it.
    Draining,
}

/// Health of an IMEX domain over its expected members: those that are neither away nor refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainHealth {
    /// How many there are.
    pub expected: u32,
    /// Those whose daemon is READY in this domain with their own index.
    pub ready: u32,
    /// Pairs of these of which one says that its connection to the other does not stand.
    #[serde(default)]
    pub disconnected_pairs: u32,
    /// `Up`: all are READY and pairwise connected. `Degraded`: some are not. `Down`: none is READY. `Unknown`: all are READY
    /// and nothing says that two are not connected, but not all say that they are.
    pub state: String,
    /// Who is not READY, which pairs are not connected, whose connections are not known; the first few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}
