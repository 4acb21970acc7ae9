//! The user's own manifests.

use std::time::{Duration, Instant};

use super::audit::Audit;
use super::cluster::Cluster;
use super::manifest::Document;
use super::snapshot::{PodView, Progress, Snapshot};
use super::stage::Stage;
use super::{Options, picture, play};

/// After so long without any change, what waits goes on waiting.
const QUIET: Duration = Duration::from_secs(3);

/// Applies them and waits until every pod runs, or nothing changes any more.
///
/// # Errors
/// When the cluster refuses an object.
pub async fn play(
    cluster: &Cluster,
    documents: &[Document],
    options: &Options,
    stage: &mut Stage,
    audit: &mut Audit,
) -> anyhow::Result<()> {
    let began = Instant::now();
    stage.say(&format!("applying {} objects", documents.len()));
    play::apply(&cluster.client(), documents).await?;
    let mut killed = !options.chaos;
    let mut quiet = Quiet::new();
    let mut changes = cluster.changes();
    let snapshot = loop {
        // Before the look: what changes while it is taken is seen by the next one.
        changes.mark_unchanged();
        let snapshot = Snapshot::take(&cluster.client()).await?;
        let pods = snapshot.pods(&cluster.channels());
        let bound = pods.iter().find_map(|pod| pod.node.clone());
        if let (false, Some(node)) = (killed, bound) {
            cluster.kill_agent(&node);
            stage.say(&format!("chaos: the agent of {node} was killed (SIGKILL)"));
            killed = true;
        }
        if is_settled(&snapshot, &pods) {
            break snapshot;
        }
        let left = quiet.left(snapshot.progress(&pods));
        if left.is_zero() {
            break snapshot;
        }
        let _ = tokio::time::timeout(left, changes.changed()).await;
        // Many changes come at once; one look serves them all.
        tokio::time::sleep(Duration::from_millis(30)).await;
    };
    stage.time("playedMs", began);
    audit.look(cluster.nodes()).await?;
    let pods = snapshot.pods(&cluster.channels());
    let waiting = pods.iter().filter(|pod| !pod.is_settled()).count();
    stage.say(&match waiting {
        0 if pods.is_empty() => "there are no pods to wait for".into(),
        0 if pods.len() == 1 => "the pod runs or has succeeded".into(),
        0 => format!("all {} pods run or have succeeded", pods.len()),
        _ => format!(
            "{} of {} pods run; nothing has changed for {} s",
            pods.len() - waiting,
            pods.len(),
            QUIET.as_secs()
        ),
    });
    let cds = snapshot.compute_domains();
    stage.show(&picture::draw(&cluster.rows(), options.gpus_per_node, &pods, &cds, stage.colour()));
    Ok(())
}

/// For how long nothing that matters has changed.
struct Quiet {
    progress: Option<Progress>,
    since: Instant,
}

impl Quiet {
    fn new() -> Self {
        Self { progress: None, since: Instant::now() }
    }

    /// How long it must still last, as of this look.
    fn left(&mut self, progress: Progress) -> Duration {
        let progress = Some(progress);
        if progress != self.progress {
            *self = Self { progress, since: Instant::now() };
        }
        QUIET.saturating_sub(self.since.elapsed())
    }
}

/// Whether every pod that is wanted exists and runs, and every ComputeDomain with pods says Ready.
fn is_settled(snapshot: &Snapshot, pods: &[PodView]) -> bool {
    let users = |key: &str| pods.iter().any(|pod| pod.compute_domain.as_deref() == Some(key));
    let cds = snapshot.compute_domains();
    snapshot.missing_pods() == 0
        && pods.iter().all(PodView::is_settled)
        && cds.iter().all(|cd| cd.ready || !users(&format!("{}/{}", cd.namespace, cd.name)))
}
