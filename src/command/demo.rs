use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use heddle_integration::demo::{self, Options};

/// Starts an embedded cluster with fake GPUs and plays ComputeDomains on it.
///
/// Agents, runners, the controller and all sockets between them are real; the NVML library, the IMEX daemon and the
/// device files are fakes. Needs no root and leaves nothing behind.
#[derive(Args)]
pub struct Demo {
    /// Play these manifests instead of the built-in scenes
    #[arg(short = 'f', long = "filename", value_name = "FILE", num_args = 1..)]
    files: Vec<PathBuf>,
    /// Nodes in the cluster
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=250))]
    nodes: u32,
    /// GPUs on each node
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=16))]
    gpus_per_node: u32,
    /// NVLink partitions that the nodes are spread over; at most 18 nodes fit in one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=250))]
    cliques: u32,
    /// Print one JSON document at the end, instead of the picture
    #[arg(long)]
    json: bool,
    /// Go on until interrupted, and print a kubeconfig for kubectl
    #[arg(long)]
    serve: bool,
    /// Kill a node's agent (SIGKILL) in the middle: the picture must be the same
    #[arg(long)]
    chaos: bool,
    /// Keep the logs and files of the cluster, and say where they are
    #[arg(long)]
    keep: bool,
    /// Command that starts this binary, where it cannot be started directly (an emulator)
    #[arg(long, hide = true, env = "HEDDLE_LAUNCHER", value_delimiter = ' ')]
    launcher: Vec<String>,
}

impl Demo {
    pub fn run(self) -> ExitCode {
        let options = Options {
            files: self.files,
            nodes: self.nodes,
            gpus_per_node: self.gpus_per_node,
            cliques: self.cliques,
            json: self.json,
            serve: self.serve,
            chaos: self.chaos,
            keep: self.keep,
            launcher: self.launcher,
            colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("heddle: the demo could not start: {error}");
                return ExitCode::FAILURE;
            }
        };
        match runtime.block_on(demo::run(options)) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(demo::Failure::Input(problems)) => {
                for problem in problems {
                    eprintln!("heddle: {problem}");
                }
                ExitCode::from(2)
            }
            Err(demo::Failure::Cluster(error)) => {
                eprintln!("heddle: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}
