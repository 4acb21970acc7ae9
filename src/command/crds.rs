use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use heddle_actors::crds::{self, Applied, Foreign};
use heddle_actors::runtime;
use heddle_core::api;

use super::client;

/// Without a subcommand prints what `kubectl apply -f -` takes.
#[derive(Args)]
pub struct Crds {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Apply them to a cluster, and wait until it serves them
    Apply {
        /// Take CustomResourceDefinitions over that another field manager has applied
        #[arg(long)]
        take_over: bool,
        /// The same, even if they have more fields than ours, which objects lose by it
        #[arg(long)]
        force: bool,
        /// Kubeconfig; inside a cluster the pod's service account is used
        #[arg(long, env = "KUBECONFIG")]
        kubeconfig: Option<PathBuf>,
    },
    /// Compare what a cluster serves with what this release needs; exit code 1 if it does not fit
    Check {
        /// Kubeconfig; inside a cluster the pod's service account is used
        #[arg(long, env = "KUBECONFIG")]
        kubeconfig: Option<PathBuf>,
    },
}

impl Crds {
    pub fn run(self) -> anyhow::Result<()> {
        match self.action {
            None => print(),
            Some(Action::Apply { take_over, force, kubeconfig }) => runtime::block_on(async move {
                let foreign = match (take_over, force) {
                    (_, true) => Foreign::Force,
                    (true, false) => Foreign::TakeOver,
                    (false, false) => Foreign::Refuse,
                };
                let (client, _) = client::connect(kubeconfig.as_deref()).await?;
                for (name, applied) in crds::apply(&client, foreign).await? {
                    println!("{name}: {}", told(&applied));
                }
                Ok(())
            }),
            Some(Action::Check { kubeconfig }) => runtime::block_on(async move {
                let (client, _) = client::connect(kubeconfig.as_deref()).await?;
                let mut misfits = 0;
                for (name, misfit) in crds::check(&client).await? {
                    match misfit {
                        None => println!("{name}: fits"),
                        Some(fault) => {
                            misfits += 1;
                            println!("{name}: {fault}");
                        }
                    }
                }
                match misfits {
                    0 => Ok(()),
                    n => bail!("{n} of {} CustomResourceDefinitions do not fit", api::crds().len()),
                }
            }),
        }
    }
}

fn told(applied: &Applied) -> String {
    match applied {
        Applied::Created => "created".into(),
        Applied::Unchanged => "unchanged".into(),
        Applied::Updated => "updated".into(),
        Applied::TakenOver(from) => {
            let from = if from.is_empty() { "another field manager".into() } else { from.join(", ") };
            format!(
                "taken over from {from}. Tell what applies it to leave it alone: otherwise its next upgrade puts its own in place \
                 again, and no new ComputeDomain is served until this is repeated"
            )
        }
    }
}

fn print() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in api::crds() {
        // By way of a JSON value, so that keys come sorted and the output is the same on every machine.
        let value = serde_json::to_value(&crd)?;
        let yaml = serde_saphyr::to_string(&value).context("the CRD could not be written as YAML")?;
        writeln!(out, "---\n{}", yaml.trim_end())?;
    }
    Ok(())
}
