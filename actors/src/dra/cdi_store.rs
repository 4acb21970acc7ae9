//! The CDI files of prepared claims: written, kept alive, removed.
//!
//! The kubelet asks for a claim once in its life, and containers of it may crash and start again for months. So a file
//! that somebody wipes in between is put back.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use heddle_core::claim::cdi::{self, CdiFile};
use heddle_core::fault::Fault;

use super::folder::{Durability, Folder, Found};

/// The CDI directory, as far as it is ours.
#[derive(Clone, Debug)]
pub(crate) struct CdiStore {
    folder: Folder,
    /// What must be there, by file name.
    kept: Rc<RefCell<BTreeMap<String, Vec<u8>>>>,
}

impl CdiStore {
    /// The CDI directory at `path`.
    ///
    /// # Errors
    /// A fatal fault if it cannot be written: no claim could be prepared.
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        // Device numbers are of one boot, and every Prepare compares the file: nothing here must outlive a power cut.
        // Container runtimes must be able to read it.
        let folder = Folder::new(path, Durability::ThisBoot, 0o755);
        folder.check("CDI", "--cdi-dir")?;
        Ok(Self { folder, kept: Rc::default() })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Our files that are there now.
    pub(crate) fn found(&self) -> Result<BTreeSet<String>, Fault> {
        Ok(self.folder.names()?.into_iter().filter(|name| cdi::is_ours(name)).collect())
    }

    /// The unguessable part of the name that the claim's file has already, if there is one.
    pub(crate) fn token_of(&self, uid: &str) -> Result<Option<String>, Fault> {
        let found = self.found()?;
        Ok(found.iter().find_map(|name| cdi::token_of(name, uid)).map(str::to_owned))
    }

    /// Removes what writes that were cut off have left.
    pub(crate) fn sweep(&self) -> Result<(), Fault> {
        self.folder.sweep(cdi::is_ours)
    }

    /// Whether the file is there, byte for byte.
    pub(crate) fn intact(&self, file: &CdiFile) -> bool {
        self.is_on_disk(&file.name, &file.contents)
    }

    /// Writes the file and keeps it alive.
    pub(crate) fn write(&self, file: &CdiFile) -> Result<(), Fault> {
        self.folder.write(&file.name, &file.contents)?;
        self.keep(file);
        Ok(())
    }

    /// Keeps a file alive from the next repair on.
    pub(crate) fn keep(&self, file: &CdiFile) {
        self.kept.borrow_mut().insert(file.name.clone(), file.contents.clone());
    }

    /// Removes the file.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Fault> {
        self.kept.borrow_mut().remove(name);
        self.folder.remove(name)
    }

    /// Removes every file of a claim of which nothing else is known.
    pub(crate) fn remove_all_of(&self, uid: &str) -> Result<(), Fault> {
        let mut names: BTreeSet<String> = self.kept.borrow().keys().cloned().collect();
        // Of a claim whose checkpoint is lost nothing may be kept, and yet its file be there.
        names.extend(self.found()?);
        names.iter().filter(|name| cdi::token_of(name, uid).is_some()).try_for_each(|name| self.remove(name))
    }

    /// The file's bytes; none if there is no file, or something else in its place.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.folder.read(name)?.and_then(|found| match found {
            Found::File(bytes) => Some(bytes),
            Found::Other(_) => None,
        }))
    }

    /// Puts back what is missing or not as it was, the directory included; says what.
    pub(crate) fn repair(&self) -> Vec<String> {
        let mut repaired = Vec::new();
        match self.folder.create() {
            Ok(false) => {}
            Ok(true) => repaired.push(self.folder.path().display().to_string()),
            Err(fault) => tracing::warn!("the CDI directory is gone and could not be made anew: {fault}"),
        }
        for (name, contents) in &*self.kept.borrow() {
            if self.is_on_disk(name, contents) {
                continue;
            }
            match self.folder.write(name, contents) {
                Ok(()) => repaired.push(name.clone()),
                Err(fault) => tracing::warn!("a wiped CDI file could not be put back: {fault}"),
            }
        }
        repaired
    }

    fn is_on_disk(&self, name: &str, contents: &[u8]) -> bool {
        self.read(name).is_ok_and(|found| found.as_deref() == Some(contents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(contents: &str) -> CdiFile {
        let name = "k8s.compute-domain.nvidia.com-claim_u-00112233445566778899aabbccddeeff.json".to_owned();
        CdiFile { name, contents: contents.into(), id: String::new() }
    }

    #[test]
    fn case_20_a_wiped_or_changed_file_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let store = CdiStore::open(dir.path()).unwrap();
        store.write(&file("x")).unwrap();
        assert!(store.intact(&file("x")) && !store.intact(&file("y")));
        assert!(store.repair().is_empty());
        let path = dir.path().join(&file("").name);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(store.repair().len(), 1);
        std::fs::write(&path, "every channel").unwrap();
        assert_eq!(store.repair().len(), 1);
        assert!(store.intact(&file("x")));
    }

    #[test]
    fn a_removed_file_stays_away() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("nvidia.yaml"), "").unwrap();
        let store = CdiStore::open(dir.path()).unwrap();
        store.write(&file("x")).unwrap();
        assert_eq!(store.found().unwrap(), [file("").name].into());
        store.remove(&file("").name).unwrap();
        store.remove(&file("").name).unwrap();
        assert!(store.repair().is_empty() && store.found().unwrap().is_empty());
    }
}
