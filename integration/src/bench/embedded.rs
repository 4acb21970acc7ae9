//! The embedded API server of a measurement.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use heddle_core::names;
use kube::config::Kubeconfig;

use super::process;
use crate::api::{ApiServer, Listening, Options, User};

/// Heddle's own namespace in it.
pub const NAMESPACE: &str = "heddle";

/// An API server on a thread of its own, so that its work is not taken for ours.
pub struct Embedded {
    /// The server.
    pub server: ApiServer,
    listening: Listening,
    /// Its thread, below `/proc`.
    thread: PathBuf,
}

impl Embedded {
    /// Starts it.
    ///
    /// # Errors
    /// When no port or thread can be had.
    pub fn start(options: Options) -> anyhow::Result<Self> {
        let server = ApiServer::new(options);
        let (told, listening) = std::sync::mpsc::channel();
        let serving = server.clone();
        std::thread::Builder::new().name("api".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let serve = async {
                let thread = std::fs::read_link("/proc/thread-self");
                let listening = serving.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
                // The receiver waits for it.
                let _ = told.send(listening.and_then(|listening| Ok((listening, thread?))));
                std::future::pending::<()>().await;
            };
            match runtime {
                Ok(runtime) => runtime.block_on(serve),
                Err(error) => drop(told.send(Err(error))),
            }
        })?;
        let (listening, thread) = listening.recv()?.context("the API server cannot listen")?;
        Ok(Self { server, listening, thread: Path::new("/proc").join(thread) })
    }

    /// Writes a kubeconfig of somebody who may do everything.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn kubeconfig(&self, path: &Path) -> anyhow::Result<()> {
        write(path, &self.server.kubeconfig(&self.listening))
    }

    /// Writes a kubeconfig of a node's agent: its token is bound to the node, by which the controller knows who asks for
    /// a certificate.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn agent_kubeconfig(&self, path: &Path, node: &str) -> anyhow::Result<()> {
        let user = User::service_account(NAMESPACE, names::AGENT, Some(node));
        write(path, &self.server.kubeconfig_of(&self.listening, user))
    }

    /// CPU time that it has used so far.
    ///
    /// # Errors
    /// When its thread has ended.
    pub fn cpu(&self) -> anyhow::Result<Duration> {
        process::cpu_of(&self.thread)
    }
}

fn write(path: &Path, kubeconfig: &Kubeconfig) -> anyhow::Result<()> {
    let text = serde_saphyr::to_string(kubeconfig)?;
    std::fs::write(path, text).with_context(|| format!("{} could not be written", path.display()))
}
