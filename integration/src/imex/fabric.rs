//! Who exported and imported what, and whether an import is allowed: the rules of the kernel, without any I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why the kernel denies something: the CUDA error code and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, thiserror::Error)]
pub enum Denied {
    /// `CUDA_ERROR_INVALID_HANDLE`.
    #[error("400 invalid handle: the exporter is gone, is not connected, or is of another IMEX domain")]
    InvalidHandle,
    /// `CUDA_ERROR_NOT_PERMITTED`.
    #[error("800 not permitted: the exporter holds another IMEX channel")]
    NotPermitted,
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    #[error("801 not supported: the node has no IMEX session")]
    NotSupported,
}

impl Denied {
    /// The number that CUDA gives.
    pub fn code(self) -> u32 {
        match self {
            Self::InvalidHandle => 400,
            Self::NotPermitted => 800,
            Self::NotSupported => 801,
        }
    }
}

/// A fabric handle: names exported memory to any process of the IMEX domain. Its text form travels between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Handle {
    /// Id of the exporting node in its domain.
    pub node: u16,
    /// The daemon's life in which the export was made.
    pub instance: u64,
    /// Number of the export.
    pub export: u64,
    /// Hash of the exporter's node map.
    pub map: u64,
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fabric-{}-{:016x}-{}-{:016x}", self.node, self.instance, self.export, self.map)
    }
}

impl FromStr for Handle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let mut words = text.strip_prefix("fabric-")?.split('-');
            let handle = Self {
                node: words.next()?.parse().ok()?,
                instance: u64::from_str_radix(words.next()?, 16).ok()?,
                export: words.next()?.parse().ok()?,
                map: u64::from_str_radix(words.next()?, 16).ok()?,
            };
            words.next().is_none().then_some(handle)
        };
        parse().ok_or_else(|| format!("{text:?} is no fabric handle"))
    }
}

impl From<Handle> for String {
    fn from(handle: Handle) -> Self {
        handle.to_string()
    }
}

impl TryFrom<String> for Handle {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// A CUDA process, as long as it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process(u64);

/// Where an import has to be decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Import {
    /// Here, and it has been.
    Allowed,
    /// By the exporting node, which is told this channel.
    Ask { node: u16, channel: u32 },
}

/// What others must be told when something has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Farewell {
    /// Exports that ended, with a node that had imported them.
    pub ended: Vec<(u16, u64)>,
    /// Exports of other nodes that nobody here uses any more.
    pub released: Vec<(u16, u64)>,
}

/// The exports and imports of one daemon's life.
#[derive(Debug)]
pub struct Fabric {
    node: u16,
    members: usize,
    instance: u64,
    map: u64,
    last: u64,
    channels: BTreeMap<Process, u32>,
    exports: BTreeMap<u64, Export>,
    imports: BTreeSet<(Handle, Process)>,
}

#[derive(Debug)]
struct Export {
    by: Process,
    channel: u32,
    /// Other nodes that have imported it.
    importers: BTreeSet<u16>,
}

impl Fabric {
    /// For a daemon with this id in a map of so many members and this hash.
    pub fn new(node: u16, members: usize, instance: u64, map: u64) -> Self {
        Self {
            node,
            members,
            instance,
            map,
            last: 0,
            channels: BTreeMap::new(),
            exports: BTreeMap::new(),
            imports: BTreeSet::new(),
        }
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A process subscribes to a channel, the only one of its life.
    pub fn subscribe(&mut self, channel: u32) -> Process {
        let process = Process(self.number());
        self.channels.insert(process, channel);
        process
    }

    /// A process exports memory.
    pub fn export(&mut self, by: Process) -> Result<Handle, Denied> {
        let channel = *self.channels.get(&by).ok_or(Denied::NotPermitted)?;
        let export = self.number();
        self.exports.insert(export, Export { by, channel, importers: BTreeSet::new() });
        Ok(Handle { node: self.node, instance: self.instance, export, map: self.map })
    }

    /// A process of this node imports memory. On the same node the kernel itself compares the channels.
    pub fn import(&mut self, by: Process, handle: Handle) -> Result<Import, Denied> {
        let channel = *self.channels.get(&by).ok_or(Denied::NotPermitted)?;
        if handle.map != self.map || usize::from(handle.node) >= self.members {
            return Err(Denied::InvalidHandle);
        }
        if handle.node != self.node {
            return Ok(Import::Ask { node: handle.node, channel });
        }
        self.check(handle.instance, handle.export, channel)?;
        self.imports.insert((handle, by));
        Ok(Import::Allowed)
    }

    /// The exporting node has allowed an import; the process may have ended meanwhile.
    pub fn imported(&mut self, by: Process, handle: Handle) {
        if self.channels.contains_key(&by) {
            self.imports.insert((handle, by));
        }
    }

    /// Another node asks for a process of its own. The channel is taken on that node's word, as the kernel does.
    pub fn import_for(&mut self, node: u16, instance: u64, export: u64, channel: u32) -> Result<(), Denied> {
        self.check(instance, export, channel)?;
        if let Some(export) = self.exports.get_mut(&export) {
            export.importers.insert(node);
        }
        Ok(())
    }

    fn check(&self, instance: u64, export: u64, channel: u32) -> Result<(), Denied> {
        let export = self.exports.get(&export).filter(|_| instance == self.instance).ok_or(Denied::InvalidHandle)?;
        if export.channel == channel { Ok(()) } else { Err(Denied::NotPermitted) }
    }

    /// Is what the process imported still there?
    pub fn holds(&self, process: Process, handle: Handle) -> Result<(), Denied> {
        if self.imports.contains(&(handle, process)) { Ok(()) } else { Err(Denied::InvalidHandle) }
    }

    /// A process has ended.
    pub fn end(&mut self, process: Process) -> Farewell {
        self.channels.remove(&process);
        let mut farewell = Farewell::default();
        let mine: Vec<Handle> =
            self.imports.iter().filter(|(_, by)| *by == process).map(|(handle, _)| *handle).collect();
        for handle in mine {
            self.imports.remove(&(handle, process));
            let used = self.imports.iter().any(|(other, _)| *other == handle);
            if handle.node != self.node && !used {
                farewell.released.push((handle.node, handle.export));
            }
        }
        let (node, instance) = (self.node, self.instance);
        let ended: Vec<u64> = self.exports.iter().filter(|(_, e)| e.by == process).map(|(id, _)| *id).collect();
        for id in ended {
            self.imports.retain(|(handle, _)| (handle.node, handle.instance, handle.export) != (node, instance, id));
            if let Some(export) = self.exports.remove(&id) {
                farewell.ended.extend(export.importers.into_iter().map(|importer| (importer, id)));
            }
        }
        farewell
    }

    /// A node no longer uses an export.
    pub fn release(&mut self, node: u16, export: u64) {
        if let Some(export) = self.exports.get_mut(&export) {
            export.importers.remove(&node);
        }
    }

    /// An export of another node has ended.
    pub fn ended(&mut self, node: u16, export: u64) {
        self.imports.retain(|(handle, _)| (handle.node, handle.export) != (node, export));
    }

    /// Nothing that was imported from this node is valid any more, unless it is of this life of its daemon.
    pub fn invalidate(&mut self, node: u16, but: Option<u64>) -> usize {
        let before = self.imports.len();
        self.imports.retain(|(handle, _)| handle.node != node || Some(handle.instance) == but);
        before - self.imports.len()
    }

    /// A node holds nothing of ours any more.
    pub fn forget_importer(&mut self, node: u16) {
        for export in self.exports.values_mut() {
            export.importers.remove(&node);
        }
    }

    /// Nodes that hold something of ours.
    pub fn importers(&self) -> BTreeSet<u16> {
        self.exports.values().flat_map(|export| export.importers.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: u64 = 77;

    fn fabric(node: u16) -> Fabric {
        Fabric::new(node, 3, 100 + u64::from(node), MAP)
    }

    #[test]
    fn on_one_node_the_kernel_compares_channels() {
        let mut fabric = fabric(0);
        let (green, also_green, blue) = (fabric.subscribe(1), fabric.subscribe(1), fabric.subscribe(2));
        let handle = fabric.export(green).unwrap();
        assert_eq!(fabric.import(also_green, handle), Ok(Import::Allowed));
        assert_eq!(fabric.import(blue, handle), Err(Denied::NotPermitted));
        assert_eq!(fabric.holds(also_green, handle), Ok(()));
        assert_eq!(fabric.holds(blue, handle), Err(Denied::InvalidHandle));
    }

    #[test]
    fn between_nodes_the_exporter_compares_what_it_is_told() {
        let (mut exporter, mut importer) = (fabric(0), fabric(1));
        let green = exporter.subscribe(1);
        let handle = exporter.export(green).unwrap();
        let process = importer.subscribe(1);
        assert_eq!(importer.import(process, handle), Ok(Import::Ask { node: 0, channel: 1 }));
        assert_eq!(exporter.import_for(1, handle.instance, handle.export, 1), Ok(()));
        assert_eq!(exporter.import_for(1, handle.instance, handle.export, 2), Err(Denied::NotPermitted));
        assert_eq!(exporter.import_for(1, 5, handle.export, 1), Err(Denied::InvalidHandle));
        assert_eq!(exporter.importers(), BTreeSet::from([1]));

        importer.imported(process, handle);
        assert_eq!(importer.end(process).released, [(0, handle.export)]);
        exporter.release(1, handle.export);
        assert!(exporter.importers().is_empty());
    }

    #[test]
    fn handles_of_another_map_or_index_are_invalid() {
        let mut fabric = fabric(0);
        let process = fabric.subscribe(1);
        let handle = fabric.export(process).unwrap();
        for wrong in [Handle { map: 1, ..handle }, Handle { node: 3, ..handle }, Handle { instance: 1, ..handle }] {
            assert_eq!(fabric.import(process, wrong), Err(Denied::InvalidHandle), "{wrong}");
        }
    }

    #[test]
    fn a_dead_exporter_leaves_nothing_behind() {
        let mut fabric = fabric(0);
        let (exporter, importer) = (fabric.subscribe(1), fabric.subscribe(1));
        let handle = fabric.export(exporter).unwrap();
        fabric.import(importer, handle).unwrap();
        fabric.import_for(2, handle.instance, handle.export, 1).unwrap();
        assert_eq!(fabric.end(exporter).ended, [(2, handle.export)]);
        assert_eq!(fabric.holds(importer, handle), Err(Denied::InvalidHandle));
        assert_eq!(fabric.import(importer, handle), Err(Denied::InvalidHandle));
    }

    #[test]
    fn a_new_instance_of_a_peer_invalidates_what_came_from_the_old_one() {
        let mut fabric = fabric(0);
        let process = fabric.subscribe(1);
        let handle = Handle { node: 1, instance: 9, export: 1, map: MAP };
        fabric.imported(process, handle);
        assert_eq!(fabric.invalidate(1, Some(9)), 0);
        assert_eq!(fabric.invalidate(1, Some(10)), 1);
        assert_eq!(fabric.holds(process, handle), Err(Denied::InvalidHandle));
    }

    #[test]
    fn a_handle_travels_as_text() {
        let handle = Handle { node: 3, instance: u64::MAX, export: 12, map: MAP };
        assert_eq!(handle.to_string().parse(), Ok(handle));
        for bad in ["", "fabric-1-2-3", "fabric-1-2-3-4-5", "fabric-70000-0-0-0"] {
            assert!(bad.parse::<Handle>().is_err(), "{bad}");
        }
    }
}
