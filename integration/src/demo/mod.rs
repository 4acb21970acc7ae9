//! The demo: a picture of ComputeDomains sharing nodes, played on the embedded cluster.

mod audit;
pub(crate) mod cluster;
mod isolation;
mod manifest;
mod moves;
mod own;
mod picture;
mod play;
pub(crate) mod process;
pub(crate) mod provision;
mod report;
mod scenes;
mod snapshot;
mod stage;

use std::path::PathBuf;

use tokio::signal::unix::{Signal, SignalKind, signal};

pub use manifest::Problem;

/// What the demo is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// The user's own manifests; empty for the built-in scenes.
    pub files: Vec<PathBuf>,
    /// Nodes in the cluster.
    pub nodes: u32,
    /// GPUs on each node.
    pub gpus_per_node: u32,
    /// NVLink partitions that the nodes are spread over.
    pub cliques: u32,
    /// One JSON document at the end, instead of the picture.
    pub json: bool,
    /// Go on until interrupted.
    pub serve: bool,
    /// Kill agents and the leading controller in the middle.
    pub chaos: bool,
    /// Keep the cluster's files.
    pub keep: bool,
    /// Words before the path of this binary that start it.
    pub launcher: Vec<String>,
    /// Whether the picture has colours.
    pub colour: bool,
}

/// Why a demo did not come to its end.
#[derive(Debug)]
pub enum Failure {
    /// The options or files cannot be played; nothing was started.
    Input(Vec<String>),
    /// The cluster could not do it.
    Cluster(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Cluster(error)
    }
}

/// Plays the demo. The answer is whether all that it asserts held.
///
/// # Errors
/// See [`Failure`].
pub async fn run(options: Options) -> Result<bool, Failure> {
    let documents = if options.files.is_empty() {
        scenes::check(&options).map_err(Failure::Input)?;
        Vec::new()
    } else {
        manifest::load(&options.files)
            .map_err(|problems| Failure::Input(problems.iter().map(ToString::to_string).collect()))?
    };
    let most = options.cliques * heddle_core::names::DEFAULT_MAX_MEMBERS;
    if options.nodes > most || options.cliques > options.nodes {
        return Err(Failure::Input(vec![format!(
            "--nodes {} does not fit --cliques {}: expected between one and {} nodes for each clique",
            options.nodes,
            options.cliques,
            heddle_core::names::DEFAULT_MAX_MEMBERS
        )]));
    }
    let mut stage = stage::Stage::new(&options);
    let mut interrupts = Interrupts::new()?;
    // Not interrupted half-way, so that whatever was started is also ended; it takes a moment only.
    let cluster = cluster::Cluster::start(&options, &stage).await?;
    let played = tokio::select! {
        played = perform(&cluster, &options, &documents, &mut stage) => played,
        () = interrupts.next() => {
            cluster.stop(options.keep).await;
            return Err(interrupted());
        }
    };
    if options.serve && played.is_ok() {
        stage.serving(&cluster);
        interrupts.next().await;
    }
    let kept = cluster.stop(options.keep || played.is_err()).await;
    if let Some(folder) = kept {
        stage.say(&format!("the cluster's files and logs are in {}", folder.display()));
    }
    Ok(played?)
}

async fn perform(
    cluster: &cluster::Cluster,
    options: &Options,
    documents: &[manifest::Document],
    stage: &mut stage::Stage,
) -> anyhow::Result<bool> {
    cluster.ready(stage).await?;
    let mut audit = audit::Audit::default();
    if documents.is_empty() {
        scenes::play(cluster, options, stage, &mut audit).await?;
    } else {
        own::play(cluster, documents, options, stage, &mut audit).await?;
    }
    report::finish(cluster, options, stage, &mut audit).await
}

fn interrupted() -> Failure {
    Failure::Cluster(anyhow::anyhow!("interrupted"))
}

/// Ctrl-C, and what a supervisor sends.
struct Interrupts {
    terminate: Signal,
    interrupt: Signal,
}

impl Interrupts {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
