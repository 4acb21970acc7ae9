use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use heddle_actors::{runner, runtime};

/// Runs on every node in a DaemonSet of its own that is never updated by itself.
#[derive(Args)]
pub struct ImexRunner {
    /// Folder for the daemon's configuration and state; on tmpfs, so that it survives this pod but no boot
    #[arg(long, default_value = "/run/heddle", env = "HEDDLE_RUNNER_DIR")]
    dir: PathBuf,
    /// Socket that the agent connects to [default: runner.sock in --dir]
    #[arg(long, env = "HEDDLE_RUNNER_SOCKET")]
    socket: Option<PathBuf>,
    /// Folder below which the NVIDIA driver is installed
    #[arg(long, default_value = "/", env = "HEDDLE_DRIVER_ROOT")]
    driver_root: PathBuf,
    /// The hosts file by which the daemon resolves the names of its peers
    #[arg(long, env = "HEDDLE_HOSTS_FILE")]
    hosts_file: PathBuf,
    /// Port on which the daemons of a domain reach each other
    #[arg(long, default_value_t = 50000, env = "HEDDLE_PEER_PORT")]
    peer_port: u16,
    /// A key of the daemon's configuration file, as KEY=VALUE; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    settings: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.into(), value.into()))
}

impl ImexRunner {
    pub fn run(self) -> anyhow::Result<()> {
        runtime::block_on(async move {
            let settings = runner::Settings {
                socket: self.socket.unwrap_or_else(|| self.dir.join("runner.sock")),
                command_socket: self.dir.join("imex.sock"),
                dir: self.dir,
                driver_root: self.driver_root,
                hosts_file: self.hosts_file,
                peer_port: self.peer_port,
                settings: BTreeMap::from_iter(self.settings),
                timing: runner::Timing::default(),
            };
            runner::preflight(&settings).context("the runner did not start")?;
            runner::run(settings, runtime::signals()).await.context("the runner ended")
        })
    }
}
