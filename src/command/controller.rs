use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use heddle_actors::{controller, lease, runtime};
use heddle_core::controller::DriverMatch;
use heddle_core::identity::{Agents, Authentication};
use heddle_core::lease::Terms;
use heddle_core::names;

use super::client;
use super::peers::Peers;

/// Runs as a Deployment. Of several replicas one leads, the others stand by.
#[derive(Args)]
pub struct Controller {
    /// Kubeconfig; inside a cluster the pod's service account is used
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where to serve /metrics, /livez and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", env = "HEDDLE_METRICS_ADDRESS")]
    metrics_address: Option<SocketAddr>,
    #[command(flatten)]
    peers: Peers,
    /// Heddle's own namespace, where the authorities of peers are kept
    #[arg(long, default_value = "heddle", env = "POD_NAMESPACE")]
    namespace: String,
    /// Which NVIDIA drivers may meet in an IMEX domain: those of one branch (580), exactly equal ones (580.95.05), or any
    /// [branch, exact, off]
    #[arg(long, default_value_t, env = "HEDDLE_DRIVER_MATCH")]
    driver_match: DriverMatch,
    /// Name of the agents' ServiceAccount in that namespace: nobody else gets certificates
    #[arg(long, default_value = names::AGENT, env = "HEDDLE_AGENT_SERVICE_ACCOUNT")]
    agent_service_account: String,
    /// Name of this pod, by which the Lease tells who leads
    #[arg(long, value_name = "NAME", default_value = names::CONTROLLER, env = "POD_NAME")]
    pod_name: String,
    /// How long the others wait for a leader that does not renew its lease
    #[arg(long, value_name = "SECONDS", default_value_t = 8, env = "HEDDLE_LEASE_DURATION_SECONDS")]
    lease_duration_seconds: u32,
    /// How often a leader renews it
    #[arg(long, value_name = "SECONDS", default_value_t = 3, env = "HEDDLE_LEASE_RENEW_SECONDS")]
    lease_renew_seconds: u32,
}

impl Controller {
    pub fn run(self) -> anyhow::Result<()> {
        let terms = Terms::new(self.lease_duration_seconds, self.lease_renew_seconds).map_err(anyhow::Error::msg)?;
        let election = controller::Election {
            namespace: self.namespace.clone(),
            identity: lease::identity(&self.pod_name),
            terms,
        };
        runtime::block_on(async move {
            let (client, requests) = client::connect(self.kubeconfig.as_deref()).await?;
            let signer = controller::Signer {
                agents: Agents { namespace: self.namespace.clone(), service_account: self.agent_service_account },
                namespace: self.namespace,
                longest: self.peers.peer_certificate_hours * 3600,
            };
            let signs = self.peers.peer_authentication == Authentication::DomainCa;
            let settings = controller::Settings {
                client,
                requests,
                metrics: self.metrics_address,
                driver_match: self.driver_match,
                signer: signs.then_some(signer),
                election: Some(election),
            };
            controller::run(settings, runtime::signals()).await.context("the controller ended")
        })
    }
}
