use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How often a lock that another agent holds is tried. The kernel tells nobody when it becomes free, short of a thread
/// that waits for it.
const RETRY: Duration = Duration::from_millis(100);

/// The right to act for the node. During a rolling update two agents overlap; one holds this, the other waits. It ends
/// with the process that holds it, however that ends.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until no other agent acts for this node.
    ///
    /// # Errors
    /// Fatal, if the state directory cannot be made or written.
    pub(super) async fn take(state_dir: &Path) -> Result<Self, Fault> {
        let fatal = |error: std::io::Error| {
            let text = format!(
                "the state directory {} cannot be written: {error}; create it for this user or set --state-dir",
                state_dir.display()
            );
            Fault::fatal(reason::NODE_IO, text)
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir).map_err(fatal)?;
        let path = state_dir.join("agent.lock");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(fatal)?;
        let mut said = false;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK) => {
                    if !said {
                        tracing::info!(state_dir = %state_dir.display(), "another agent acts for this node; waiting for its end");
                        said = true;
                    }
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => return Err(fatal(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_agent_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
        let first = Lock::take(&state).await.unwrap();
        let mut second = std::pin::pin!(Lock::take(&state));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        second.await.unwrap();
    }

    #[tokio::test]
    async fn an_unusable_folder_is_said() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let fault = Lock::take(&dir.path().join("file/state")).await.err().unwrap();
        assert!(fault.message.contains("--state-dir"), "{fault}");
    }
}
