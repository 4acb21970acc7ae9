use std::path::PathBuf;

use clap::Args;
use heddle_integration::bench::{self, Amounts, Options};

/// Measures what claims, starts and rest cost on a node, and prints each figure beside its budget.
///
/// Agent, runner and controller are real processes; the NVML library, the IMEX daemon and the device files are fakes.
#[derive(Args)]
pub struct Bench {
    /// Measure against this cluster instead of an embedded API server; everything made there is removed again, but for
    /// the CustomResourceDefinitions
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Measure the agent, runner and controller of this binary instead of this one's, for instance that of the image
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
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
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn run(self) -> anyhow::Result<()> {
        let (claims, compute_domains) = (self.claims, self.compute_domains);
        let amounts = Amounts { claims, compute_domains, cycles: self.cycles, starts: self.starts };
        let options = Options { kubeconfig: self.kubeconfig, binary: self.binary, amounts, json: self.json };
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(bench::run(options))
    }
}
