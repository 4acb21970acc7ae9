//! What Heddle costs, measured on its real processes and printed beside the budgets of the design.
//!
//! Figures depend on the machine; budgets are what the project promises on two cores. Nothing here is a test: it fails
//! when something does not work, never because it is slow.

mod bed;
mod boot;
mod caller;
mod claims;
mod daemons;
mod embedded;
mod exclusive;
mod figures;
mod journal;
mod node;
mod process;
mod rack;
mod scale;
mod scrape;

use std::path::PathBuf;
use std::time::Instant;

use bed::Bed;
use figures::{Distribution, Figures};

use crate::demo::provision::Binary;

pub use boot::Amounts as BootAmounts;
pub use exclusive::Amounts as ExclusiveAmounts;
pub use node::Amounts as NodeAmounts;
pub use scale::Amounts as ScaleAmounts;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// The scene.
    pub scene: Scene,
    /// What all scenes have.
    pub shared: Shared,
    /// One JSON document instead of a table.
    pub json: bool,
}

/// One set of figures.
#[derive(Clone, Debug)]
pub enum Scene {
    /// Claims, starts and rest on one node.
    Node {
        /// The cluster to measure against; an embedded API server if none.
        kubeconfig: Option<PathBuf>,
        /// How much is done.
        amounts: NodeAmounts,
    },
    /// The nodes of a clique boot.
    Boot(BootAmounts),
    /// Nodes move into an exclusive domain and back.
    Exclusive(ExclusiveAmounts),
    /// The controller of a large cluster.
    Scale(ScaleAmounts),
}

/// What all scenes have.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    /// The binary whose agent, runner and controller are measured; this one if none.
    pub binary: Option<PathBuf>,
    /// Daemons take peers without certificates.
    pub insecure_peers: bool,
}

impl Shared {
    /// This binary, which plays the fakes, and the one that is measured.
    fn binaries(&self) -> anyhow::Result<(Binary, Binary)> {
        let own = Binary::own(Vec::new())?;
        let measured = Binary { path: self.binary.clone().unwrap_or_else(|| own.path.clone()), ..own.clone() };
        Ok((own, measured))
    }
}

/// Measures and prints the figures.
///
/// # Errors
/// When something that is measured fails, in one sentence.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let Options { scene, shared, json } = options;
    let mut figures = Figures::default();
    let peers = if shared.insecure_peers { "peers not authenticated" } else { "peers authenticated" };
    let title = match scene {
        Scene::Node { kubeconfig, amounts } => {
            let mut bed = Bed::start(kubeconfig.as_deref(), &shared).await?;
            let measured = node::measure(&mut bed, amounts, &mut figures).await;
            bed.stop().await;
            measured?;
            match kubeconfig {
                Some(path) => format!("One node against {}", path.display()),
                None => format!("One node against an embedded API server, {peers}"),
            }
        }
        Scene::Boot(amounts) => {
            boot::measure(&shared, amounts, &mut figures).await?;
            format!("{} nodes on this machine, {peers}", amounts.nodes)
        }
        Scene::Scale(amounts) => {
            let title = format!("{} light nodes against an embedded API server", amounts.nodes);
            scale::measure(&shared, amounts, &mut figures).await?;
            title
        }
        Scene::Exclusive(amounts) => {
            exclusive::measure(&shared, amounts, &mut figures).await?;
            format!("{} nodes on this machine, {peers}", amounts.nodes)
        }
    };
    if json {
        println!("{}", serde_json::to_string_pretty(figures.lines())?);
    } else {
        println!("{title}:\n\n{}", figures.table());
    }
    Ok(())
}

/// Durations from one moment to others.
fn since(began: Instant, times: impl IntoIterator<Item = Instant>) -> Distribution {
    Distribution::new(times.into_iter().map(|at| at.saturating_duration_since(began)).collect())
}
