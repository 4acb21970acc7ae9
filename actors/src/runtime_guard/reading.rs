use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use heddle_core::claim::cdi;
use heddle_core::container_runtime::{self, ConfigFile, Kind};
use heddle_core::names;
use heddle_core::runtime_guard::{Facts, KEY, Program, beside, config_of_wrapper, is_nvidia};

use super::Places;
use crate::host_root::HostRoot;

/// Files that a configuration may import, directly and by others.
const MAX_IMPORTS: usize = 64;
/// NVIDIA's programs have tens of megabytes.
const MAX_PROGRAM: u64 = 1 << 30;
/// Folders of programs, in the order in which a service of systemd looks for one that is named without its folder.
const PROGRAM_FOLDERS: [&str; 5] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/usr/local/nvidia/toolkit"];
/// Where containerd's own packages configure it, and its `defaults.DefaultConfigIncludePattern`.
const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";
const CONTAINERD_DROP_INS: &str = "/etc/containerd/conf.d/*.toml";
/// Where hooks are that CRI-O runs without being told (`crio.conf(5)`).
const HOOK_FOLDERS: [&str; 2] = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"];
/// Where CDI files are unless the container runtime says otherwise.
const CDI_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// What was found, and where something may change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What was found.
    pub facts: Facts,
    /// The folders to watch, as this process sees them.
    pub folders: BTreeSet<PathBuf>,
}

/// Reads the files of one host. Programs are large and are looked through once each.
#[derive(Debug)]
pub struct Reader {
    host: HostRoot,
    places: Places,
    /// By device, inode, size and time of change: whether the program knows the setting.
    known: BTreeMap<(u64, u64, u64, i64), bool>,
}

impl Reader {
    /// A reader that has looked through nothing yet.
    pub fn new(host: HostRoot, places: Places) -> Self {
        Self { host, places, known: BTreeMap::new() }
    }

    /// All that the verdict depends on, as it is now. Blocks.
    pub fn read(&mut self) -> Reading {
        let mut looked = BTreeSet::new();
        let container_runtime = self.container_runtime(&mut looked);
        let said: Vec<_> = container_runtime.iter().filter_map(|file| container_runtime::read(file).ok()).collect();
        let hook_folders = HOOK_FOLDERS.iter().map(|folder| (*folder).to_owned());
        let hook_folders: BTreeSet<String> =
            hook_folders.chain(said.iter().flat_map(|said| said.hooks_dirs.clone())).collect();
        let crio = container_runtime.iter().any(|file| file.kind == Kind::CriO);
        let hooks = if crio { self.hooks(&hook_folders, &mut looked) } else { Vec::new() };
        let named = said.iter().flat_map(|said| &said.programs).map(|(_, program)| program.clone());
        let mut paths: BTreeSet<String> = named.filter(|program| is_nvidia(program, &self.places.programs)).collect();
        paths.extend(hooks.iter().map(|(_, program)| program.clone()));
        let programs: BTreeMap<_, _> =
            paths.into_iter().map(|path| (path.clone(), self.program(&path, &mut looked))).collect();
        let toolkit_places = self.places.toolkit.clone();
        let own = programs.iter().flat_map(|(path, program)| [program.config.clone(), beside(path)]).flatten();
        let mut toolkit = BTreeMap::new();
        for place in toolkit_places.iter().cloned().chain(own) {
            looked.insert(place.clone());
            if let Some(text) = self.host.text(&place).transpose() {
                toolkit.insert(place, text.map_err(|error| error.to_string()));
            }
        }
        let cdi_folders = said.iter().filter_map(|said| said.cdi_dirs.clone()).flatten();
        let cdi_folders: BTreeSet<String> = cdi_folders.chain(CDI_FOLDERS.map(str::to_owned)).collect();
        // Who may name a CDI device there is only where NVIDIA's runtime is: elsewhere the many files need no look.
        let cdi_files = if programs.is_empty() { Vec::new() } else { self.cdi_files(&cdi_folders, &mut looked) };
        Reading {
            facts: Facts {
                container_runtime,
                looked_for: self.places.container_runtime.iter().map(|(_, path)| path.clone()).collect(),
                names: self.places.programs.clone(),
                hooks,
                programs,
                toolkit_places,
                toolkit,
                cdi_files,
            },
            folders: looked.iter().map(|path| self.host.nearest_folder(path)).collect(),
        }
    }

    /// The configuration files that are there, and what they import, in the order in which the runtime reads them.
    pub fn container_runtime(&self, looked: &mut BTreeSet<String>) -> Vec<ConfigFile> {
        let mut files: Vec<ConfigFile> = Vec::new();
        for (kind, place) in &self.places.container_runtime {
            let mut pending = vec![place.clone()];
            // What containerd imports when it has no configuration file of its own.
            if place == CONTAINERD_CONFIG && matches!(self.host.file(place), Ok(None)) {
                pending.push(CONTAINERD_DROP_INS.to_owned());
            }
            let mut seen = BTreeSet::new();
            while !pending.is_empty() && seen.len() < MAX_IMPORTS {
                let pattern = pending.remove(0);
                looked.insert(pattern.clone());
                for path in self.host.expand(&pattern) {
                    if !seen.insert(path.clone()) {
                        continue;
                    }
                    looked.insert(path.clone());
                    let Some(text) = self.host.text(&path).transpose() else { continue };
                    let file = ConfigFile { kind: *kind, path, text: text.map_err(|error| error.to_string()) };
                    let imports = container_runtime::read(&file).map(|said| said.imports).unwrap_or_default();
                    pending.extend(imports.iter().map(|import| absolute(&file.path, import)));
                    files.push(file);
                }
            }
        }
        files
    }

    /// The hooks that start the toolkit's hook program.
    fn hooks(&self, folders: &BTreeSet<String>, looked: &mut BTreeSet<String>) -> Vec<(String, String)> {
        let mut hooks = Vec::new();
        for path in folders.iter().flat_map(|folder| self.host.expand(&format!("{folder}/*.json"))) {
            let Ok(Some(text)) = self.host.text(&path) else { continue };
            let hook: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            if let Some(program) = hook["hook"]["path"].as_str().filter(|program| is_hook(program)) {
                hooks.push((path, program.to_owned()));
            }
        }
        looked.extend(folders.iter().map(|folder| format!("{folder}/*.json")));
        hooks
    }

    fn program(&mut self, path: &str, looked: &mut BTreeSet<String>) -> Program {
        let places = match path.contains('/') {
            true => vec![path.to_owned()],
            false => PROGRAM_FOLDERS.iter().map(|folder| format!("{folder}/{path}")).collect(),
        };
        let mut config = None;
        for place in places {
            looked.insert(place.clone());
            let Ok(Some(file)) = self.host.file(&place) else { continue };
            if !begins_with(&file, b"#!") {
                return Program { config, knows_key: self.knows_key(file) };
            }
            config = self.host.text(&place).ok().flatten().and_then(|script| config_of_wrapper(&script));
            // What the GPU Operator's wrapper starts.
            let real = format!("{place}.real");
            looked.insert(real.clone());
            let real = self.host.file(&real).ok().flatten();
            return Program { config, knows_key: real.and_then(|file| self.knows_key(file)) };
        }
        Program::default()
    }

    fn knows_key(&mut self, file: File) -> Option<bool> {
        let found = file.metadata().ok()?;
        let identity = (found.dev(), found.ino(), found.len(), found.mtime());
        if let Some(known) = self.known.get(&identity) {
            return Some(*known);
        }
        let knows = contains(file, KEY.as_bytes()).ok()?;
        // A program that is replaced over and over must not fill the memory.
        if self.known.len() > 16 {
            self.known.clear();
        }
        self.known.insert(identity, knows);
        Some(knows)
    }

    /// CDI files, not ours, in which an IMEX channel is named.
    fn cdi_files(&self, folders: &BTreeSet<String>, looked: &mut BTreeSet<String>) -> Vec<String> {
        let mut found = Vec::new();
        for folder in folders {
            looked.insert(format!("{folder}/*"));
            for name in self.host.names(folder) {
                let is_cdi = [".json", ".yaml", ".yml"].iter().any(|end| name.ends_with(end));
                if !is_cdi || name.starts_with('.') || cdi::is_ours(&name) {
                    continue;
                }
                let path = format!("{folder}/{name}");
                if self.host.text(&path).ok().flatten().is_some_and(|text| text.contains(names::CHANNEL_DEVICE_DIR)) {
                    found.push(path);
                }
            }
        }
        found
    }
}

/// The toolkit's hook program, under its name of today or the former one.
fn is_hook(program: &str) -> bool {
    let name = program.rsplit('/').next().unwrap_or_default();
    ["nvidia-container-runtime-hook", "nvidia-container-toolkit"].contains(&name)
}

/// An import is relative to the file that has it.
fn absolute(of: &str, import: &str) -> String {
    match import.starts_with('/') {
        true => import.to_owned(),
        false => format!("{}/{import}", of.rsplit_once('/').map_or("", |(folder, _)| folder)),
    }
}

fn begins_with(file: &File, start: &[u8]) -> bool {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, 0).is_ok() && bytes == start
}

/// Whether the bytes are somewhere in the file, read in pieces: the programs have tens of megabytes.
fn contains(mut file: File, text: &[u8]) -> std::io::Result<bool> {
    if file.metadata()?.len() > MAX_PROGRAM {
        return Err(std::io::Error::other("no program is that large"));
    }
    let mut piece = vec![0; 1 << 16];
    let mut kept = 0;
    loop {
        let read = file.read(&mut piece[kept..])?;
        if read == 0 {
            return Ok(false);
        }
        let end = kept + read;
        if piece[..end].windows(text.len()).any(|window| window == text) {
            return Ok(true);
        }
        kept = end.min(text.len() - 1);
        piece.copy_within(end - kept..end, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_text_across_two_pieces_is_found() {
        for at in [0, 65_530, 65_536, 200_000] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&vec![b'x'; at]).unwrap();
            file.write_all(KEY.as_bytes()).unwrap();
            assert!(contains(File::open(file.path()).unwrap(), KEY.as_bytes()).unwrap(), "{at}");
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![b'x'; 200_000]).unwrap();
        assert!(!contains(File::open(file.path()).unwrap(), KEY.as_bytes()).unwrap());
    }
}
