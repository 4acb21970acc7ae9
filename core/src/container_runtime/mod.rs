//! What the configuration files of containerd and CRI-O say, as far as devices and NVIDIA's runtime are concerned.

mod containerd;
mod crio;
mod version;

use std::collections::BTreeSet;

pub use version::{Fix, Version};

/// A container runtime that implements the kubelet's CRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// containerd.
    Containerd,
    /// CRI-O.
    CriO,
}

impl Kind {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::CriO => "CRI-O",
        }
    }
}

/// A configuration file that was found, or that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Whose it is.
    pub kind: Kind,
    /// Where it is on the host.
    pub path: String,
    /// Its text, or why it could not be read.
    pub text: Result<String, String>,
}

/// What files say; what they don't say is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Files that it takes in, as they are written there; a `*` stands for any names.
    pub imports: Vec<String>,
    /// Whether it says anything of the CRI.
    pub cri: bool,
    /// Whether CDI devices are injected. CRI-O has no such switch.
    pub enable_cdi: Option<bool>,
    /// Where CDI files are looked for.
    pub cdi_dirs: Option<Vec<String>>,
    /// Where OCI hooks are looked for.
    pub hooks_dirs: Vec<String>,
    /// Programs that it starts, each with the runtime whose program it is.
    pub programs: BTreeSet<(String, String)>,
}

/// What one file says.
///
/// # Errors
/// Why it cannot be read, with its path.
pub fn read(file: &ConfigFile) -> Result<Said, String> {
    let text = file.text.as_ref().map_err(|why| format!("{} cannot be read: {why}", file.path))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("{} line {line} is no TOML: {}", file.path, error.message().lines().next().unwrap_or_default())
    })?;
    Ok(match file.kind {
        Kind::Containerd => containerd::read(&table),
        Kind::CriO => crio::read(&table),
    })
}

/// What files say together, in the order in which the runtime reads them: the later one wins. `whole_sections`: a later
/// file's CRI section takes the place of the earlier one's, as in containerd 1.x, and is not merged into it.
pub fn merge(files: impl IntoIterator<Item = Said>, whole_sections: bool) -> Said {
    files.into_iter().fold(Said::default(), |mut all, said| {
        if said.cri && whole_sections {
            (all.enable_cdi, all.cdi_dirs) = (None, None);
        }
        all.cri |= said.cri;
        all.enable_cdi = said.enable_cdi.or(all.enable_cdi);
        all.cdi_dirs = said.cdi_dirs.or(all.cdi_dirs);
        all.hooks_dirs.extend(said.hooks_dirs);
        all.imports.extend(said.imports);
        // Never taken away: a runtime too many is a false alarm, one too few an open door.
        all.programs.extend(said.programs);
        all
    })
}

/// Every program below `value`, with the name of the runtime: the key below `runtimes` on the way to it, else the last
/// key. A program is any text under a key that names one, which keys do differs by version.
fn programs(value: &toml::Value, way: &mut Vec<String>, found: &mut BTreeSet<(String, String)>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                way.push(key.clone());
                programs(value, way, found);
                way.pop();
            }
        }
        toml::Value::String(text) => {
            let key = way.last().map_or("", String::as_str);
            if PROGRAM_KEYS.contains(&key) && !text.is_empty() {
                let at = way.iter().position(|key| key == "runtimes").map_or(way.len() - 1, |at| at + 1);
                found.insert((way[at].clone(), text.clone()));
            }
        }
        _ => {}
    }
}

/// `BinaryName` is the shims' option; the others are those of containerd's config version 1 and of CRI-O.
const PROGRAM_KEYS: [&str; 6] = ["BinaryName", "runtime_engine", "runtime", "Runtime", "runtime_path", "shim"];

fn strings(value: Option<&toml::Value>) -> Option<Vec<String>> {
    let list = value?.as_array()?;
    Some(list.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect())
}
