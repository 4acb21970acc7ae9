use std::collections::BTreeMap;

use super::Verdict;
use super::toolkit::{KEY, Toolkit};
use crate::container_runtime::{self, ConfigFile};

/// What was found on a node. Paths are the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The configuration files of the container runtime that are there, in the order in which it reads them.
    pub container_runtime: Vec<ConfigFile>,
    /// Where one was looked for.
    pub looked_for: Vec<String>,
    /// Names of NVIDIA's runtime programs; others may follow a dot, as in `nvidia-container-runtime.cdi`.
    pub names: Vec<String>,
    /// OCI hooks that start the toolkit's hook: the hook's file, and the program.
    pub hooks: Vec<(String, String)>,
    /// What is known of those programs, by the path or name that the runtime is configured with.
    pub programs: BTreeMap<String, Program>,
    /// Where the toolkit's configuration is looked for, the first place first.
    pub toolkit_places: Vec<String>,
    /// The toolkit's configuration files that are there: text, or why it could not be read.
    pub toolkit: BTreeMap<String, Result<String, String>>,
    /// CDI files, none of them ours, that name IMEX channels.
    pub cdi_files: Vec<String>,
}

/// What is known of a program of the toolkit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The configuration file that its wrapper script gives it.
    pub config: Option<String>,
    /// Whether it has the text of the key in it; none if it could not be read.
    pub knows_key: Option<bool>,
}

/// A way to NVIDIA's runtime.
struct Door {
    /// What it is, in words.
    what: String,
    program: String,
}

/// Whether a pod can get channels from NVIDIA's runtime. An open door counts more than one that nobody can see.
pub fn judge(facts: &Facts) -> Verdict {
    let mut unknown = Vec::new();
    let mut doors = Vec::new();
    for file in &facts.container_runtime {
        match container_runtime::read(file) {
            Ok(said) => {
                let nvidia = said.programs.into_iter().filter(|(_, program)| is_nvidia(program, &facts.names));
                doors.extend(nvidia.map(|(runtime, program)| Door {
                    what: format!("runtime {runtime} in {}, {program}", file.path),
                    program,
                }));
            }
            Err(why) => unknown.push(why),
        }
    }
    let hook = |(file, program): &(String, String)| Door { what: format!("hook {file}"), program: program.clone() };
    doors.extend(facts.hooks.iter().map(hook));
    if doors.is_empty() && unknown.is_empty() {
        if !facts.container_runtime.is_empty() {
            return Verdict::NotNvidia;
        }
        let Some(found) = facts.toolkit_places.iter().find(|place| facts.toolkit.contains_key(*place)) else {
            let places = facts.looked_for.join(", ");
            return Verdict::Unknown { why: format!("no configuration of containerd or CRI-O at {places}") };
        };
        // The toolkit is there, and nobody can see that the runtime does not use it.
        doors.push(Door { what: format!("its configuration {found}"), program: String::new() });
    }
    let mut open = Vec::new();
    for door in &doors {
        match through(door, facts) {
            Verdict::Open { why, set } => open.push((why, set)),
            Verdict::Unknown { why } => unknown.push(why),
            _ => {}
        }
    }
    if let Some((why, set)) = open.into_iter().next() {
        return Verdict::Open { why, set };
    }
    match unknown.into_iter().next() {
        Some(why) => Verdict::Unknown { why },
        None => Verdict::Closed,
    }
}

/// By its name, whatever the folder.
pub fn is_nvidia(program: &str, names: &[String]) -> bool {
    let file = program.rsplit('/').next().unwrap_or_default();
    let is =
        |name: &String| file.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    names.iter().any(is)
}

fn through(door: &Door, facts: &Facts) -> Verdict {
    let program = facts.programs.get(&door.program).cloned().unwrap_or_default();
    let place = config_of(&door.program, &program, facts);
    let toolkit = match facts.toolkit.get(&place) {
        None => Toolkit::defaults(),
        Some(Ok(text)) => match Toolkit::read(text) {
            Ok(toolkit) => toolkit,
            Err(why) => return Verdict::Unknown { why: format!("{place}: {why}") },
        },
        Some(Err(why)) => return Verdict::Unknown { why: format!("{place} cannot be read: {why}") },
    };
    if program.knows_key == Some(false) {
        return Verdict::Open {
            why: format!("the NVIDIA Container Toolkit ({}) is older than the setting {KEY}", door.what),
            set: format!("update it to 1.17.5 or newer and set features.{KEY} = true in {place}"),
        };
    }
    if !toolkit.hears_requests() {
        return Verdict::Closed;
    }
    if !toolkit.ignores {
        return Verdict::Open {
            why: format!(
                "the NVIDIA Container Toolkit ({}) gives a pod any IMEX channel that it asks for {}",
                door.what,
                toolkit.ways()
            ),
            set: format!("set features.{KEY} = true in {place}{}", by_operator(&place)),
        };
    }
    if let Some(file) = facts.cdi_files.first() {
        return Verdict::Open {
            why: format!(
                "the CDI file {file} names IMEX channels, and the NVIDIA Container Toolkit ({}) gives a pod any CDI \
                 device that it names in NVIDIA_VISIBLE_DEVICES",
                door.what
            ),
            set: format!(
                "take the channels out of {file}, or set accept-nvidia-visible-devices-envvar-when-unprivileged and \
                 -as-volume-mounts = false in {place}"
            ),
        };
    }
    Verdict::Closed
}

/// The GPU Operator writes its file anew: there it is set by a variable.
fn by_operator(place: &str) -> String {
    if !place.contains("/toolkit/.config/") {
        return String::new();
    }
    format!(" (with the GPU Operator: NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES={KEY} in toolkit.env)")
}

/// The file that a program reads: what its wrapper says, the one beside it that an installer of the GPU Operator makes,
/// or the first place where there is one.
fn config_of(path: &str, program: &Program, facts: &Facts) -> String {
    if let Some(config) = &program.config {
        return config.clone();
    }
    if let Some(beside) = beside(path).filter(|beside| facts.toolkit.contains_key(beside)) {
        return beside;
    }
    let there = facts.toolkit_places.iter().find(|place| facts.toolkit.contains_key(*place));
    there.or(facts.toolkit_places.first()).cloned().unwrap_or_default()
}

/// Where an installer of the GPU Operator puts the configuration of a program.
pub fn beside(program: &str) -> Option<String> {
    let (folder, _) = program.rsplit_once('/')?;
    Some(format!("{folder}/.config/nvidia-container-runtime/config.toml"))
}
