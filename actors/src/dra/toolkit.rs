//! The CDI files of the NVIDIA Container Toolkit, read as far as they tell which GPUs it knows.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use heddle_core::claim::cdi;
use heddle_core::claim::toolkit::{SpecFile, Toolkit};
use heddle_core::fault::Fault;
use tokio::sync::watch;

/// A spec file of a node's GPUs has some ten kilobytes; what is larger is none.
const MAX_FILE: u64 = 4 << 20;

/// The folders in which container runtimes look for CDI files.
pub(crate) struct ToolkitStore {
    folders: Vec<PathBuf>,
    /// What each file said when it was last read.
    files: RefCell<BTreeMap<PathBuf, (Stamp, Said)>>,
    known: watch::Sender<Toolkit>,
    /// What claims wait for, by UID.
    pub(crate) awaited: RefCell<BTreeMap<String, Fault>>,
}

/// A file that was put in place of another differs in one of these.
type Stamp = (u64, u64, i64, i64);
type Said = Result<BTreeSet<String>, String>;

impl ToolkitStore {
    /// A store that has looked.
    pub(crate) fn new(folders: Vec<PathBuf>) -> Self {
        let store = Self {
            folders,
            files: RefCell::default(),
            known: watch::Sender::new(Toolkit::default()),
            awaited: RefCell::default(),
        };
        store.look();
        store
    }

    /// What was found last.
    pub(crate) fn known(&self) -> Toolkit {
        self.known.borrow().clone()
    }

    pub(crate) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// What will be found next, if it differs from `before`.
    pub(crate) async fn other_than(&self, before: &Toolkit) {
        // The sender is in `self`.
        let _ = self.known.subscribe().wait_for(|known| known != before).await;
    }

    /// Reads what has changed.
    pub(crate) fn look(&self) {
        let mut files = self.files.borrow_mut();
        let mut found = BTreeMap::new();
        for (path, meta) in self.folders.iter().flat_map(|folder| specs(folder)) {
            let stamp = (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
            let said = match files.remove(&path) {
                Some((before, said)) if before == stamp => said,
                _ => read(&path, &meta),
            };
            found.insert(path, (stamp, said));
        }
        *files = found;
        let mut toolkit = Toolkit {
            folders: self.folders.iter().map(|folder| folder.display().to_string()).collect(),
            ..Toolkit::default()
        };
        for (path, (_, said)) in &*files {
            match said {
                Ok(names) => toolkit.devices.extend(names.iter().cloned()),
                Err(why) => toolkit.unreadable.push(format!("{}: {why}", path.display())),
            }
        }
        self.known.send_if_modified(|known| {
            let changed = *known != toolkit;
            *known = toolkit;
            changed
        });
    }
}

/// The spec files of a folder but our own, of which every claim has one.
fn specs(folder: &Path) -> Vec<(PathBuf, Metadata)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let spec = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let is_spec = [".json", ".yaml"].iter().any(|extension| name.ends_with(extension));
        let meta = (is_spec && !cdi::is_ours(name)).then(|| std::fs::metadata(&path).ok())??;
        meta.is_file().then_some((path, meta))
    };
    entries.flatten().filter_map(|entry| spec(entry.path())).collect()
}

fn read(path: &Path, meta: &Metadata) -> Said {
    if meta.len() > MAX_FILE {
        return Err(format!("{} bytes are too many", meta.len()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let spec = match path.extension().is_some_and(|extension| extension == "json") {
        true => serde_json::from_str::<SpecFile>(&text).map_err(|error| error.to_string()),
        false => serde_saphyr::from_str::<SpecFile>(&text).map_err(|error| error.to_string()),
    };
    // The first line says what; the others show the file.
    spec.map(SpecFile::gpus).map_err(|error| error.lines().next().unwrap_or_default().chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/nvidiactl\n\
                        devices:\n- name: \"0\"\n  containerEdits: {}\n- name: GPU-1\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n";

    fn names(store: &ToolkitStore) -> Vec<String> {
        store.known().devices.into_iter().collect()
    }

    #[test]
    fn both_folders_and_both_forms_are_read() {
        let (fixed, dynamic) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(fixed.path().join("nvidia.yaml"), YAML).unwrap();
        let json = r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-2", "containerEdits": {}}]}"#;
        std::fs::write(dynamic.path().join("nvidia.json"), json).unwrap();
        std::fs::write(dynamic.path().join("nvidia.json.tmp"), json.replace("GPU-2", "GPU-3")).unwrap();
        let store = ToolkitStore::new(vec![fixed.path().into(), dynamic.path().into(), "/does/not/exist".into()]);
        assert_eq!(names(&store), ["0", "GPU-1", "GPU-2"]);

        std::fs::remove_file(fixed.path().join("nvidia.yaml")).unwrap();
        store.look();
        assert_eq!(names(&store), ["GPU-2"]);
        std::fs::write(dynamic.path().join("nvidia.json"), json.replace("GPU-2", "GPU-22")).unwrap();
        store.look();
        assert_eq!(names(&store), ["GPU-22"]);
    }

    #[test]
    fn a_file_that_is_no_spec_is_named_and_hides_no_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("good.yaml"), YAML).unwrap();
        for (name, text) in [("a.json", "{"), ("b.yaml", "devices: [\n"), ("c.json", "7"), ("d.json", "\u{0}")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let store = ToolkitStore::new(vec![folder.path().into()]);
        assert_eq!(names(&store), ["0", "GPU-1"]);
        let unreadable = store.known().unreadable;
        assert_eq!(unreadable.len(), 4, "{unreadable:?}");
        assert!(unreadable.iter().all(|line| line.starts_with(&folder.path().display().to_string())));
    }

    #[tokio::test]
    async fn who_waits_hears_of_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let store = ToolkitStore::new(vec![folder.path().into()]);
        let before = store.known();
        let mut waiting = std::pin::pin!(store.other_than(&before));
        assert!(futures::poll!(&mut waiting).is_pending());
        std::fs::write(folder.path().join("nvidia.yaml"), YAML).unwrap();
        store.look();
        waiting.await;
    }
}
