//! What a claim, a start and an idle agent cost on one node.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use heddle_core::api::IsolationMode;
use heddle_core::names;
use heddle_proto::registration::{InfoRequest, PluginInfo};

use super::bed::Bed;
use super::caller::{CALL, Caller};
use super::figures::{Distribution, Figures, millis};
use super::{process, scrape};
use crate::kubelet::dial::Connection;

/// How long an agent is watched at rest.
const IDLE: Duration = Duration::from_secs(10);
/// What the agent does after an answer, the claim's status above all, has ended after this long.
const SETTLED: Duration = Duration::from_secs(2);
const MIB: f64 = 1024.0 * 1024.0;

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub struct Amounts {
    /// Claims that are prepared one after the other.
    pub claims: u32,
    /// ComputeDomains that are entered for the first time.
    pub compute_domains: u32,
    /// Cycles of Prepare and Unprepare at each degree of parallelism.
    pub cycles: u32,
    /// Starts of the agent.
    pub starts: u32,
}

/// Measures all of it.
///
/// # Errors
/// When something that is measured fails.
pub async fn measure(bed: &mut Bed, amounts: Amounts, figures: &mut Figures) -> anyhow::Result<()> {
    bed.offers_slots().await?;
    let green = bed.claims.compute_domain("green", IsolationMode::Channel).await?;
    let caller = Caller::new(bed.service_socket().await?);
    let holder = bed.claims.claim("holder", 15, &green).await?;
    caller.prepare(&holder).await?;

    warm(bed, &caller, &green, amounts.claims, figures).await?;
    first_enter(bed, &caller, amounts.compute_domains, figures).await?;
    requests(bed, &caller, &green, figures).await?;
    for parallel in [1, 8, 64] {
        cycles(bed, &caller, &green, parallel, amounts.cycles, figures).await?;
    }
    idle(bed, figures).await?;
    starts(bed, amounts.starts, figures).await?;
    full_node(bed, &green, figures).await
}

async fn warm(
    bed: &Bed,
    caller: &Caller,
    compute_domain: &str,
    count: u32,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let claims = bed.claims.many("warm", count, compute_domain).await?;
    let (mut round_trips, mut prepares, mut unprepares) = (Vec::new(), Vec::new(), Vec::new());
    for claim in &claims {
        let began = Instant::now();
        bed.claims.api().get(&claim.name).await?;
        round_trips.push(began.elapsed());
        prepares.push(caller.prepare(claim).await?);
    }
    // Answered already; what is written to the API meanwhile is no part of an Unprepare.
    tokio::time::sleep(SETTLED).await;
    for claim in &claims {
        unprepares.push(caller.unprepare(claim).await?);
    }
    let round_trips = Distribution::new(round_trips);
    figures.distribution("disk sync of a small file and its folder", &syncs(bed.state(), count)?, [None; 3]);
    let limit = millis(round_trips.quantile(0.99)) + 5.0;
    figures.distribution("API round trip (GET of a claim)", &round_trips, [None; 3]);
    figures.distribution("Prepare, node in the CD", &Distribution::new(prepares), [Some(5.0), None, Some(limit)]);
    figures.distribution("Unprepare", &Distribution::new(unprepares), [Some(3.0), None, None]);
    Ok(())
}

/// What the disk itself takes for a durable write, by which the figures of another machine can be compared.
fn syncs(folder: &Path, count: u32) -> anyhow::Result<Distribution> {
    let path = folder.join("bench.probe");
    let mut durations = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        let mut file = File::create(&path)?;
        file.write_all(&[b'x'; 700])?;
        file.sync_all()?;
        File::open(folder)?.sync_all()?;
        durations.push(began.elapsed());
        std::fs::remove_file(&path)?;
    }
    Ok(Distribution::new(durations))
}

async fn first_enter(bed: &Bed, caller: &Caller, count: u32, figures: &mut Figures) -> anyhow::Result<()> {
    let mut firsts = Vec::new();
    for index in 0..count {
        let name = format!("first-{index}");
        let uid = bed.claims.compute_domain(&name, IsolationMode::Channel).await?;
        let claim = bed.claims.claim(&name, 0, &uid).await?;
        firsts.push(caller.prepare(&claim).await?);
        caller.unprepare(&claim).await?;
    }
    figures.distribution("Prepare, first of its CD", &Distribution::new(firsts), [None; 3]);
    Ok(())
}

/// Requests and syncs of claims whose status is written in full before they are undone.
async fn requests(bed: &Bed, caller: &Caller, compute_domain: &str, figures: &mut Figures) -> anyhow::Result<()> {
    const COUNT: u32 = 16;
    let claims = bed.claims.many("counted", COUNT, compute_domain).await?;
    let before = scrape::counters(bed.metrics).await?;
    for claim in &claims {
        caller.prepare(claim).await?;
    }
    tokio::time::sleep(SETTLED).await;
    let prepared = scrape::counters(bed.metrics).await?;
    for claim in &claims {
        caller.unprepare(claim).await?;
    }
    tokio::time::sleep(SETTLED).await;
    let undone = scrape::counters(bed.metrics).await?.since(prepared);
    let prepared = prepared.since(before);
    let each = |count: u64| count as f64 / f64::from(COUNT);
    figures.plain("API reads per claim", each(prepared.reads + undone.reads), "");
    figures.at_most("API writes per claim", each(prepared.writes + undone.writes), "", 1.0);
    figures.at_most("API requests per Unprepare", each(undone.reads + undone.writes), "", 0.0);
    figures.plain("disk syncs per Prepare", each(prepared.syncs), "");
    figures.plain("disk syncs per Unprepare", each(undone.syncs), "");
    Ok(())
}

/// Prepare and Unprepare as fast as they go, each claim by itself.
async fn cycles(
    bed: &Bed,
    caller: &Caller,
    compute_domain: &str,
    parallel: u32,
    count: u32,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let claims = bed.claims.many(&format!("cycle-{parallel}"), parallel, compute_domain).await?;
    let rounds = count.div_ceil(parallel);
    let (began, used) = (Instant::now(), process::cpu(bed.agent()?)?);
    let loops = claims.into_iter().map(|claim| async move {
        for _ in 0..rounds {
            caller.prepare(&claim).await?;
            caller.unprepare(&claim).await?;
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(loops).await?;
    let (took, used) = (began.elapsed(), process::cpu(bed.agent()?)?.saturating_sub(used));
    let done = f64::from(rounds * parallel);
    let what = |figure| format!("{figure}, {parallel} in parallel");
    let per_second = done / took.as_secs_f64();
    match parallel {
        1 => figures.plain(what("cycles per second"), per_second, "/s"),
        _ => figures.at_least(what("cycles per second"), per_second, "/s", 500.0),
    }
    figures.at_most(what("agent CPU per cycle"), millis(used) / done, "ms", 1.0);
    Ok(())
}

async fn idle(bed: &Bed, figures: &mut Figures) -> anyhow::Result<()> {
    tokio::time::sleep(SETTLED).await;
    let (used, counted) = (process::cpu(bed.agent()?)?, scrape::counters(bed.metrics).await?);
    tokio::time::sleep(IDLE).await;
    let used = process::cpu(bed.agent()?)?.saturating_sub(used);
    let counted = scrape::counters(bed.metrics).await?.since(counted);
    figures.plain("agent CPU when idle", millis(used) / IDLE.as_secs_f64(), "ms/s");
    figures.at_most(format!("API writes in {} s when idle", IDLE.as_secs()), counted.writes as f64, "", 0.0);
    let memory = process::memory(bed.agent()?)?;
    figures.plain("agent resident memory, after all this", memory.resident as f64 / MIB, "MiB");
    figures.plain("of that anonymous, after all this", memory.anonymous as f64 / MIB, "MiB");
    Ok(())
}

/// The memory of an agent whose slots are all in use.
async fn full_node(bed: &Bed, compute_domain: &str, figures: &mut Figures) -> anyhow::Result<()> {
    let caller = Caller::new(bed.service_socket().await?);
    let claims = bed.claims.many("full", names::DEFAULT_SLOTS, compute_domain).await?;
    for claim in &claims {
        caller.prepare(claim).await?;
    }
    tokio::time::sleep(SETTLED).await;
    let memory = process::memory(bed.agent()?)?;
    figures.at_most("agent resident memory, all slots in use", memory.resident as f64 / MIB, "MiB", 15.0);
    figures.at_most("of that anonymous", memory.anonymous as f64 / MIB, "MiB", 5.0);
    for claim in &claims {
        caller.unprepare(claim).await?;
    }
    Ok(())
}

/// From the start of the process to the answer to the kubelet's first question, and to slices in the API.
async fn starts(bed: &mut Bed, count: u32, figures: &mut Figures) -> anyhow::Result<()> {
    let (mut registered, mut published) = (Vec::new(), Vec::new());
    for _ in 0..count {
        bed.stop_agent().await;
        bed.wipe_slices().await?;
        let began = Instant::now();
        bed.start_agent()?;
        let socket = bed.registration_socket().await?;
        let mut connection = Connection::dial(&socket, CALL, Duration::from_millis(1)).await?;
        let info: PluginInfo =
            connection.unary("/pluginregistration.Registration/GetInfo", &InfoRequest {}, CALL).await?;
        registered.push(began.elapsed());
        if info.name != names::DRIVER {
            bail!("{:?} answers in the place of {}", info.name, names::DRIVER);
        }
        bed.offers_slots().await?;
        published.push(began.elapsed());
    }
    figures.distribution("agent start to registration", &Distribution::new(registered), [None, None, Some(100.0)]);
    figures.distribution("agent start to slices", &Distribution::new(published), [None, None, Some(300.0)]);
    Ok(())
}
