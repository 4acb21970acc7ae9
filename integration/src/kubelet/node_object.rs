//! The kubelet's Node.

use std::fs;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Time};
use kube::{
    Api, Error,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::time;
use tracing::{info, warn};

use super::{backoff::Backoff, options::KubeletOptions};

/// Version that the double speaks like.
const VERSION: &str = "v1.36.3";

/// Creates the Node or brings it up to date. Does not give up.
pub async fn register(options: &KubeletOptions) {
    let mut backoff = Backoff::new(options.limits.api_retry);
    while let Err(err) = write(options).await {
        warn!(node = options.node_name, %err, "could not write the Node, trying again");
        time::sleep(backoff.next()).await;
    }
    info!(node = options.node_name, "node is ready");
}

async fn write(options: &KubeletOptions) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(options.client.clone());
    let name = options.node_name.as_str();
    let mut labels = json!(options.labels);
    let own = json!({
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch(),
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": arch(),
    });
    json_patch::merge(&mut labels, &own);
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
    });
    match nodes.create(&PostParams::default(), &from(node)?).await {
        Ok(_) => {}
        Err(Error::Api(status)) if status.code == 409 => {
            let patch = json!({"metadata": {"labels": labels}});
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Err(err) => return Err(err),
    }
    let patch = json!({"status": status(options)});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

fn from(node: Value) -> Result<Node, Error> {
    serde_json::from_value(node).map_err(Error::SerdeError)
}

fn status(options: &KubeletOptions) -> Value {
    let now = Time(Timestamp::now());
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    };
    let capacity = json!({"cpu": "144", "memory": "960Gi", "ephemeral-storage": "1Ti", "pods": "250"});
    let id = machine_id(&options.node_name);
    json!({
        "addresses": [
            {"type": "InternalIP", "address": options.node_address},
            {"type": "Hostname", "address": options.node_name},
        ],
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ],
        "nodeInfo": {
            "architecture": arch(),
            "bootID": boot_id(options),
            "containerRuntimeVersion": "containerd://2.3.7",
            "kernelVersion": "6.8.0-heddle",
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": id,
            "operatingSystem": "linux",
            "osImage": "Heddle simulated node",
            "systemUUID": id,
        },
    })
}

/// The boot's id, from where the kernel shows it.
fn boot_id(options: &KubeletOptions) -> String {
    let path = options.paths.os().join("proc/sys/kernel/random/boot_id");
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().to_owned(),
        Err(err) => {
            warn!(path = %path.display(), %err, "cannot read the boot id");
            String::new()
        }
    }
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The same for a node in every life: its name in hex, cut to the length of such ids.
fn machine_id(node: &str) -> String {
    let mut id: String = node.bytes().map(|byte| format!("{byte:02x}")).collect();
    id.truncate(32);
    format!("{id:0<32}")
}
