//! Calls an agent as the kubelet does: over its socket, one call a claim.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use heddle_proto::dra::v1::Claim;

use crate::kubelet::Plugin;

/// The kubelet's own limit on a call.
pub const CALL: Duration = Duration::from_secs(45);

/// One connection to an agent.
#[derive(Clone)]
pub struct Caller {
    plugin: Plugin,
}

impl Caller {
    /// A caller at this service socket.
    pub fn new(socket: PathBuf) -> Self {
        Self { plugin: Plugin::connect(socket) }
    }

    /// Prepares a claim. The answer is what that took.
    ///
    /// # Errors
    /// When it was not prepared.
    pub async fn prepare(&self, claim: &Claim) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let answer = self.plugin.prepare(vec![claim.clone()], CALL).await.context("NodePrepareResources")?;
        let took = began.elapsed();
        match answer.get(&claim.uid) {
            Some(answer) if answer.error.is_empty() && !answer.devices.is_empty() => Ok(took),
            Some(answer) => bail!("claim {} was not prepared: {}", claim.name, answer.error),
            None => bail!("claim {} is missing in the answer", claim.name),
        }
    }

    /// Unprepares a claim. The answer is what that took.
    ///
    /// # Errors
    /// When it was not unprepared.
    pub async fn unprepare(&self, claim: &Claim) -> anyhow::Result<Duration> {
        let began = Instant::now();
        let answer = self.plugin.unprepare(vec![claim.clone()], CALL).await.context("NodeUnprepareResources")?;
        let took = began.elapsed();
        match answer.get(&claim.uid) {
            Some(answer) if answer.error.is_empty() => Ok(took),
            Some(answer) => bail!("claim {} was not unprepared: {}", claim.name, answer.error),
            None => bail!("claim {} is missing in the answer", claim.name),
        }
    }
}
