use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use heddle_actors::in_use::in_use;
use heddle_actors::runtime;

use super::client;

/// The chart runs it before an uninstall, which it stops while a ComputeDomain or an allocated claim exists.
#[derive(Args)]
pub struct UninstallCheck {
    /// Kubeconfig; inside a cluster the pod's service account is used
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Whether the agents publish whole GPUs
    #[arg(long, env = "HEDDLE_GPUS")]
    gpus: bool,
}

impl UninstallCheck {
    pub fn run(self) -> anyhow::Result<()> {
        runtime::block_on(async move {
            let (client, _) = client::connect(self.kubeconfig.as_deref()).await?;
            let in_use = in_use(client, self.gpus).await.context("the API server cannot be asked what is in use")?;
            if let Some(why) = in_use.refusal() {
                bail!(why);
            }
            println!("nothing of Heddle is in use");
            Ok(())
        })
    }
}
