use std::path::PathBuf;

use clap::{Args, Subcommand};
use heddle_integration::bench::{self, BootAmounts, ExclusiveAmounts, NodeAmounts, Options, ScaleAmounts, Shared};

/// Measures what Heddle costs, and prints each figure beside its budget.
///
/// Agent, runner and controller are real processes; the NVML library, the IMEX daemon and the device files are fakes.
/// Without a scene: `node`.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    scene: Option<Scene>,
    #[command(flatten)]
    node: Node,
    /// Measure the agent, runner and controller of this binary instead of this one's, for instance that of the image
    #[arg(long, value_name = "FILE", global = true)]
    binary: Option<PathBuf>,
    /// Let IMEX daemons take peers without certificates
    #[arg(long, global = true)]
    insecure_peers: bool,
    /// Print one JSON document instead of a table
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Scene {
    /// Claims, starts and rest on one node
    Node(Node),
    /// The nodes of a clique boot at once, and one more joins
    Boot(Boot),
    /// Nodes move into the IMEX domain of an exclusive ComputeDomain, and back
    Exclusive(Exclusive),
    /// The controller of a large cluster of light nodes
    Scale(Scale),
}

#[derive(Args)]
struct Node {
    /// Measure against this cluster instead of an embedded API server; everything made there is removed again, but for
    /// the CustomResourceDefinitions. Peers are not authenticated then
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Claims that are prepared one after the other
    #[arg(long, default_value_t = 300)]
    claims: u32,
    /// ComputeDomains that the node enters for the first time
    #[arg(long, default_value_t = 50)]
    compute_domains: u32,
    /// Cycles of Prepare and Unprepare at each degree of parallelism
    #[arg(long, default_value_t = 2000)]
    cycles: u32,
    /// Starts of the agent
    #[arg(long, default_value_t = 10)]
    starts: u32,
}

#[derive(Args)]
struct Boot {
    /// Nodes of the clique
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u32).range(2..=18))]
    nodes: u32,
    /// Seconds for which the clique is watched at rest; 0 for not at all
    #[arg(long, default_value_t = 20)]
    idle_seconds: u32,
}

#[derive(Args)]
struct Exclusive {
    /// Nodes of the clique
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=18))]
    nodes: u32,
    /// Nodes of them that move
    #[arg(long, default_value_t = 4)]
    moving: u32,
}

#[derive(Args)]
struct Scale {
    /// Nodes
    #[arg(long, default_value_t = 10_000)]
    nodes: u32,
    /// NVLink partitions that they are spread over, of up to 18 nodes
    #[arg(long, default_value_t = 556)]
    cliques: u32,
    /// ComputeDomains that stay, each with claims on two nodes
    #[arg(long, default_value_t = 2000)]
    cds: u32,
    /// Seconds in which further ComputeDomains come and go
    #[arg(long, default_value_t = 60)]
    churn_seconds: u32,
    /// How many come in each of these seconds
    #[arg(long, default_value_t = 50)]
    churn_rate: u32,
    /// Nodes that reboot
    #[arg(long, default_value_t = 200)]
    reboots: u32,
    /// Smaller clusters to measure before, to show what grows with the size
    #[arg(long, value_name = "NODES,…", value_delimiter = ',', default_value = "100,1000")]
    before: Vec<u32>,
}

impl From<Node> for bench::Scene {
    fn from(node: Node) -> Self {
        let (claims, compute_domains) = (node.claims, node.compute_domains);
        let amounts = NodeAmounts { claims, compute_domains, cycles: node.cycles, starts: node.starts };
        Self::Node { kubeconfig: node.kubeconfig, amounts }
    }
}

impl From<Scene> for bench::Scene {
    fn from(scene: Scene) -> Self {
        match scene {
            Scene::Node(node) => node.into(),
            Scene::Boot(Boot { nodes, idle_seconds }) => Self::Boot(BootAmounts { nodes, idle_seconds }),
            Scene::Scale(scale) => Self::Scale(ScaleAmounts {
                nodes: scale.nodes,
                cliques: scale.cliques,
                compute_domains: scale.cds,
                churn_seconds: scale.churn_seconds,
                churn_rate: scale.churn_rate,
                reboots: scale.reboots,
                before: scale.before,
            }),
            Scene::Exclusive(Exclusive { nodes, moving }) => Self::Exclusive(ExclusiveAmounts { nodes, moving }),
        }
    }
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        let scene = self.scene.map_or_else(|| self.node.into(), Into::into);
        let shared = Shared { binary: self.binary, insecure_peers: self.insecure_peers };
        let options = Options { scene, shared, json: self.json };
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(bench::run(options))
    }
}
