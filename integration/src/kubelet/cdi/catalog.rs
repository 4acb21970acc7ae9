//! All devices that a node's CDI directories offer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::spec::{ContainerEdits, Spec};

/// All devices that a node's CDI directories offer. Built anew for every container: specs come and go with claims.
#[derive(Debug, Default)]
pub struct Catalog {
    devices: BTreeMap<String, Entry>,
    problems: Vec<String>,
}

#[derive(Clone, Debug)]
struct Entry {
    spec: Arc<Spec>,
    index: usize,
    priority: usize,
    file: PathBuf,
}

/// Device ids that no spec defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolvable(pub Vec<String>);

impl fmt::Display for Unresolvable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unresolvable CDI devices {}", self.0.join(", "))
    }
}

impl std::error::Error for Unresolvable {}

impl Catalog {
    /// Reads the directories; a later one wins over an earlier one. A directory that is not there is empty.
    pub fn read(directories: &[PathBuf]) -> Self {
        let mut catalog = Self::default();
        for (priority, directory) in directories.iter().enumerate() {
            let files = match spec_files(directory) {
                Ok(files) => files,
                Err(err) if err.kind() == io::ErrorKind::NotFound => continue,
                Err(err) => {
                    catalog.problems.push(format!("{}: {err}", directory.display()));
                    continue;
                }
            };
            let mut specs = Vec::new();
            for file in files {
                match fs::read_to_string(&file).map_err(|err| err.to_string()).and_then(|text| Spec::parse(&text)) {
                    Ok(spec) => specs.push((file, spec)),
                    Err(err) => catalog.problems.push(format!("{}: {err}", file.display())),
                }
            }
            catalog.add(priority, specs);
        }
        catalog
    }

    /// Adds the specs of one directory. Two specs of it that define the same device cancel each other out.
    fn add(&mut self, priority: usize, specs: Vec<(PathBuf, Spec)>) {
        let mut conflicts = BTreeSet::new();
        for (file, spec) in specs {
            let spec = Arc::new(spec);
            for (index, device) in spec.devices.iter().enumerate() {
                let id = format!("{}={}", spec.kind, device.name);
                if let Some(other) = self.devices.get(&id).filter(|other| other.priority == priority) {
                    self.problems.push(format!(
                        "conflicting device {id:?} (specs {:?}, {:?})",
                        other.file.display(),
                        file.display()
                    ));
                    conflicts.insert(id);
                    continue;
                }
                let entry = Entry { spec: spec.clone(), index, priority, file: file.clone() };
                self.devices.insert(id, entry);
            }
        }
        for id in conflicts {
            self.devices.remove(&id);
        }
    }

    /// What was wrong with the directories and files. Good specs are offered all the same.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The edits for these devices: each spec's own once, then the device's.
    pub(super) fn edits(&self, ids: &[String]) -> Result<Vec<&ContainerEdits>, Unresolvable> {
        let unknown: Vec<_> = ids.iter().filter(|id| !self.devices.contains_key(*id)).cloned().collect();
        if !unknown.is_empty() {
            return Err(Unresolvable(unknown));
        }
        let mut files = BTreeSet::new();
        let mut edits = Vec::new();
        for entry in ids.iter().filter_map(|id| self.devices.get(id)) {
            if files.insert(&entry.file) {
                edits.push(&entry.spec.container_edits);
            }
            edits.push(&entry.spec.devices[entry.index].container_edits);
        }
        Ok(edits)
    }
}

/// The directory's spec files by name.
fn spec_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_spec = path.extension().is_some_and(|ext| ext == "json" || ext == "yaml");
        if is_spec && !path.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, device: &str, value: &str) {
        let text = format!(
            r#"{{"cdiVersion":"0.5.0","kind":"example.com/claim","containerEdits":{{"env":["SPEC={name}"]}},
                "devices":[{{"name":"{device}","containerEdits":{{"env":["WHO={value}"]}}}}]}}"#
        );
        fs::write(directory.join(name), text).unwrap();
    }

    fn env(catalog: &Catalog, ids: &[&str]) -> Result<Vec<String>, Unresolvable> {
        let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
        Ok(catalog.edits(&ids)?.into_iter().flat_map(|edits| edits.env.clone()).collect())
    }

    #[test]
    fn the_later_directory_wins() {
        let (fixed, dynamic) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(fixed.path(), "a.json", "x", "static");
        write(dynamic.path(), "b.json", "x", "dynamic");
        let catalog = Catalog::read(&[fixed.path().into(), dynamic.path().into()]);
        assert_eq!(env(&catalog, &["example.com/claim=x"]).unwrap(), ["SPEC=b.json", "WHO=dynamic"]);
    }

    #[test]
    fn two_specs_of_one_directory_cancel_each_other_out() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.json", "x", "one");
        write(dir.path(), "b.json", "x", "two");
        let catalog = Catalog::read(&[dir.path().into()]);
        assert!(env(&catalog, &["example.com/claim=x"]).is_err());
        assert!(catalog.problems()[0].contains("conflicting device"));
    }

    #[test]
    fn unknown_ids_are_named_and_a_bad_file_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.json", "x", "one");
        fs::write(dir.path().join("bad.json"), "{").unwrap();
        let catalog = Catalog::read(&[dir.path().into(), dir.path().join("absent")]);
        assert_eq!(catalog.problems().len(), 1);
        assert!(env(&catalog, &["example.com/claim=x"]).is_ok());
        let err = env(&catalog, &["example.com/claim=x", "example.com/claim=y"]).unwrap_err();
        assert_eq!(err.to_string(), "unresolvable CDI devices example.com/claim=y");
    }
}
