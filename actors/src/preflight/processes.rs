use std::fs;
use std::path::{Path, PathBuf};

use heddle_core::api::ImexMode;
use heddle_core::preflight::{DaemonFacts, Process};

use super::Settings;
use crate::runner::CONFIG;
use crate::runner::enter::CONFIG_DIR;

/// The processes that are IMEX daemons by their name, or have the session's capability open.
pub(super) fn daemons(settings: &Settings, capability: Option<u32>) -> DaemonFacts {
    let host_managed = settings.imex_mode == ImexMode::HostManaged;
    let Ok(entries) = fs::read_dir(&settings.proc_root) else {
        return DaemonFacts { host_managed, ..DaemonFacts::default() };
    };
    let number = |name: &std::ffi::OsStr| name.to_str()?.parse::<u32>().ok();
    let mut pids: Vec<u32> = entries.flatten().filter_map(|entry| number(&entry.file_name())).collect();
    pids.sort_unstable();
    let device = capability.map(|minor| PathBuf::from(format!("/dev/nvidia-caps/nvidia-cap{minor}")));
    let look = |pid: &u32| process(settings, *pid, device.as_deref());
    DaemonFacts { host_managed, visible: !pids.is_empty(), processes: pids.iter().filter_map(look).collect() }
}

fn process(settings: &Settings, pid: u32, device: Option<&Path>) -> Option<Process> {
    let folder = settings.proc_root.join(pid.to_string());
    let arguments = arguments(&folder);
    let name = arguments.first().and_then(|program| program.rsplit('/').next()).unwrap_or_default();
    let is_daemon = name == "nvidia-imex";
    let holds_session = device.and_then(|device| has_open(&folder, device));
    if !is_daemon && holds_session != Some(true) {
        return None;
    }
    let command = match arguments.is_empty() {
        true => fs::read_to_string(folder.join("comm")).unwrap_or_default().trim().to_owned(),
        false => arguments.join(" "),
    };
    let command = command.chars().filter(|c| !c.is_control()).take(120).collect();
    Some(Process { pid, command, ours: is_ours(settings, &folder, &arguments), holds_session })
}

/// Our runner is its parent, or its configuration is in our runner's folder: one whose runner has died has another
/// parent.
fn is_ours(settings: &Settings, folder: &Path, arguments: &[String]) -> bool {
    let runner = settings.runner_socket.parent().unwrap_or(Path::new("/run/heddle"));
    let configs = [Path::new(CONFIG_DIR).join(CONFIG), runner.join("daemon").join(CONFIG)];
    if arguments.iter().any(|argument| configs.iter().any(|config| Path::new(argument) == config)) {
        return true;
    }
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok());
    let parent = parent.map(|parent| self::arguments(&settings.proc_root.join(parent.to_string())));
    parent.is_some_and(|arguments| arguments.iter().any(|argument| argument == "imex-runner"))
}

fn arguments(folder: &Path) -> Vec<String> {
    let line = fs::read(folder.join("cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Whether the process has the file open; none where its files cannot be seen.
fn has_open(folder: &Path, file: &Path) -> Option<bool> {
    let mut files = fs::read_dir(folder.join("fd")).ok()?.flatten();
    Some(files.any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == file)))
}
