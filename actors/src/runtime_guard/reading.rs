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
        let named: BTreeSet<_> = said.iter().flat_map(|said| &said.programs).map(|(_, program)| program).collect();
        let linked = named.iter().filter(|program| self.is_link_to_nvidia(program, &mut looked));
        let linked = linked.filter_map(|program| program.rsplit('/').next()).map(str::to_owned);
        let names: Vec<String> = self.places.programs.iter().cloned().chain(linked).collect();
        let mut paths: BTreeSet<String> =
            named.into_iter().filter(|program| is_nvidia(program, &names)).cloned().collect();
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
                names,
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
            while !pending.is_empty() {
                let pattern = pending.remove(0);
                looked.insert(pattern.clone());
                let paths = match self.host.expand(&pattern) {
                    Ok(paths) => paths,
                    // What the runtime reads and nobody here does must not look like nothing.
                    Err(error) => {
                        files.push(ConfigFile { kind: *kind, path: pattern, text: Err(error.to_string()) });
                        continue;
                    }
                };
                for path in paths {
                    if !seen.insert(path.clone()) {
                        continue;
                    }
                    if seen.len() > MAX_IMPORTS {
                        let why = format!("more than {MAX_IMPORTS} files are imported");
                        files.push(ConfigFile { kind: *kind, path, text: Err(why) });
                        pending.clear();
                        break;
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

    /// Whether a program of another name is NVIDIA's by a link.
    fn is_link_to_nvidia(&self, program: &str, looked: &mut BTreeSet<String>) -> bool {
        places(program).into_iter().any(|place| {
            let target = self.host.target(&place);
            looked.insert(place);
            target.is_some_and(|target| is_nvidia(&target, &self.places.programs))
        })
    }

    /// The hooks that start the toolkit's hook program.
    fn hooks(&self, folders: &BTreeSet<String>, looked: &mut BTreeSet<String>) -> Vec<(String, String)> {
        let mut hooks = Vec::new();
        for path in folders.iter().flat_map(|folder| self.host.expand(&format!("{folder}/*.json")).unwrap_or_default())
        {
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
        let mut config = None;
        for place in places(path) {
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
                let channels = |file| contains(file, names::CHANNEL_DEVICE_DIR.as_bytes()).unwrap_or(false);
                // With all 2,048 channels, each in several versions, it may be larger than a configuration file.
                if self.host.file(&path).ok().flatten().is_some_and(channels) {
                    found.push(path);
                }
            }
        }
        found
    }
}

/// Where a program may be that is configured by its path, or by a name alone.
fn places(program: &str) -> Vec<String> {
    match program.contains('/') {
        true => vec![program.to_owned()],
        false => PROGRAM_FOLDERS.iter().map(|folder| format!("{folder}/{program}")).collect(),
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

    use heddle_core::runtime_guard::judge;

    use super::*;

    /// The verdict on a host with these files, links (`->`) among them.
    fn verdict(files: &[(&str, &str)]) -> &'static str {
        let host = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = host.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match text.strip_prefix("->") {
                Some(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                None => std::fs::write(path, text).unwrap(),
            }
        }
        judge(&Reader::new(HostRoot::new(host.path()), Places::default()).read().facts).label()
    }

    fn runs(program: &str) -> String {
        format!(
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.x.options]\nBinaryName = '{program}'\n"
        )
    }

    const CONFIG: &str = "etc/containerd/config.toml";
    const PROGRAM: (&str, &str) =
        ("usr/bin/nvidia-container-runtime", "\x7fELF with ignore-imex-channel-requests in it");

    #[test]
    fn a_link_of_another_name_is_nvidias_runtime_all_the_same() {
        for (program, link, target) in [
            ("/usr/bin/accel", "usr/bin/accel", "->nvidia-container-runtime"),
            ("/opt/accel", "opt/accel", "->/usr/bin/nvidia-container-runtime"),
            ("accel", "usr/local/bin/accel", "->../../bin/nvidia-container-runtime"),
        ] {
            let config = runs(program);
            assert_eq!(verdict(&[(CONFIG, &config), PROGRAM, (link, target)]), "open", "{program}");
            let set = "[features]\nignore-imex-channel-requests = true\n";
            let toolkit = ("etc/nvidia-container-runtime/config.toml", set);
            assert_eq!(verdict(&[(CONFIG, &config), PROGRAM, (link, target), toolkit]), "closed", "{program}");
            assert_eq!(verdict(&[(CONFIG, &config), (link, "->/usr/bin/crun")]), "not-nvidia", "{program}");
        }
    }

    #[test]
    fn what_containerd_imports_is_read_or_said_to_be_unread() {
        let nvidia = runs("/usr/bin/nvidia-container-runtime");
        let imports = |what: &str| format!("version = 3\nimports = ['{what}']\n");
        for (import, place, expected) in [
            ("conf.d/*.toml", "etc/containerd/conf.d/nvidia.toml", "open"),
            ("conf.d/*.toml", "etc/containerd/conf.d/.nvidia.toml", "open"),
            ("/etc/*/conf.d/nvidia.toml", "etc/containerd/conf.d/nvidia.toml", "unknown"),
            ("conf.d/[m-o]*.toml", "etc/containerd/conf.d/nvidia.toml", "unknown"),
        ] {
            let config = imports(import);
            assert_eq!(verdict(&[(CONFIG, &config), (place, &nvidia), PROGRAM]), expected, "{import} {place}");
        }
        let chain: Vec<_> = (0..MAX_IMPORTS)
            .map(|number| (format!("etc/containerd/{number}.toml"), imports(&format!("{}.toml", number + 1))))
            .collect();
        let mut files: Vec<_> = chain.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let (config, last) = (imports("0.toml"), format!("etc/containerd/{MAX_IMPORTS}.toml"));
        files.extend([(CONFIG, config.as_str()), (last.as_str(), nvidia.as_str()), PROGRAM]);
        assert_eq!(verdict(&files), "unknown", "more files than are read");
        assert_eq!(verdict(&[(CONFIG, &imports("config.toml"))]), "not-nvidia", "one that imports itself is one");
    }

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
