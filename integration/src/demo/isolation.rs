//! Who can import whose memory, found out by trying: each pair of running containers exports and imports through the
//! IMEX daemons, with the channel nodes that their containers can open and nothing else.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use heddle_core::names;
use serde::Serialize;

use super::cluster::Cluster;
use super::snapshot::{PodView, Snapshot, short};
use crate::imex::cuda::Cuda;

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The pod that exported.
    pub from: String,
    /// The pod that tried to import.
    pub to: String,
    /// Whether both are of one ComputeDomain.
    pub same_compute_domain: bool,
    /// Whether the import succeeded.
    pub import_allowed: bool,
    /// The ComputeDomain that it exported in.
    #[serde(skip)]
    pub from_domain: String,
    /// The ComputeDomain that it tried to import in.
    #[serde(skip)]
    pub to_domain: String,
    /// Whether it should have: same ComputeDomain, same NVLink partition.
    #[serde(skip)]
    pub expected: bool,
    /// What the importer was told.
    #[serde(skip)]
    pub answer: String,
}

struct Peer {
    pod: PodView,
    compute_domain: String,
    clique: usize,
    cuda: Cuda,
}

/// Pods that export to all others; with more, each ComputeDomain and node is tried by its first pods only.
const MOST_PEERS: usize = 64;

/// Tries every pair of running pods that hold a channel.
///
/// # Errors
/// When a container cannot open its own channel, or a daemon cannot be asked at all.
pub async fn attempt_all(cluster: &Cluster, snapshot: &Snapshot) -> anyhow::Result<Vec<Attempt>> {
    let mut peers = Vec::new();
    let mut taken = BTreeMap::new();
    for pod in snapshot.pods(&cluster.channels()) {
        let Some(node) = pod.node.clone() else { continue };
        // A pod with channels of several ComputeDomains is a peer in each.
        for member in pod.memberships.clone() {
            let Some(channel) = member.channel else { continue };
            let place = taken.entry((member.compute_domain.clone(), node.clone())).or_insert(0);
            *place += 1;
            if pod.phase != "Running" || peers.len() >= MOST_PEERS && *place > 1 {
                continue;
            }
            let (os, clique) = cluster.hardware_of(&node).context("a pod runs on a node that does not exist")?;
            let cuda = open(cluster, &pod, os, channel).await?;
            peers.push(Peer { pod: pod.clone(), compute_domain: member.compute_domain, clique, cuda });
        }
    }
    let mut exports = Vec::new();
    for from in &mut peers {
        exports.push(from.cuda.export().await.with_context(|| format!("{} could not export memory", from.pod.key()))?);
    }
    let froms: Vec<_> = (peers.iter()).map(|peer| (peer.pod.key(), peer.compute_domain.clone(), peer.clique)).collect();
    let mut attempts = Vec::new();
    for ((from, domain, clique), handle) in froms.iter().zip(exports) {
        for to in &mut peers {
            let same = *domain == to.compute_domain;
            let answer = to.cuda.import(&handle).await;
            attempts.push(Attempt {
                from: from.clone(),
                to: to.pod.key(),
                same_compute_domain: same,
                import_allowed: answer.is_ok(),
                from_domain: domain.clone(),
                to_domain: to.compute_domain.clone(),
                expected: same && *clique == to.clique,
                answer: answer.map_or_else(|error| error.to_string(), |()| "imported".into()),
            });
        }
    }
    Ok(attempts)
}

async fn open(cluster: &Cluster, pod: &PodView, os: PathBuf, channel: u32) -> anyhow::Result<Cuda> {
    let path = format!("{}/channel{channel}", names::CHANNEL_DEVICE_DIR);
    let container = cluster.container_of(pod, &path).with_context(|| format!("{} has no container", pod.key()))?;
    let node = container.open(&path).map_err(|error| anyhow::anyhow!("{} cannot open {path}: {error}", pod.key()))?;
    Cuda::open(&os, (node.major, node.minor)).with_context(|| format!("{} cannot use {path}", pod.key()))
}

/// Attempts between ComputeDomains, condensed for the terminal: one line per pair of ComputeDomains.
pub fn table(attempts: &[Attempt]) -> String {
    let all = || attempts.iter().map(|attempt| attempt.from_domain.as_str());
    let mut cells: BTreeMap<(String, String), (usize, usize)> = BTreeMap::new();
    for attempt in attempts {
        let (from, to) = (short(&attempt.from_domain, all()), short(&attempt.to_domain, all()));
        let cell = cells.entry((to.to_owned(), from.to_owned())).or_default();
        cell.0 += usize::from(attempt.import_allowed);
        cell.1 += 1;
    }
    let mut names: Vec<_> = cells.keys().map(|(to, _)| to.clone()).collect();
    names.dedup();
    let width = names.iter().map(String::len).max().unwrap_or_default().max(8);
    let mut text = format!("  {:width$}", "");
    for from in &names {
        text += &format!("  {from:>width$}");
    }
    text += "   ← exported by; imports that succeeded, of those tried\n";
    for to in &names {
        text += &format!("  {to:width$}");
        for from in &names {
            let (allowed, tried) = cells.get(&(to.clone(), from.clone())).copied().unwrap_or_default();
            text += &format!("  {:>width$}", format!("{allowed}/{tried}"));
        }
        text += "\n";
    }
    if attempts.iter().any(|attempt| attempt.same_compute_domain && !attempt.expected) {
        text += "  NVLink ends at the clique: imports from another one cannot succeed, also in one ComputeDomain\n";
    }
    text
}
