use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use heddle_actors::{controller, runtime};

use super::client;

/// Runs once per cluster, as a Deployment.
#[derive(Args)]
pub struct Controller {
    /// Kubeconfig; inside a cluster the pod's service account is used
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where to serve /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", env = "HEDDLE_METRICS_ADDRESS")]
    metrics_address: Option<SocketAddr>,
}

impl Controller {
    pub fn run(self) -> anyhow::Result<()> {
        runtime::block_on(async move {
            let (client, requests) = client::connect(self.kubeconfig.as_deref()).await?;
            let settings = controller::Settings { client, requests, metrics: self.metrics_address };
            controller::run(settings, runtime::signals()).await.context("the controller ended")
        })
    }
}
