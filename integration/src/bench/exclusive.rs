//! What it takes a node to move into the IMEX domain of an exclusive ComputeDomain, and back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use heddle_core::api::IsolationMode;
use heddle_core::imex::{exclusive_domain_name, shared_domain_name};
use heddle_proto::dra::v1::Claim;
use kube::api::DeleteParams;

use super::caller::Caller;
use super::claims::{Claims, PodRef};
use super::daemons::connected;
use super::figures::{Distribution, Figures, millis};
use super::journal::Entry;
use super::rack::{PATIENCE, Rack, TOLD};
use super::{Shared, bed};
use crate::demo::provision::Node;

/// Namespace of what is made here.
const TEAM: &str = "team";

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Amounts {
    /// Nodes of the clique.
    pub nodes: u32,
    /// Those of them that move.
    pub moving: u32,
}

/// Measures both ways.
///
/// # Errors
/// When something that is measured fails.
pub async fn measure(shared: &Shared, amounts: Amounts, figures: &mut Figures) -> anyhow::Result<()> {
    if amounts.moving == 0 || amounts.moving > amounts.nodes {
        bail!("--moving {} does not fit --nodes {}", amounts.moving, amounts.nodes);
    }
    let mut rack = Rack::start(shared, amounts.nodes).await?;
    let moved = play(&mut rack, amounts, figures).await;
    rack.stop().await;
    moved
}

/// A node that moves, with what is done to it.
struct Mover {
    node: Node,
    claims: Claims,
    caller: Caller,
}

/// What a node has gone through on its way.
type Times = BTreeMap<String, Instant>;

async fn play(rack: &mut Rack, amounts: Amounts, figures: &mut Figures) -> anyhow::Result<()> {
    rack.power_on(rack.nodes.len())?;
    connected(&rack.daemons(), || rack.check()).await?;
    bed::create_namespace(&rack.client, TEAM).await?;
    let pod = PodRef::create(rack.client.clone(), TEAM).await?;
    let mut nodes = Vec::new();
    for node in rack.nodes.clone() {
        let claims =
            Claims { client: rack.client.clone(), namespace: TEAM.into(), node: node.name.clone(), pod: pod.clone() };
        let caller = Caller::new(rack.service_socket(&node).await?);
        nodes.push(Mover { node, claims, caller });
    }
    let stay = nodes.split_off(amounts.moving as usize);
    let moving = nodes;
    // Whose it is makes no difference for ComputeDomains: they are of no node.
    let maker = &moving[0].claims;
    let green = maker.compute_domain("green", IsolationMode::Channel).await?;
    for stays in &stay {
        let claim = stays.claims.claim(&format!("green-{}", stays.node.name), 0, &green).await?;
        stays.caller.prepare(&claim).await?;
    }
    let red = maker.compute_domain("red", IsolationMode::Domain).await?;
    rack.quiet_for(TOLD).await?;
    let before = pids(rack, &stay).await?;
    let (home, own) = (shared_domain_name(&rack.nodes[0].clique), exclusive_domain_name(&rack.nodes[0].clique, &red));

    let place = rack.journal.now();
    let began = futures::future::try_join_all(moving.iter().map(|mover| mover.prepare(&red))).await?;
    figures.section(format!("{} nodes move in", moving.len()));
    let allocated: Times = moving.iter().zip(&began).map(|(m, (_, at, _))| (m.node.name.clone(), *at)).collect();
    let prepared = began.iter().map(|(_, allocated, prepared)| *prepared - *allocated).collect();
    steps(rack, place, &allocated, &own, figures, "claim allocated");
    figures.spread("claim allocated to prepared", &Distribution::new(prepared));
    rack.quiet_for(TOLD).await?;
    writes(rack, place, &moving, figures);

    let place = rack.journal.now();
    let ended = futures::future::try_join_all(
        moving.iter().zip(&began).map(|(mover, (claim, _, _))| async move { mover.undo(claim).await }),
    )
    .await?;
    maker.compute_domains().delete("red", &DeleteParams::default()).await.context("red could not be deleted")?;
    let deleted = Instant::now();
    let freed: Times = moving.iter().zip(ended).map(|(mover, at)| (mover.node.name.clone(), at)).collect();
    served(rack, place, &freed, &home).await?;
    connected(&rack.daemons(), || rack.check()).await?;
    figures.section(format!("{} nodes move back", moving.len()));
    steps(rack, place, &freed, &home, figures, "claim gone");
    figures.plain("ComputeDomain deleted to all nodes connected again", millis(deleted.elapsed()), "ms");
    rack.quiet_for(TOLD).await?;
    writes(rack, place, &moving, figures);

    figures.section(format!("the {} others", stay.len()));
    let restarted = pids(rack, &stay).await?.iter().filter(|(node, pid)| before.get(*node) != Some(pid)).count();
    figures.at_most("daemons that were restarted", restarted as f64, "", 0.0);
    Ok(())
}

impl Mover {
    /// A claim of the whole node comes and is prepared; when it was allocated, and when prepared.
    async fn prepare(&self, compute_domain: &str) -> anyhow::Result<(Claim, Instant, Instant)> {
        let claim = self.claims.whole_node(&format!("red-{}", self.node.name), compute_domain).await?;
        let allocated = Instant::now();
        self.caller.prepare(&claim).await?;
        Ok((claim, allocated, Instant::now()))
    }

    /// It is unprepared, and goes; when.
    async fn undo(&self, claim: &Claim) -> anyhow::Result<Instant> {
        self.caller.unprepare(claim).await?;
        let gone = Instant::now();
        self.claims.api().delete(&claim.name, &DeleteParams::default()).await?;
        Ok(gone)
    }
}

async fn pids(rack: &Rack, nodes: &[Mover]) -> anyhow::Result<BTreeMap<String, u32>> {
    let mut pids = BTreeMap::new();
    for mover in nodes {
        pids.insert(mover.node.name.clone(), rack.runner_state(&mover.node).await?.daemon_pid);
    }
    Ok(pids)
}

fn is_served(entry: &Entry, domain: &str) -> bool {
    let says = |pointer, word: &str| entry.field(pointer).is_some_and(|value| value == word);
    says("/status/daemon/domain", domain) && says("/status/daemon/state", "READY") && says("/spec/domain", domain)
}

/// Waits until all these nodes report that they serve the domain.
async fn served(rack: &Rack, place: usize, nodes: &Times, domain: &str) -> anyhow::Result<()> {
    let (began, mut changes) = (Instant::now(), rack.api.server.changes());
    loop {
        changes.mark_unchanged();
        let there = rack.journal.first(place, "IMEXNode", |entry| is_served(entry, domain));
        if nodes.keys().all(|node| there.contains_key(node)) {
            return Ok(());
        }
        rack.check()?;
        if began.elapsed() > PATIENCE {
            bail!("{} of {} nodes serve {domain} after {} s", there.len(), nodes.len(), PATIENCE.as_secs());
        }
        let _ = tokio::time::timeout(Duration::from_millis(100), changes.changed()).await;
    }
}

/// Where the time goes, by what is written, each node from its own beginning.
fn steps(rack: &Rack, place: usize, began: &Times, domain: &str, figures: &mut Figures, from: &str) {
    let first = |wanted: &dyn Fn(&Entry) -> bool| rack.journal.first(place, "IMEXNode", wanted);
    let says = |pointer: &'static str| move |entry: &Entry| entry.field(pointer).is_some_and(|value| value == domain);
    let told = first(&says("/spec/next"));
    let certified = first(&|entry| entry.field("/status/certificates").is_some_and(|of| of.get(domain).is_some()));
    let assigned = first(&says("/spec/domain"));
    let ready = first(&|entry| is_served(entry, domain));
    for (what, times) in [
        ("told of its next domain", told),
        ("has a certificate of it", certified),
        ("assigned to it", assigned),
        ("daemon READY in it", ready),
    ] {
        let times = times.iter().filter_map(|(node, at)| Some(at.saturating_duration_since(*began.get(node)?)));
        let times: Vec<_> = times.collect();
        if !times.is_empty() {
            figures.spread(&format!("{from} to {what}"), &Distribution::new(times));
        }
    }
}

fn writes(rack: &Rack, place: usize, moving: &[Mover], figures: &mut Figures) {
    let by_name = rack.journal.by_name(place, "IMEXNode");
    let of_movers = moving.iter().filter_map(|mover| by_name.get(&mover.node.name)).sum::<u64>();
    let others = by_name.values().sum::<u64>() - of_movers;
    figures.plain("IMEXNode writes for each node that moves", of_movers as f64 / moving.len() as f64, "");
    figures.plain("IMEXNode writes of the others", others as f64, "");
    for (field, count) in rack.journal.by_field(place, "IMEXNode") {
        figures.plain(format!("IMEXNode writes that changed {field}"), count as f64, "");
    }
    for (kind, count) in rack.journal.by_kind(place).into_iter().filter(|(kind, _)| kind != "IMEXNode") {
        figures.plain(format!("{kind} writes in all"), count as f64, "");
    }
}
