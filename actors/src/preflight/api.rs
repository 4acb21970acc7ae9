use std::time::Duration;

use heddle_core::names;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::{cause, policies};

/// The answer is worth little and an API server that is away is somebody else's line.
const LIMIT: Duration = Duration::from_secs(5);

/// What the API says of a node.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// `node.status.nodeInfo.containerRuntimeVersion`.
    pub container_runtime: Option<String>,
    /// Devices of our name on the node that are none of ours.
    pub foreign_devices: Vec<String>,
    /// Admission policies that are not in force.
    pub missing_policies: Option<Vec<String>>,
}

/// Asks it; what it does not answer is not known.
pub(super) async fn ask(client: Client, node: &str) -> Told {
    let said = |error: &kube::Error| tracing::debug!("the API server says nothing of the node: {}", cause::told(error));
    let nodes: Api<Node> = Api::all(client.clone());
    let slices: Api<ResourceSlice> = Api::all(client.clone());
    let ours = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let asked = futures::future::join3(nodes.get_opt(node), slices.list(&ours), policies::missing(&client));
    let Ok((found, slices, missing)) = tokio::time::timeout(LIMIT, asked).await else { return Told::default() };
    let info = found.inspect_err(said).ok().flatten().and_then(|node| node.status?.node_info);
    let slices = slices.inspect_err(said).map(|list| list.items).unwrap_or_default();
    let devices = slices.into_iter().filter(|slice| slice.spec.driver == names::DRIVER);
    let devices = devices.flat_map(|slice| slice.spec.devices.unwrap_or_default());
    let foreign = devices.map(|device| device.name).filter(|name| !name.starts_with("slot-"));
    Told {
        container_runtime: info.map(|info| info.container_runtime_version),
        foreign_devices: foreign.collect(),
        missing_policies: missing.inspect_err(said).ok(),
    }
}
