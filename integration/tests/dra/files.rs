use std::collections::BTreeMap;
use std::path::PathBuf;

/// Every file in these folders and below them, however it is named.
pub fn below(mut folders: Vec<PathBuf>) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => drop(found.insert(path.clone(), std::fs::read(path).unwrap())),
            }
        }
    }
    found
}
