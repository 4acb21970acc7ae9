//! The built-in scenes: the picture of three ComputeDomains sharing nodes and a fourth with nodes of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use heddle_core::api::IsolationMode;

use super::audit::Audit;
use super::cluster::Cluster;
use super::manifest::{self, Document};
use super::snapshot::{PodView, Snapshot};
use super::stage::Stage;
use super::{Options, moves, picture, play};

/// What a scene may take before the demo gives up and says what is missing.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

macro_rules! scene {
    ($name:literal) => {
        ($name, include_str!(concat!("../../manifests/", $name, ".yaml")))
    };
}

const GREEN: (&str, &str) = scene!("green");
const BLUE: (&str, &str) = scene!("blue");
const YELLOW: (&str, &str) = scene!("yellow");
const RED: (&str, &str) = scene!("red");
const ORANGE: (&str, &str) = scene!("orange");
const TEAL: (&str, &str) = scene!("teal");
const VIOLET: (&str, &str) = scene!("violet");

/// Whether the scenes fit this cluster.
///
/// # Errors
/// What does not fit.
pub fn check(options: &Options) -> Result<(), Vec<String>> {
    let mut problems = Vec::new();
    if options.nodes < 5 {
        problems.push(format!(
            "the built-in scenes need 5 nodes, not {}; set --nodes 5 or play your own with -f",
            options.nodes
        ));
    }
    if options.gpus_per_node < 4 {
        problems.push(format!(
            "the built-in scenes need 4 GPUs on a node, not {}; set --gpus-per-node 4 or play your own with -f",
            options.gpus_per_node
        ));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Plays them.
///
/// # Errors
/// When a scene does not come to its end.
pub async fn play(cluster: &Cluster, options: &Options, stage: &mut Stage, audit: &mut Audit) -> anyhow::Result<()> {
    let client = cluster.client();

    let began = Instant::now();
    stage.say("green, blue and yellow ask for two GPUs on two nodes each");
    stage.say("violet asks for node-5 and an IMEX domain of its own (isolationMode: Domain)");
    for scene in [GREEN, BLUE, YELLOW, VIOLET] {
        play::apply(&client, &load(scene)?).await?;
    }
    if options.chaos {
        chaos(cluster, stage, "node-2", "green").await?;
    }
    running(cluster, &["green", "blue", "yellow"], 6).await?;
    stage.time("sharedRunningMs", began);
    audit.look(cluster.nodes()).await?;

    running(cluster, &["violet"], 1).await?;
    let began = Instant::now();
    stage.say("violet is deleted, and node-5 goes back to the domain that all share");
    play::delete(&client, &load(VIOLET)?).await?;
    let snapshot = moves::home(cluster, &["node-5"]).await?;
    stage.time("movedOutMs", began);
    audit.look(cluster.nodes()).await?;
    draw(cluster, stage, options, &snapshot, "three ComputeDomains share three nodes, each with its own channel");
    check_channels_differ(stage, &snapshot);

    let began = Instant::now();
    stage.say("red asks for an IMEX domain and nodes of its own (isolationMode: Domain)");
    play::apply(&client, &load(RED)?).await?;
    if options.chaos {
        chaos(cluster, stage, "node-4", "red").await?;
        let leader = cluster.kill_leader().await?;
        stage.say(&format!("chaos: {leader}, which leads, was killed (SIGKILL) while nodes move"));
    }
    moves::into_domain_of(cluster, "red", &["node-4", "node-5"]).await?;
    stage.time("movedInMs", began);
    let snapshot = running(cluster, &["red"], 2).await?;
    stage.time("exclusiveRunningMs", began);
    audit.look(cluster.nodes()).await?;
    check_exclusive(stage, &snapshot);

    let began = Instant::now();
    stage.say("orange wants a node that red has");
    play::apply(&client, &load(ORANGE)?).await?;
    let snapshot = cluster
        .until("orange is refused red's node with a reason", LIMIT, |snapshot| {
            // Before that the scheduler may still have missed its template or its claim.
            let refused = |pod: &PodView| pod.reason.as_ref().is_some_and(|reason| reason.contains("cannot allocate"));
            let waiting = |pod: &PodView| owned_by(pod, "orange") && pod.node.is_none() && refused(pod);
            if pods(cluster, snapshot).iter().any(waiting) { Ok(()) } else { Err("its pod gives no reason yet".into()) }
        })
        .await?;
    stage.time("refusedMs", began);
    audit.look(cluster.nodes()).await?;
    draw(cluster, stage, options, &snapshot, "red's nodes are red's alone, although they have GPUs to spare");

    let began = Instant::now();
    let freed = channel_of(&snapshot, "green").context("green has no channel")?;
    stage.say("green is deleted");
    play::delete(&client, &load(GREEN)?).await?;
    cluster
        .until("green's channel is freed", LIMIT, |snapshot| {
            let left = pods(cluster, snapshot).iter().filter(|pod| pod.namespace == "green").count();
            let held = (snapshot.domains.iter().flat_map(|domain| &domain.status))
                .any(|status| status.channels.values().any(|entry| entry.compute_domain == "green/green"));
            match (left, held) {
                (0, false) => Ok(()),
                (0, true) => Err("its channel is still in the channel map".into()),
                _ => Err(format!("{left} of its pods are still there")),
            }
        })
        .await?;
    stage.time("freedMs", began);
    audit.look(cluster.nodes()).await?;
    stage.say(&format!("its channel {freed} was drained and freed"));

    let began = Instant::now();
    stage.say("teal takes the GPUs that green has left");
    play::apply(&client, &load(TEAL)?).await?;
    let snapshot = running(cluster, &["teal"], 2).await?;
    stage.time("reusedMs", began);
    audit.look(cluster.nodes()).await?;
    draw(cluster, stage, options, &snapshot, "green is gone, teal uses its GPUs");
    if channel_of(&snapshot, "teal") == Some(freed) {
        stage.problem(format!("teal got channel {freed}, which had just been freed, although others are free"));
    }
    check_channels_differ(stage, &snapshot);
    Ok(())
}

/// Kills a node's agent once the node has work of a ComputeDomain to do.
async fn chaos(cluster: &Cluster, stage: &Stage, node: &str, cd: &str) -> anyhow::Result<()> {
    cluster
        .until("work reaches the node whose agent is to be killed", LIMIT, |snapshot| {
            let here = |pod: &PodView| owned_by(pod, cd) && pod.node.as_deref() == Some(node);
            if pods(cluster, snapshot).iter().any(here) {
                Ok(())
            } else {
                Err(format!("no pod of {cd} is on {node} yet"))
            }
        })
        .await?;
    cluster.kill_agent(node);
    stage.say(&format!("chaos: the agent of {node} was killed (SIGKILL) while it prepares claims"));
    Ok(())
}

fn load((name, text): (&str, &str)) -> anyhow::Result<Vec<Document>> {
    manifest::parse(Path::new(&format!("integration/manifests/{name}.yaml")), text).map_err(|problems| {
        let lines: Vec<_> = problems.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("{}", lines.join("; "))
    })
}

fn pods(cluster: &Cluster, snapshot: &Snapshot) -> Vec<PodView> {
    snapshot.pods(&cluster.channels())
}

fn owned_by(pod: &PodView, cd: &str) -> bool {
    pod.namespace == cd
}

async fn running(cluster: &Cluster, namespaces: &[&str], wanted: usize) -> anyhow::Result<Snapshot> {
    let what = format!("{wanted} pods of {} run", namespaces.join(", "));
    cluster
        .until(&what, LIMIT, |snapshot| {
            let pods = pods(cluster, snapshot);
            let mine = pods.iter().filter(|pod| namespaces.contains(&pod.namespace.as_str()));
            let (runs, waits): (Vec<_>, Vec<_>) = mine.partition(|pod| pod.phase == "Running" && pod.channel.is_some());
            let ready = (snapshot.compute_domains().iter())
                .filter(|cd| namespaces.contains(&cd.namespace.as_str()) && !cd.ready)
                .map(|cd| cd.name.clone())
                .next();
            match ready {
                None if runs.len() >= wanted => Ok(()),
                Some(cd) if runs.len() >= wanted => Err(format!("ComputeDomain {cd} is not Ready")),
                _ => Err(format!(
                    "{} run; {}",
                    runs.len(),
                    waits
                        .iter()
                        .map(|pod| format!("{}: {}", pod.key(), pod.reason.as_deref().unwrap_or(&pod.phase)))
                        .collect::<Vec<_>>()
                        .join("; ")
                )),
            }
        })
        .await
}

fn draw(cluster: &Cluster, stage: &Stage, options: &Options, snapshot: &Snapshot, title: &str) {
    stage.say(title);
    let cds = snapshot.compute_domains();
    stage.show(&picture::draw(&cluster.rows(), options.gpus_per_node, &pods(cluster, snapshot), &cds, stage.colour()));
}

fn channel_of(snapshot: &Snapshot, name: &str) -> Option<u32> {
    snapshot.compute_domains().iter().find(|cd| cd.name == name)?.cliques.first().map(|clique| clique.channel)
}

fn check_channels_differ(stage: &mut Stage, snapshot: &Snapshot) {
    for domain in &snapshot.domains {
        let entries: Vec<_> = domain.status.iter().flat_map(|status| status.channels.values()).collect();
        for (index, one) in entries.iter().enumerate() {
            for other in &entries[index + 1..] {
                if one.channel == other.channel {
                    stage.problem(format!(
                        "{} and {} have channel {}",
                        one.compute_domain, other.compute_domain, one.channel
                    ));
                }
            }
        }
    }
}

fn check_exclusive(stage: &mut Stage, snapshot: &Snapshot) {
    let cds = snapshot.compute_domains();
    let Some(red) = cds.iter().find(|cd| cd.isolation_mode == IsolationMode::Domain) else {
        return stage.problem("no ComputeDomain has an IMEX domain of its own".into());
    };
    for cd in cds.iter().filter(|cd| cd.name != red.name) {
        if let Some(node) = cd.nodes.iter().find(|node| red.nodes.contains(node)) {
            stage.problem(format!("{} is on {node}, which red has for itself", cd.name));
        }
        let shared = cd.cliques.iter().any(|one| red.cliques.iter().any(|other| one.imex_domain == other.imex_domain));
        if shared {
            stage.problem(format!("{} is in red's IMEX domain", cd.name));
        }
    }
}
