//! The checkpoints on disk: `<state>/claims/<driver>/<claim UID>.json`.

use std::path::Path;

use heddle_core::claim::checkpoint::{Checkpoint, DecodeError};
use heddle_core::fault::{Fault, reason};

use super::folder::{Durability, Folder, Found};

/// The checkpoints of one driver. Every call goes to the disk: during a rolling update another agent may have written.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointStore {
    folder: Folder,
    /// The same folder, for changes that a power cut may undo (ADR 0007).
    this_boot: Folder,
    quarantine: Folder,
}

/// What is remembered of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Nothing.
    None,
    /// This.
    Checkpoint(Box<Checkpoint>),
    /// Something was, but it is corrupt and in quarantine now.
    Quarantined,
}

/// All that was found on disk.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The readable ones.
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Claim UIDs of those that were not, and are in quarantine now.
    pub(crate) quarantined: Vec<String>,
    /// Claim UIDs of those that a newer release wrote; they stay where they are.
    pub(crate) newer: Vec<String>,
}

impl CheckpointStore {
    /// The store of `driver` below the agent's state folder, which is made if it is missing.
    ///
    /// # Errors
    /// A fatal fault if it cannot be written: no claim could be prepared.
    pub(crate) fn open(state: &Path, driver: &str) -> Result<Self, Fault> {
        // For the agent's eyes only.
        let folder = |path, durability| Folder::new(path, durability, 0o700);
        let claims = state.join("claims").join(driver);
        let store = Self {
            folder: folder(claims.clone(), Durability::Durable),
            this_boot: folder(claims, Durability::ThisBoot),
            quarantine: folder(state.join("quarantine"), Durability::Durable),
        };
        for folder in [&store.folder, &store.quarantine] {
            // What cannot be made cannot be written either; the check finds the words for it.
            let _ = folder.create();
            folder.check("state", "--state-dir")?;
        }
        Ok(store)
    }

    /// Makes the folder anew if somebody has removed it; says whether that was so.
    pub(crate) fn make_anew(&self) -> Result<bool, Fault> {
        self.folder.create()
    }

    /// Reads everything; what is corrupt goes to the quarantine folder, where a person can look at it.
    pub(crate) fn load(&self) -> Result<Loaded, Fault> {
        let mut loaded = Loaded::default();
        // Of a write that was cut off, the file itself is as it was before.
        self.folder.sweep(|target| uid_of(target).is_some())?;
        for name in self.folder.names()? {
            // What else there is in the folder, such as a `lost+found`, is not ours.
            let Some(uid) = uid_of(&name) else { continue };
            let Some(found) = self.folder.read(&name)? else { continue };
            match decode(uid, &found) {
                Ok(checkpoint) => loaded.checkpoints.push(checkpoint),
                Err(DecodeError::Newer(version)) => {
                    tracing::error!(
                        claim = uid,
                        version,
                        "a newer release wrote this claim's checkpoint; it stays as it is"
                    );
                    loaded.newer.push(uid.to_owned());
                }
                Err(DecodeError::Corrupt(why)) => {
                    self.put_aside(uid, &why)?;
                    loaded.quarantined.push(uid.to_owned());
                }
            }
        }
        Ok(loaded)
    }

    /// What is remembered of a claim.
    pub(crate) fn read(&self, uid: &str) -> Result<Memory, Fault> {
        let Some(found) = self.folder.read(&file_name(uid))? else { return Ok(Memory::None) };
        match decode(uid, &found) {
            Ok(checkpoint) => Ok(Memory::Checkpoint(Box::new(checkpoint))),
            Err(error @ DecodeError::Newer(_)) => Err(Fault::retryable(reason::NODE_IO, error)),
            Err(DecodeError::Corrupt(why)) => self.put_aside(uid, &why).map(|()| Memory::Quarantined),
        }
    }

    /// What is remembered of a claim, if it can be read; nothing is changed, for another agent may be at work.
    pub(crate) fn peek(&self, uid: &str) -> Option<Checkpoint> {
        let found = self.folder.read(&file_name(uid)).ok()??;
        decode(uid, &found).ok()
    }

    fn put_aside(&self, uid: &str, why: &str) -> Result<(), Fault> {
        tracing::error!(claim = uid, "this claim's checkpoint goes to quarantine: {why}");
        let name = file_name(uid);
        self.folder.move_to(&name, &self.quarantine, &name)
    }

    /// Remembers it, whatever happens after the call returns. Waits for the disk.
    pub(crate) fn write(&self, checkpoint: &Checkpoint) -> Result<(), Fault> {
        self.folder.write(&file_name(&checkpoint.claim.uid), &checkpoint.encode())
    }

    /// Remembers how far a claim has come that is remembered already, whatever happens to this process.
    pub(crate) fn advance(&self, checkpoint: &Checkpoint) -> Result<(), Fault> {
        self.this_boot.write(&file_name(&checkpoint.claim.uid), &checkpoint.encode())
    }

    /// Forgets it, whatever happens to this process.
    pub(crate) fn remove(&self, uid: &str) -> Result<(), Fault> {
        self.this_boot.remove(&file_name(uid))
    }
}

fn decode(uid: &str, found: &Found) -> Result<Checkpoint, DecodeError> {
    let checkpoint = match found {
        Found::File(bytes) => Checkpoint::decode(bytes)?,
        Found::Other(what) => return Err(DecodeError::Corrupt(what.clone())),
    };
    if checkpoint.claim.uid != uid {
        return Err(DecodeError::Corrupt(format!("it is of claim {}", checkpoint.claim.uid)));
    }
    Ok(checkpoint)
}

/// The UID of the claim whose checkpoint has this name.
fn uid_of(name: &str) -> Option<&str> {
    name.strip_suffix(".json").filter(|uid| !uid.is_empty() && !uid.starts_with('.'))
}

fn file_name(uid: &str) -> String {
    format!("{uid}.json")
}

#[cfg(test)]
mod tests {
    use heddle_core::claim::ClaimKey;
    use heddle_core::claim::checkpoint::State;

    use super::*;

    fn checkpoint(uid: &str) -> Checkpoint {
        Checkpoint {
            claim: ClaimKey { namespace: "team".into(), name: "c".into(), uid: uid.into() },
            driver: "compute-domain.nvidia.com".into(),
            state: State::Prepared,
            boot_id: "b".into(),
            compute_domain: None,
            channel: None,
            cdi_token: None,
            devices: vec![],
        }
    }

    fn files(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_found_again() {
        let state = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(state.path(), "d").unwrap();
        store.write(&checkpoint("a")).unwrap();
        store.write(&checkpoint("b")).unwrap();
        store.remove("b").unwrap();
        let store = CheckpointStore::open(state.path(), "d").unwrap();
        assert_eq!(store.load().unwrap().checkpoints, [checkpoint("a")]);
        assert_eq!(store.read("a").unwrap(), Memory::Checkpoint(Box::new(checkpoint("a"))));
        assert_eq!(store.read("b").unwrap(), Memory::None);
    }

    #[test]
    fn issue_1080_a_corrupt_file_goes_to_quarantine_and_stops_nothing() {
        let state = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(state.path(), "d").unwrap();
        let folder = state.path().join("claims/d");
        for uid in ["a", "b", "empty", "swapped"] {
            store.write(&checkpoint(uid)).unwrap();
        }
        let bytes = std::fs::read(folder.join("a.json")).unwrap();
        std::fs::write(folder.join("a.json"), &bytes[..bytes.len() / 2]).unwrap();
        std::fs::write(folder.join("empty.json"), b"").unwrap();
        std::fs::write(folder.join("swapped.json"), &bytes).unwrap();
        std::fs::write(folder.join("newer.json"), br#"{"version":9}"#).unwrap();
        std::fs::write(folder.join(".b.json.77.tmp"), b"half").unwrap();
        let loaded = store.load().unwrap();
        assert_eq!(loaded.checkpoints, [checkpoint("b")]);
        assert_eq!(loaded.quarantined, ["a", "empty", "swapped"]);
        assert_eq!(loaded.newer, ["newer"]);
        assert_eq!(files(&folder), ["b.json", "newer.json"]);
        assert_eq!(files(&state.path().join("quarantine")), ["a.json", "empty.json", "swapped.json"]);
        assert!(store.read("newer").is_err());
    }

    #[test]
    fn a_state_folder_that_cannot_be_made_is_fatal() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let fault = CheckpointStore::open(file.path(), "d").unwrap_err();
        assert_eq!(fault.class, heddle_core::fault::Class::Fatal);
        assert!(fault.message.contains("--state-dir"), "{fault}");
    }
}
