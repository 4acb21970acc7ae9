//! Who else is there, as far as the runner's container sees other processes.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, open, openat2};

use super::child::start_time;
use super::files::identity_of;
use super::log::LOG_NAME;

/// Most processes that a message names.
const MOST: usize = 8;

/// Daemons that no runner has started, in words; empty if none is seen.
pub(super) fn daemons(own: Option<u32>) -> String {
    let others: Vec<_> = processes()
        .filter(|pid| Some(*pid) != own)
        .filter(|pid| name(*pid).as_deref() == Some("nvidia-imex") && !is_of_a_runner(*pid))
        .map(shown)
        .take(MOST)
        .collect();
    others.join(", ")
}

/// The daemon that reads this configuration file, in whatever root it is, and whose log a runner has made. A fork of it that has
/// not become another program yet is the younger one.
pub(super) fn reader(config: &Path) -> Option<u32> {
    let folder = identity_of(config.parent()?)?;
    let is_ours = |pid: &u32| {
        let Some((base, read)) = configuration(*pid) else { return false };
        let reads_it =
            read.file_name() == config.file_name() && read.parent().and_then(|at| folder_in(&base, at)) == Some(folder);
        reads_it && has_log(*pid)
    };
    processes().filter(is_ours).min_by_key(|pid| (start_time(*pid), *pid))
}

/// A variable of the environment that a process was started with.
pub(super) fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    variables.find_map(|entry| entry.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// The configuration file of an IMEX daemon by its own word, and in /proc the folder from which it finds that.
fn configuration(pid: u32) -> Option<(PathBuf, PathBuf)> {
    let words = arguments(pid);
    let flag = words.iter().position(|word| word == "-c")?;
    // It may be started by a loader.
    words[..flag].iter().find(|word| word.rsplit('/').next() == Some("nvidia-imex"))?;
    let path = PathBuf::from(words.get(flag + 1)?);
    let from = if path.is_absolute() { "root" } else { "cwd" };
    Some((Path::new("/proc").join(pid.to_string()).join(from), path))
}

/// Device and inode of a folder that a process sees at a path. Whoever made that process's root may have put links there, which
/// must lead nowhere else than they lead for the process: a stranger's link to the runner's folder is not that folder.
fn folder_in(base: &Path, path: &Path) -> Option<(u64, u64)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = open(base, flags, Mode::empty()).ok()?;
    let below = path.strip_prefix("/").unwrap_or(path);
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = fstat(openat2(&base, below, flags, Mode::empty(), resolve).ok()?).ok()?;
    Some((found.st_dev, found.st_ino))
}

fn has_log(pid: u32) -> bool {
    let log = fs::read_link(format!("/proc/{pid}/fd/2")).unwrap_or_default();
    log.to_string_lossy().starts_with(&format!("/memfd:{LOG_NAME}"))
}

/// The process that listens on a port, in words; empty if it is not seen.
pub(super) fn listener(address: IpAddr, port: u16) -> String {
    let Some(inode) = socket(address, port) else { return String::new() };
    let link = PathBuf::from(format!("socket:[{inode}]"));
    let has_it = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok();
        files.is_some_and(|files| files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|at| at == link)))
    };
    processes().find(has_it).map(shown).unwrap_or_default()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn arguments(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn name(pid: u32) -> Option<String> {
    arguments(pid).first()?.rsplit('/').next().map(str::to_owned)
}

fn is_of_a_runner(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent.is_some_and(|parent| arguments(parent).iter().any(|argument| argument == "imex-runner"))
}

fn shown(pid: u32) -> String {
    let command: String = arguments(pid).join(" ").chars().filter(|c| !c.is_control()).take(120).collect();
    format!("pid {pid} ({command})")
}

/// The inode of the socket that listens on a port of this address, or of all.
fn socket(address: IpAddr, port: u16) -> Option<u64> {
    let own = hex(address);
    ["/proc/self/net/tcp", "/proc/self/net/tcp6"].into_iter().find_map(|table| {
        let text = fs::read_to_string(table).ok()?;
        text.lines().find_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let (host, at) = words.get(1)?.split_once(':')?;
            // 0A is LISTEN.
            let listens = *words.get(3)? == "0A" && u16::from_str_radix(at, 16).ok()? == port;
            let fits = host == own || host.bytes().all(|digit| digit == b'0');
            if listens && fits { words.get(9)?.parse().ok() } else { None }
        })
    })
}

/// An address as the kernel's tables have it: words of four bytes in the machine's own order.
fn hex(address: IpAddr) -> String {
    let bytes = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let word = |word: &[u8]| word.try_into().map(u32::from_ne_bytes).unwrap_or_default();
    bytes.chunks(4).map(|chunk| format!("{:08X}", word(chunk))).collect()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn who_listens_is_found() {
        for address in ["127.0.0.1", "0.0.0.0"] {
            let socket = TcpListener::bind((address, 0)).unwrap();
            let port = socket.local_addr().unwrap().port();
            let own = format!("pid {} (", std::process::id());
            let found = listener("127.0.0.1".parse().unwrap(), port);
            assert!(found.starts_with(&own), "{found}");
            drop(socket);
            assert_eq!(listener("127.0.0.1".parse().unwrap(), port), "");
        }
    }

    #[test]
    fn a_strangers_link_to_a_folder_is_not_that_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, jail) = (dir.path().join("run/daemon"), dir.path().join("jail"));
        std::fs::create_dir_all(&ours).unwrap();
        std::fs::create_dir_all(jail.join("x")).unwrap();
        std::os::unix::fs::symlink(&ours, jail.join("x/daemon")).unwrap();
        std::os::unix::fs::symlink("../../run/daemon", jail.join("x/up")).unwrap();
        let own = identity_of(&ours);
        assert_eq!(identity_of(&jail.join("x/daemon")), own, "as it would be found from here");
        for path in ["/x/daemon", "x/daemon", "/x/up", "/../run/daemon", "x/../../run/daemon"] {
            assert_eq!(folder_in(&jail, Path::new(path)), None, "{path}");
        }
        // Of its own root a process sees it, also by links.
        assert_eq!(folder_in(Path::new("/"), &ours), own);
        assert_eq!(folder_in(Path::new("/"), &jail.join("x/daemon")), own);
        assert_eq!(folder_in(dir.path(), Path::new("run/daemon")), own);
    }
}
