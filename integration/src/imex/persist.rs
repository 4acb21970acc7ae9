//! `persist.dat`: who held imports from this node, for a start after an unclean end.
//!
//! A first line derived from the node map (another map makes the rest worthless), then one `id: address` an importer.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::log::Log;
use super::nodemap::NodeMap;
use super::os::Os;

fn path(os: &Os) -> PathBuf {
    os.path("run/nvidia-imex/persist.dat")
}

/// The importers that the last life left behind.
pub fn read(os: &Os, map: &NodeMap) -> BTreeSet<u16> {
    let text = std::fs::read_to_string(path(os)).unwrap_or_default();
    let mut lines = text.lines();
    if lines.next() != Some(&key(map)) {
        return BTreeSet::new();
    }
    let ids = lines.filter_map(|line| line.split_once(':')?.0.parse().ok());
    ids.filter(|id| usize::from(*id) < map.entries.len()).collect()
}

/// Notes the importers. Without the file a daemon works on; a later start just waits for nobody.
pub fn write(os: &Os, log: &Log, map: &NodeMap, importers: &BTreeSet<u16>) {
    let path = path(os);
    let mut text = key(map) + "\n";
    for id in importers {
        let entry = &map.entries[usize::from(*id)];
        let address = os.resolve(entry).first().map_or_else(|| entry.clone(), |address| address.to_string());
        text += &format!("{id}: {address}\n");
    }
    let written = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
    if let Err(error) = written {
        log.warning(&format!("Failed to write {}: {error}", path.display()));
    }
}

fn key(map: &NodeMap) -> String {
    format!("{:016x}", map.hash())
}
