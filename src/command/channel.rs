use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use heddle_actors::channel_admin::{self, Wanted};
use heddle_actors::runtime;
use heddle_core::channels::{State, text};
use heddle_core::clique::CliqueId;
use heddle_core::fault::Fault;

use super::client;

/// Shows the IMEX channels of ComputeDomains, and gives back those of nodes that are lost for good.
#[derive(Args)]
pub struct Channel {
    #[command(subcommand)]
    what: What,
    /// Kubeconfig; inside a cluster the pod's service account is used
    #[arg(long, global = true, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// List every channel number in use: who has it, which nodes use it, what it waits for
    List(List),
    /// Give back the channels of a node that is off for good
    Release(Release),
}

#[derive(Args)]
struct List {
    /// Only those of this clique, `<clusterUUID>.<cliqueId>`
    #[arg(long)]
    clique: Option<CliqueId>,
    /// Only those that lost nodes keep from being given to others
    #[arg(long)]
    quarantined: bool,
    /// How they are printed
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Say this only of a node that is powered off, or that has been imaged anew under another name. If its pods run on, they
/// can read the memory of whoever gets the number next. A node that comes back under its name gives its channels back by
/// itself.
#[derive(Args)]
struct Release {
    /// Name of the node
    #[arg(long)]
    node: String,
    /// Only the channel of this ComputeDomain: its UID, or namespace/name
    #[arg(long)]
    compute_domain: Option<String>,
    /// Say what would be released, and release nothing
    #[arg(long)]
    dry_run: bool,
    /// You have made sure yourself that no pod runs on the node, though the cluster says that the node is alive
    #[arg(long)]
    i_know_that_the_node_is_off: bool,
}

impl Channel {
    pub fn run(self) -> anyhow::Result<()> {
        let document = runtime::block_on(async {
            let (client, _) = client::connect(self.kubeconfig.as_deref()).await?;
            match self.what {
                What::List(list) => list.run(&client).await,
                What::Release(release) => release.run(&client).await,
            }
        })?;
        // A reader that has gone away has read what it wanted.
        let _ = std::io::stdout().write_all(document.as_bytes());
        Ok(())
    }
}

impl List {
    async fn run(self, client: &kube::Client) -> anyhow::Result<String> {
        let clique = self.clique.map(|clique| clique.to_string());
        let mut channels = channel_admin::list(client, clique.as_deref()).await.map_err(said)?;
        channels.retain(|channel| !self.quarantined || channel.state == State::Quarantined);
        Ok(match self.output {
            Output::Text if self.quarantined && channels.is_empty() => "no channel is in quarantine\n".into(),
            Output::Text => text(&channels),
            Output::Json => format!("{:#}\n", serde_json::to_value(&channels)?),
        })
    }
}

impl Release {
    async fn run(self, client: &kube::Client) -> anyhow::Result<String> {
        let wanted = Wanted {
            node: self.node,
            compute_domain: self.compute_domain,
            vouched: self.i_know_that_the_node_is_off,
            dry_run: self.dry_run,
        };
        let release = channel_admin::release(client, &wanted).await.map_err(said)?;
        Ok(release.told(&wanted))
    }
}

fn said(fault: Fault) -> anyhow::Error {
    anyhow::anyhow!("{}: {fault}", fault.reason)
}
