//! What it takes until the nodes of a clique, all switched on at once, are one IMEX domain; and one more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::daemons::{Seen, alone, connected};
use super::figures::{Distribution, Figures, millis};
use super::journal::Entry;
use super::rack::{Rack, TOLD};
use super::{Shared, since};

/// The daemon honours one SIGUSR1 in this time, so a new member may take as long to be known to all.
const SIGNAL_WINDOW: Duration = Duration::from_secs(5);
/// What Heddle may add to what a daemon takes by itself, from its start to READY.
const ADDED: f64 = 200.0;
/// A runner asks its daemon about peers twice a minute, and what it hears is reported. Nothing else is left to be said
/// after this long without a write.
const SETTLED: Duration = Duration::from_secs(31);

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Amounts {
    /// Nodes of the clique.
    pub nodes: u32,
    /// How long the clique is watched at rest, in seconds; 0 for not at all.
    pub idle_seconds: u32,
}

/// Measures all of it.
///
/// # Errors
/// When something that is measured fails.
pub async fn measure(shared: &Shared, amounts: Amounts, figures: &mut Figures) -> anyhow::Result<()> {
    let nodes = amounts.nodes as usize;
    let mut rack = Rack::start(shared, amounts.nodes).await?;
    let booted = boot(shared, &mut rack, nodes, figures).await;
    let rested = match &booted {
        Ok(()) => idle(&rack, amounts.idle_seconds, figures).await,
        Err(_) => Ok(()),
    };
    rack.stop().await;
    booted.and(rested)?;

    let mut rack = Rack::start(shared, amounts.nodes).await?;
    let joined = join(shared, &mut rack, nodes - 1, figures).await;
    rack.stop().await;
    joined
}

async fn boot(shared: &Shared, rack: &mut Rack, nodes: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let alone = alone(shared, &rack.folder(), nodes).await?;
    let (place, requests, used) = (rack.journal.now(), rack.journal.requests(), rack.api.cpu()?);
    let began = Instant::now();
    rack.power_on(nodes)?;
    let seen = connected(&rack.daemons(), || rack.check()).await?;
    let (ready, all) = (last(&seen, |seen| seen.ready), last(&seen, |seen| seen.connected));

    figures.section(format!("{nodes} nodes boot at once"));
    figures.plain("nodes up to all daemons READY", millis(ready - began), "ms");
    figures.plain("nodes up to all connected with all", millis(all - began), "ms");
    figures.plain("the same daemons alone, configured beforehand", millis(alone), "ms");
    figures.plain("more than they alone, on the same cores", millis((all - began).saturating_sub(alone)), "ms");
    figures.plain("CPU of the API server in that time", millis(rack.api.cpu()?.saturating_sub(used)), "ms");
    let answers = Distribution::new(seen.iter().map(|seen| seen.answers - began).collect());
    steps(rack, place, began, figures);
    figures.spread("node up to its daemon answers", &answers);

    rack.quiet_for(TOLD).await?;
    figures.section(format!("writes until {nodes} nodes are one domain"));
    writes(rack, place, nodes, figures);
    let (committed, requested) = (rack.journal.now() - place, rack.journal.requests() - requests);
    figures.plain("all kinds together", committed as f64, "");
    figures.plain("write requests, also those refused or without a change", requested as f64, "");
    Ok(())
}

/// Where the time goes, by what is written.
fn steps(rack: &Rack, place: usize, began: Instant, figures: &mut Figures) {
    let journal = &rack.journal;
    let node = |wanted: fn(&Entry) -> bool| journal.first(place, "IMEXNode", wanted);
    let exists = node(|_| true);
    let reported = node(|entry| entry.field("/status/clique").is_some());
    let assigned = node(|entry| entry.field("/spec/domain").is_some());
    let certified = node(|entry| entry.field("/status/certificates").is_some());
    let mut member: BTreeMap<String, Instant> = BTreeMap::new();
    for entry in journal.since(place).iter().filter(|entry| entry.kind() == "IMEXDomain") {
        let members = entry.field("/spec/members").and_then(|members| members.as_object());
        for name in members.into_iter().flat_map(|members| members.keys()) {
            member.entry(name.clone()).or_insert(entry.at);
        }
    }
    for (what, times) in [
        ("its IMEXNode exists", exists),
        ("it has reported its clique", reported),
        ("it is a member", member),
        ("it is assigned to the domain", assigned),
        ("it reports a certificate", certified),
    ] {
        if !times.is_empty() {
            figures.spread(&format!("node up to {what}"), &since(began, times.values().copied()));
        }
    }
}

fn writes(rack: &Rack, place: usize, nodes: usize, figures: &mut Figures) {
    let per_node = rack.journal.by_name(place, "IMEXNode");
    for (kind, count) in rack.journal.by_kind(place) {
        figures.plain(kind.clone(), count as f64, "");
        figures.plain(format!("{kind} for each node"), count as f64 / nodes as f64, "");
    }
    figures.plain("IMEXNode, the most of one node", per_node.values().max().copied().unwrap_or_default() as f64, "");
    for kind in ["IMEXDomain", "IMEXNode"] {
        for (field, count) in rack.journal.by_field(place, kind) {
            figures.plain(format!("{kind} writes that changed {field}"), count as f64, "");
        }
    }
}

/// Writes of a clique in which nothing happens.
async fn idle(rack: &Rack, seconds: u32, figures: &mut Figures) -> anyhow::Result<()> {
    if seconds == 0 {
        return Ok(());
    }
    rack.quiet_for(SETTLED).await?;
    let place = rack.journal.now();
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    figures.section("rest");
    let by_kind = rack.journal.by_kind(place);
    let leases = by_kind.get("Lease").copied().unwrap_or_default();
    let others = by_kind.values().sum::<u64>() - leases;
    figures.at_most(format!("writes in {seconds} s"), others as f64, "", 0.0);
    figures.plain("renewals of Leases beside that", leases as f64, "");
    Ok(())
}

/// One node is switched on where all others are connected and at rest.
async fn join(shared: &Shared, rack: &mut Rack, others: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let alone = alone(shared, &rack.folder(), 1).await?;
    rack.power_on(others)?;
    connected(&rack.daemons(), || rack.check()).await?;
    // Every daemon may be signalled again.
    rack.quiet_for(SIGNAL_WINDOW + Duration::from_secs(1)).await?;
    let place = rack.journal.now();
    let began = Instant::now();
    rack.power_on(1)?;
    let seen = connected(&rack.daemons(), || rack.check()).await?;
    let newest = seen[others];
    figures.section(format!("one node joins {others} that are connected"));
    figures.plain("node up to its daemon answers", millis(newest.answers - began), "ms");
    figures.plain("from there to READY", millis(newest.ready - newest.answers), "ms");
    let all = last(&seen, |seen| seen.connected);
    figures.at_most("node up to all connected with it", millis(all - began), "ms", millis(SIGNAL_WINDOW));
    steps(rack, place, began, figures);
    rack.quiet_for(TOLD).await?;
    started(rack, place, others, alone, figures);
    figures.plain("IMEXDomain writes", rack.journal.by_name(place, "IMEXDomain").values().sum::<u64>() as f64, "");
    let mut nodes = rack.journal.by_name(place, "IMEXNode");
    let own = nodes.remove(&rack.nodes[others].name).unwrap_or_default();
    figures.plain("writes of its own IMEXNode", own as f64, "");
    figures.plain("writes of the others' IMEXNodes", nodes.values().sum::<u64>() as f64, "");
    Ok(())
}

/// From the moment at which a node has all that its daemon needs until its agent has reported it as READY: its root is
/// made, it is started, asked, believed, and told of.
fn started(rack: &Rack, place: usize, node: usize, alone: Duration, figures: &mut Figures) {
    let name = &rack.nodes[node].name;
    let at = |wanted: fn(&Entry) -> bool| rack.journal.first(place, "IMEXNode", wanted).get(name).copied();
    let assigned = at(|entry| entry.field("/spec/domain").is_some());
    // Where peers are not authenticated there is none.
    let certified = at(|entry| entry.field("/status/certificates").is_some());
    let ready = at(|entry| entry.field("/status/daemon/state").is_some_and(|state| state == "READY"));
    let (Some(begun), Some(ready)) = (certified.max(assigned), ready) else { return };
    let took = ready.saturating_duration_since(begun);
    figures.plain("daemon's start to READY in its IMEXNode", millis(took), "ms");
    figures.plain("one daemon alone, start to READY", millis(alone), "ms");
    figures.at_most("what Heddle adds to a daemon's start", millis(took.saturating_sub(alone)), "ms", ADDED);
}

fn last(seen: &[Seen], at: impl Fn(&Seen) -> Instant) -> Instant {
    seen.iter().map(at).max().unwrap_or_else(Instant::now)
}
