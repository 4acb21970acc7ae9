use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A set of pods that may read each other's GPU memory over NVLink, across nodes.
///
/// A superset of the existing driver's type: manifests written for it run unchanged.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "resource.nvidia.com",
    version = "v1beta1",
    kind = "ComputeDomain",
    plural = "computedomains",
    shortname = "cd",
    namespaced,
    status = "ComputeDomainStatus",
    derive = "PartialEq",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.isolationMode"),
    printcolumn(name = "Channel", type_ = "string", json_path = ".status.channel"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodeCount"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyNodeCount"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(validation = Rule::new("self == oldSelf").message("spec is immutable; delete the ComputeDomain and create it anew"))]
#[x_kube(validation = Rule::new("self.channel.allocationMode == 'Single' || self.isolationMode == 'Domain'")
    .message("channel.allocationMode All needs isolationMode Domain: every channel of a shared IMEX domain would include those of others"))]
#[serde(rename_all = "camelCase")]
pub struct ComputeDomainSpec {
    /// How many nodes must be ready before the ComputeDomain is. Advisory; 0 means any.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub num_nodes: i32,
    /// `Channel` shares nodes and their IMEX domain with other ComputeDomains, kept apart by channels.
    /// `Domain` takes nodes and an IMEX domain for this ComputeDomain alone.
    #[serde(default)]
    pub isolation_mode: IsolationMode,
    /// The channel that the pods of this ComputeDomain claim.
    pub channel: ChannelSpec,
}

/// How a ComputeDomain is kept apart from the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum IsolationMode {
    /// By its own channel in the IMEX domain that all ComputeDomains of the clique share.
    #[default]
    Channel,
    /// By an IMEX domain and nodes of its own.
    Domain,
}

/// The channel claim that is generated for a ComputeDomain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelSpec {
    /// The ResourceClaimTemplate that the controller makes in the ComputeDomain's namespace.
    pub resource_claim_template: TemplateRef,
    /// `Single` gives a container one channel. `All` gives it every channel of the exclusive IMEX domain.
    #[serde(default)]
    pub allocation_mode: AllocationMode,
}

/// Name of the generated ResourceClaimTemplate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct TemplateRef {
    /// A DNS subdomain, unique among the templates of the namespace.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// How many channels a container of the ComputeDomain sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AllocationMode {
    /// Exactly one: all that a CUDA process can use.
    #[default]
    Single,
    /// All of an exclusive IMEX domain, for a scheduler inside the pods such as Slurm.
    All,
}

/// What is known of a ComputeDomain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ComputeDomainStatus {
    /// `Ready` or `NotReady`, kept for compatibility with the existing API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ReadyState>,
    /// `Ready`, `ChannelAssigned`, `Isolated`, `Degraded`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The channel number if it is the same in every clique, otherwise a comma-separated list. For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// One entry per clique that the ComputeDomain has a channel in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cliques: Vec<CliqueStatus>,
    /// The first 64 nodes by name; the counts beside it are complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub nodes: Vec<NodeStatus>,
    /// Nodes that use the ComputeDomain.
    #[serde(default)]
    pub node_count: i32,
    /// Those of them that are ready.
    #[serde(default)]
    pub ready_node_count: i32,
}

/// `Ready` or `NotReady`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReadyState {
    /// Every expected member serves the ComputeDomain.
    Ready,
    /// Something is missing; the conditions say what.
    #[default]
    NotReady,
}

/// A ComputeDomain in one clique.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CliqueStatus {
    /// `<clusterUUID>.<cliqueId>`.
    pub clique: String,
    /// Name of the IMEXDomain.
    pub imex_domain: String,
    /// The channel number in that IMEX domain.
    pub channel: u32,
    /// Nodes of this clique that use the ComputeDomain.
    pub nodes: i32,
    /// Those of them that are ready.
    pub ready_nodes: i32,
}

/// A node that uses a ComputeDomain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Name of the Node.
    pub name: String,
    /// The address at which peers reach its IMEX daemon.
    #[serde(rename = "ipAddress", default)]
    pub ip_address: String,
    /// `<clusterUUID>.<cliqueId>`, or empty on a node without NVLink fabric.
    #[serde(rename = "cliqueID", default)]
    pub clique_id: String,
    /// Its index in the IMEX domain's node map.
    #[serde(default)]
    pub index: i32,
    /// `Ready` or `NotReady`.
    #[serde(default)]
    pub status: ReadyState,
}
