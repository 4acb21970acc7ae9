//! The way to the API server.

use std::path::Path;

use anyhow::{Context, bail};
use heddle_actors::api_requests::ApiRequests;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A client for the cluster of a kubeconfig, or of the pod that this process runs in, and the count of its requests.
///
/// # Errors
/// One sentence that names the file and what to do.
pub async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<(Client, ApiRequests)> {
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).with_context(|| {
                format!("{} is no usable kubeconfig; correct it or set --kubeconfig", path.display())
            })?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.with_context(|| {
                format!("{} names no usable cluster; correct it or set --kubeconfig", path.display())
            })?
        }
        None => match Config::incluster() {
            Ok(config) => config,
            Err(error) => bail!("this is no pod of a cluster ({error}); set --kubeconfig"),
        },
    };
    // An API server that is away is waited for; whoever reads the log then wants to know which one.
    tracing::info!(server = %config.cluster_url, "API server");
    let requests = ApiRequests::default();
    let builder = ClientBuilder::try_from(config).context("no client could be made from the kubeconfig")?;
    Ok((builder.with_layer(&requests).build(), requests))
}
