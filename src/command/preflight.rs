use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use heddle_actors::preflight::{self, Settings};
use heddle_actors::runtime;
use heddle_core::preflight::{Grade, Line, check, text, worst};
use serde_json::json;

use super::client;
use super::host::Host;
use super::node::NodePlaces;

/// Prints one line a check: OK, WARN or FAIL, what was found and what to do. Exit code 1 when something fails.
///
/// Give it the flags that the agent has. It changes nothing on the node.
#[derive(Args)]
pub struct Preflight {
    /// Print one JSON document instead
    #[arg(long)]
    json: bool,
    /// Kubeconfig; inside a cluster the pod's service account is used. Without either the API is not asked
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Name of this Node
    #[arg(long, env = "NODE_NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    node: NodePlaces,
    #[command(flatten)]
    host: Host,
}

impl Preflight {
    pub fn run(self) -> ExitCode {
        let json = self.json;
        let lines = match runtime::block_on(self.look()) {
            Ok(lines) => lines,
            Err(error) => {
                eprintln!("heddle: {error:#}");
                return ExitCode::FAILURE;
            }
        };
        let document = match json {
            true => format!("{:#}\n", json!({"worst": worst(&lines), "checks": lines})),
            false => text(&lines),
        };
        // A reader that has gone away has read what it wanted.
        let _ = std::io::stdout().write_all(document.as_bytes());
        if worst(&lines) == Grade::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    async fn look(self) -> anyhow::Result<Vec<Line>> {
        let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let client = match self.kubeconfig.is_some() || in_pod {
            true => Some(client::connect(self.kubeconfig.as_deref()).await?.0),
            false => None,
        };
        let settings = Settings {
            client,
            node_name: self.node_name,
            pod_uid: None,
            driver_root: self.node.driver_root,
            proc_root: self.node.proc_root,
            access: self.node.fabric_access,
            plugins_dir: self.node.kubelet_plugins_dir,
            registry_dir: self.node.kubelet_registry_dir,
            cdi_dir: self.node.cdi_dir,
            state_dir: self.node.state_dir,
            runner_socket: self.node.runner_socket,
            imex_mode: self.node.imex_mode,
            slots: self.node.slots,
            places: self.host.places(),
            runtime_guard: self.host.runtime_guard.into(),
            host: self.host.root(),
            container_runtime_version: self.host.containerd_version,
        };
        let facts = preflight::gather(&settings).await.map_err(anyhow::Error::msg)?;
        Ok(check(&facts))
    }
}
