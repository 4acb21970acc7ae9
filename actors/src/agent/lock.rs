use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// How often a lock that another agent holds is tried. The kernel tells nobody when it becomes free, short of a thread
/// that waits for it.
const RETRY: Duration = Duration::from_millis(100);

/// The right to act for the node. During a rolling update two agents overlap; one holds this, the other stands by. It ends
/// with the process that holds it, however that ends.
pub(super) struct Lock {
    file: File,
    state_dir: PathBuf,
}

impl Lock {
    /// The lock of this node, which is not taken yet.
    ///
    /// # Errors
    /// Fatal, if the state directory cannot be made or written.
    pub(super) fn open(state_dir: &Path) -> Result<Self, Fault> {
        let open = || {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
            OpenOptions::new().create(true).append(true).mode(0o600).open(state_dir.join("agent.lock"))
        };
        let file = open().map_err(|error| fatal(state_dir, &error))?;
        Ok(Self { file, state_dir: state_dir.to_owned() })
    }

    /// Takes it, unless another agent acts for this node.
    pub(super) fn try_take(&self) -> Result<bool, Fault> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(fatal(&self.state_dir, &error.into())),
        }
    }

    /// Waits until no other agent acts for this node.
    pub(super) async fn take(&self) -> Result<(), Fault> {
        while !self.try_take()? {
            tokio::time::sleep(RETRY).await;
        }
        Ok(())
    }
}

fn fatal(state_dir: &Path, error: &std::io::Error) -> Fault {
    let text = format!(
        "the state directory {} cannot be written: {error}; create it for this user or set --state-dir",
        state_dir.display()
    );
    Fault::fatal(reason::NODE_IO, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_agent_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("deep/state");
        let first = Lock::open(&state).unwrap();
        assert!(first.try_take().unwrap());
        let second = Lock::open(&state).unwrap();
        assert!(!second.try_take().unwrap());
        let mut taken = std::pin::pin!(second.take());
        assert!(futures::poll!(&mut taken).is_pending());
        drop(first);
        taken.await.unwrap();
    }

    #[tokio::test]
    async fn an_unusable_folder_is_said() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let fault = Lock::open(&dir.path().join("file/state")).err().unwrap();
        assert!(fault.message.contains("--state-dir"), "{fault}");
    }
}
