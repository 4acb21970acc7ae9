//! How the scheduler and the controllers run: woken by events, one pass over what is in view, and again.

use std::time::Duration;

use super::watched::Wake;

const MIN_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Something that brings the cluster from what it sees to what should be, one pass at a time.
pub trait Component: Send + 'static {
    /// What it is called in logs.
    const NAME: &'static str;

    /// Is everything in view that a pass decides on, the component's own writes included?
    fn caught_up(&self) -> bool;

    /// Decides and acts. An error is one of a write; the pass is repeated.
    fn pass(&mut self) -> impl Future<Output = Result<(), kube::Error>> + Send;
}

/// Runs a component for ever.
pub async fn run(mut component: impl Component, wake: Wake) -> anyhow::Error {
    run_passes(&mut component, &wake).await
}

async fn run_passes<C: Component>(component: &mut C, wake: &Wake) -> anyhow::Error {
    let mut backoff = MIN_BACKOFF;
    loop {
        wake.notified().await;
        while component.caught_up() {
            match component.pass().await {
                Ok(()) => {
                    backoff = MIN_BACKOFF;
                    break;
                }
                Err(error) => {
                    // Mostly somebody else was faster; the watch brings their write. If it brought it already, no
                    // event will come, so the next pass must not wait for one.
                    tracing::debug!(component = C::NAME, %error, "a write failed");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(MAX_BACKOFF);
                }
            }
        }
    }
}

/// Takes an answer that somebody else made unnecessary for a success: the object is gone, or is there already.
pub fn unless_moot<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}
