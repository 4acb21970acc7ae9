//! The picture: which ComputeDomain holds which GPUs of which node, with its channel.

use std::collections::BTreeMap;
use std::fmt::Write;

use heddle_core::api::IsolationMode;

use super::snapshot::{ComputeDomainView, PodView, short};

/// A node as the picture draws it.
#[derive(Clone, Debug)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// Its NVLink partition, counted from 1.
    pub clique: usize,
}

/// Draws the nodes in use, and the pods that wait.
pub fn draw(rows: &[NodeRow], gpus: u32, pods: &[PodView], cds: &[ComputeDomainView], colour: bool) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or_default();
    let many = rows.iter().any(|row| row.clique > 1);
    let mut text = String::new();
    let mut idle = 0;
    for row in rows {
        let here: Vec<_> = pods.iter().filter(|pod| pod.node.as_deref() == Some(&row.name)).collect();
        if here.is_empty() && rows.len() > 12 {
            idle += 1;
            continue;
        }
        let clique = if many { format!("  clique {:<3}", row.clique) } else { String::new() };
        let cells: Vec<_> = (0..gpus).map(|gpu| cell(gpu, &here, colour)).collect();
        let holders = holders(&here, cds, colour);
        let _ = writeln!(text, "  {:<width$}{clique}  [{}]  {holders}", row.name, cells.join(" "));
    }
    if idle > 0 {
        let _ = writeln!(text, "  … and {idle} idle nodes");
    }
    for pod in pods.iter().filter(|pod| !pod.is_settled()) {
        let reason = pod.reason.as_deref().unwrap_or("no reason given yet");
        let what = if pod.phase == "Failed" { "ended" } else { "waits" };
        let _ = writeln!(text, "  {what}: {}  {}", painted(owner(pod), &pod.key(), colour), clean(reason));
    }
    text
}

fn cell(gpu: u32, pods: &[&PodView], colour: bool) -> String {
    let Some(pod) = pods.iter().find(|pod| pod.gpus.contains(&gpu)) else { return ".".into() };
    let name = owner(pod);
    let letter = name.chars().next().map_or("#".into(), |letter| letter.to_uppercase().to_string());
    painted(name, &letter, colour)
}

fn holders(pods: &[&PodView], cds: &[ComputeDomainView], colour: bool) -> String {
    let mut holders = BTreeMap::new();
    for member in pods.iter().filter(|pod| pod.phase != "Succeeded").flat_map(|pod| &pod.memberships) {
        let channel = holders.entry(member.compute_domain.as_str()).or_insert(member.channel);
        *channel = channel.or(member.channel);
    }
    let keys: Vec<_> = cds.iter().map(|cd| format!("{}/{}", cd.namespace, cd.name)).collect();
    let words: Vec<_> = (holders.into_iter())
        .map(|(key, channel)| {
            let cd = cds.iter().find(|cd| format!("{}/{}", cd.namespace, cd.name) == key);
            let name = short(key, keys.iter().map(String::as_str));
            let channel = channel.map_or("no channel yet".into(), |channel| format!("channel {channel}"));
            let exclusive = cd.is_some_and(|cd| cd.isolation_mode == IsolationMode::Domain);
            format!("{} {channel}{}", painted(name, name, colour), if exclusive { ", exclusive" } else { "" })
        })
        .collect();
    words.join("   ")
}

/// The name by which a pod's GPUs are marked: its ComputeDomain's, or its own.
fn owner(pod: &PodView) -> &str {
    pod.compute_domain.as_deref().and_then(|key| key.rsplit('/').next()).unwrap_or(&pod.name)
}

/// The text in the colour that the name says, or in one of its own.
fn painted(name: &str, text: &str, colour: bool) -> String {
    if !colour {
        return text.to_owned();
    }
    let code = match name {
        "green" => 34,
        "blue" => 33,
        "yellow" => 220,
        "red" => 196,
        "orange" => 208,
        "teal" => 44,
        "purple" | "violet" => 135,
        "pink" => 213,
        // Bright colours of the 256-colour cube, by a small hash that is the same on every run.
        other => 20 + (other.bytes().fold(7_u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % 200),
    };
    format!("\u{1b}[1;38;5;{code}m{text}\u{1b}[0m")
}

/// Text from the cluster may hold anything: nothing of it may steer the terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::snapshot::Membership;

    fn pod(name: &str, cd: &str, node: Option<&str>, gpus: &[u32], channel: Option<u32>) -> PodView {
        PodView {
            namespace: cd.into(),
            name: name.into(),
            compute_domain: Some(format!("{cd}/{cd}")),
            node: node.map(Into::into),
            phase: if node.is_some() { "Running" } else { "Pending" }.into(),
            reason: node.is_none().then(|| "0/2 nodes\u{1b}[31m".into()),
            gpus: gpus.into(),
            channel,
            memberships: vec![Membership { compute_domain: format!("{cd}/{cd}"), channel }],
        }
    }

    #[test]
    fn shared_nodes_show_their_holders() {
        let rows = [NodeRow { name: "node-1".into(), clique: 1 }, NodeRow { name: "node-2".into(), clique: 1 }];
        let pods = [
            pod("g", "green", Some("node-1"), &[0, 1], Some(1)),
            pod("y", "yellow", Some("node-1"), &[3], Some(2)),
            pod("o", "orange", None, &[], None),
        ];
        let text = draw(&rows, 4, &pods, &[], false);
        assert_eq!(
            text,
            "  node-1  [G G . Y]  green channel 1   yellow channel 2\n  node-2  [. . . .]  \n  waits: orange/o  0/2 nodes [31m\n"
        );
        assert!(draw(&rows, 4, &pods, &[], true).contains("\u{1b}[1;38;5;34mG"));
    }
}
