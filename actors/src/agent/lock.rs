use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_core::fault::{Fault, reason};
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

/// Its name in the state folder.
const FILE: &str = "agent.lock";
/// How often a lock that another agent holds is tried. The kernel tells nobody when it becomes free, short of a thread
/// that waits for it.
const RETRY: Duration = Duration::from_millis(100);

/// How often a lock that is held is looked at: somebody may remove the state folder, and an agent that comes then would
/// find another file to lock.
const LOOK: Duration = Duration::from_secs(5);

/// The right to act for the node. During a rolling update two agents overlap; one holds this, the other stands by. It ends
/// with the process that holds it, however that ends.
pub(super) struct Lock {
    file: RefCell<File>,
    state_dir: PathBuf,
}

impl Lock {
    /// The lock of this node, which is not taken yet.
    ///
    /// # Errors
    /// Fatal, if the state directory cannot be made or written.
    pub(super) fn open(state_dir: &Path) -> Result<Self, Fault> {
        let file = open(state_dir).map_err(|error| fatal(state_dir, &error))?;
        Ok(Self { file: RefCell::new(file), state_dir: state_dir.to_owned() })
    }

    /// Takes it, unless another agent acts for this node.
    pub(super) fn try_take(&self) -> Result<bool, Fault> {
        let taken = || {
            if !self.stands()? {
                self.file.replace(open(&self.state_dir)?);
            }
            match rustix::fs::flock(&*self.file.borrow(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(true),
                Err(Errno::WOULDBLOCK) => Ok(false),
                Err(error) => Err(error.into()),
            }
        };
        taken().map_err(|error| fatal(&self.state_dir, &error))
    }

    /// Waits until no other agent acts for this node.
    pub(super) async fn take(&self) -> Result<(), Fault> {
        while !self.try_take()? {
            tokio::time::sleep(RETRY).await;
        }
        Ok(())
    }

    /// Keeps what was taken. Ends only when it cannot be kept.
    pub(super) async fn keep(&self) -> Fault {
        loop {
            tokio::time::sleep(LOOK).await;
            match self.stands().map_err(|error| fatal(&self.state_dir, &error)) {
                Ok(true) => continue,
                Ok(false) => tracing::warn!(state_dir = %self.state_dir.display(), "the state folder was replaced"),
                Err(fault) => return fault,
            }
            match self.try_take() {
                Ok(true) => {}
                Ok(false) => {
                    let text = format!(
                        "the state directory {} was replaced, and another agent acts for this node now; this one starts again and stands by",
                        self.state_dir.display()
                    );
                    return Fault::fatal(reason::NODE_IO, text);
                }
                Err(fault) => return fault,
            }
        }
    }

    /// Whether the file that is open here is the one that another agent would open.
    fn stands(&self) -> std::io::Result<bool> {
        let ours = self.file.borrow().metadata()?;
        match fs::metadata(self.state_dir.join(FILE)) {
            Ok(found) => Ok((found.dev(), found.ino()) == (ours.dev(), ours.ino())),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn open(state_dir: &Path) -> std::io::Result<File> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
    // Whatever is in its place is not waited for, as a pipe would have it, and a link makes no file elsewhere.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).custom_flags(flags.bits().cast_signed());
    options.open(state_dir.join(FILE))
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
    use rustix::fs::{FileType, Mode};

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

    #[tokio::test]
    async fn whatever_is_in_the_place_of_the_file_ends_the_start_with_a_sentence() {
        let state = tempfile::tempdir().unwrap();
        let (file, elsewhere) = (state.path().join(FILE), state.path().join("elsewhere"));
        let refused = || assert!(Lock::open(state.path()).err().unwrap().message.contains("--state-dir"));
        rustix::fs::mknodat(rustix::fs::CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        refused();
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
        refused();
        assert!(!elsewhere.exists());
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        refused();
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_whose_folder_was_replaced_is_taken_anew_or_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let first = Lock::open(&state).unwrap();
        assert!(first.try_take().unwrap());
        fs::remove_dir_all(&state).unwrap();
        let mut kept = std::pin::pin!(first.keep());
        assert!(tokio::time::timeout(LOOK * 2, &mut kept).await.is_err(), "nobody else wants it");
        let second = Lock::open(&state).unwrap();
        assert!(!second.try_take().unwrap(), "it is the first agent's still");
        fs::remove_dir_all(&state).unwrap();
        assert!(second.try_take().unwrap(), "nothing tells of the first one here");
        assert!(kept.await.message.contains("another agent acts"));
    }
}
