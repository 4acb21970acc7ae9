//! Objects for tests.

use crate::api::*;
use crate::claim::ClaimKey;
use crate::controller::{Cd, LabelledClaim, Origin};
use crate::names;

pub fn sample_clique() -> crate::clique::CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

pub fn uid(name: &str) -> String {
    format!("uid-{name}")
}

/// `team/<name>` with UID `uid-<name>`, template `<name>-channel`, and our finalizer.
pub fn sample_cd(name: &str, isolation_mode: IsolationMode) -> Cd {
    let channel = ChannelSpec {
        resource_claim_template: TemplateRef { name: format!("{name}-channel") },
        allocation_mode: AllocationMode::Single,
    };
    Cd {
        reference: ComputeDomainRef { namespace: "team".into(), name: name.into(), uid: uid(name) },
        created: None,
        deleting: false,
        finalizers: vec![names::FINALIZER.into()],
        generation: Some(1),
        resource_version: None,
        spec: Ok(ComputeDomainSpec { num_nodes: 0, isolation_mode, channel }),
        status: None,
        origin: Origin::default(),
    }
}

/// A claim of `team/<cd>`, allocated on the node.
pub fn claim(cd: &str, node: &str) -> LabelledClaim {
    let name = format!("{cd}-{node}");
    let key = ClaimKey { namespace: "team".into(), name: name.clone(), uid: format!("claim-{name}") };
    LabelledClaim { key, cd_uid: uid(cd), nodes: [node.to_string()].into() }
}

/// A node of the clique with an agent that has just started.
pub fn new_node(name: &str) -> IMEXNode {
    let mut node = IMEXNode::new(name, IMEXNodeSpec::default());
    node.status = Some(IMEXNodeStatus {
        clique: Some(sample_clique().to_string()),
        channel_count: 2048,
        addresses: vec![format!("10.0.0.{}", name.trim_start_matches('n'))],
        ..Default::default()
    });
    node
}
