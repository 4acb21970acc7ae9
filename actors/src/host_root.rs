//! Files of the host, below the folder where its root is mounted.

use std::fs::File;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::small_file;

/// The host's `/`, wherever it is mounted. Paths below it are the host's own, and so are the links on the way: an
/// absolute link leads to the host's file, never to one of this container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot {
    root: PathBuf,
}

impl HostRoot {
    /// Below `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is this process's own root.
    pub fn is_own(&self) -> bool {
        self.root == Path::new("/")
    }

    /// What the host calls a path of this process: one below the mounted root, or one that is mounted at its own place.
    pub fn host_path(&self, path: &Path) -> String {
        match path.strip_prefix(&self.root) {
            Ok(below) => Path::new("/").join(below).display().to_string(),
            Err(_) => path.display().to_string(),
        }
    }

    /// A path of the host, as this process sees it. Links on its way that begin with `/` lead astray: it is for other
    /// programs, whose own business they are.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(relative(path))
    }

    /// A file's text; none if it is not there.
    ///
    /// # Errors
    /// It is there and cannot be read, is larger than 1 MiB, or no UTF-8.
    pub fn text(&self, path: &str) -> io::Result<Option<String>> {
        self.file(path)?.map(small_file::text).transpose()
    }

    /// An open file; none if it is not there.
    ///
    /// # Errors
    /// It is there and cannot be opened, or is no regular file.
    pub fn file(&self, path: &str) -> io::Result<Option<File>> {
        let opened = self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY);
        match opened {
            Ok(fd) => small_file::regular(File::from(fd)).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The names in a folder, in order; none if it is not there or cannot be read.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let Ok(fd) = self.open(folder, OFlags::RDONLY | OFlags::DIRECTORY) else { return Vec::new() };
        let Ok(entries) = rustix::fs::Dir::read_from(&fd) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        let mut names: Vec<String> = names.filter(|name| name != "." && name != "..").collect();
        names.sort();
        names
    }

    /// The files that a path with `*` in its last part means, in order; a path without one means itself. As for Go's
    /// `filepath.Glob`, by which containerd reads, a name may begin with a dot.
    ///
    /// # Errors
    /// The path is a pattern of another form.
    pub fn expand(&self, pattern: &str) -> io::Result<Vec<String>> {
        if !pattern.contains('*') {
            return Ok(vec![pattern.to_owned()]);
        }
        match pattern.rsplit_once('/') {
            Some((folder, last)) if !folder.contains('*') && !pattern.contains(['?', '[', '\\']) => {
                let names = self.names(folder).into_iter().filter(|name| matches_stars(last, name));
                Ok(names.map(|name| format!("{folder}/{name}")).collect())
            }
            _ => Err(io::Error::other("only a * in the last part of a pattern is understood")),
        }
    }

    /// Where the links lead that a path of the host is or has on its way; none if it is not there.
    pub fn target(&self, path: &str) -> Option<String> {
        let fd = self.open(path, OFlags::PATH).ok()?;
        let found = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
        let below = found.strip_prefix(self.root.canonicalize().ok()?).ok()?;
        Some(Path::new("/").join(below).display().to_string())
    }

    /// The nearest folder on the way to a path that is there, as this process sees it.
    pub fn nearest_folder(&self, path: &str) -> PathBuf {
        let below = relative(path);
        let way = below.ancestors().skip(1).map(|folder| self.root.join(folder));
        way.into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| self.root.clone())
    }

    fn open(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        match rustix::fs::openat2(&root, relative(path), flags, Mode::empty(), ResolveFlags::IN_ROOT) {
            // A kernel before 5.6, or an emulator: absolute links then lead astray, which is an error at worst.
            Err(Errno::NOSYS) => rustix::fs::openat(&root, relative(path), flags, Mode::empty()),
            opened => opened,
        }
    }
}

/// Below the root, without dots.
fn relative(path: &str) -> PathBuf {
    let parts = Path::new(path).components().filter(|part| matches!(part, Component::Normal(_)));
    let below: PathBuf = parts.collect();
    if below.as_os_str().is_empty() { PathBuf::from(".") } else { below }
}

/// Whether a name fits a pattern in which `*` stands for any text.
fn matches_stars(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_leads_to_the_hosts_own_file() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        fs::create_dir_all(dir.path().join("etc/containerd")).unwrap();
        fs::create_dir_all(dir.path().join("opt")).unwrap();
        fs::write(dir.path().join("opt/config.toml"), "version = 2").unwrap();
        symlink("/opt/config.toml", dir.path().join("etc/containerd/config.toml")).unwrap();
        assert_eq!(host.text("/etc/containerd/config.toml").unwrap().as_deref(), Some("version = 2"));
        symlink("../../../../../../../../../../etc/passwd", dir.path().join("opt/out")).unwrap();
        assert_eq!(host.text("/opt/out").unwrap(), None, "there is no way out");
        assert_eq!(host.text("/../../etc/none").unwrap(), None);
        assert!(host.text("/opt").is_err(), "a folder is no file");
    }

    #[test]
    fn a_link_has_a_target_on_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        fs::create_dir_all(dir.path().join("usr/bin")).unwrap();
        fs::write(dir.path().join("usr/bin/program"), "").unwrap();
        symlink("usr/bin", dir.path().join("bin")).unwrap();
        symlink("/bin/program", dir.path().join("usr/bin/other")).unwrap();
        for path in ["/usr/bin/program", "/bin/program", "/bin/other"] {
            assert_eq!(host.target(path).as_deref(), Some("/usr/bin/program"), "{path}");
        }
        assert_eq!(host.target("/bin/none"), None);
    }

    #[test]
    fn stars_are_expanded_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot::new(dir.path());
        fs::create_dir_all(dir.path().join("c.d")).unwrap();
        for name in ["20-b.toml", "10-a.toml", "x.bak", ".30-c.toml"] {
            fs::write(dir.path().join("c.d").join(name), "").unwrap();
        }
        assert_eq!(host.expand("/c.d/*.toml").unwrap(), ["/c.d/.30-c.toml", "/c.d/10-a.toml", "/c.d/20-b.toml"]);
        assert_eq!(host.expand("/none/*.toml").unwrap(), Vec::<String>::new());
        assert_eq!(host.expand("/none/[a].toml").unwrap(), ["/none/[a].toml"]);
        for pattern in ["/*/a.toml", "/*/*.toml", "/c.d/?0*.toml", "/c.d/[12]*.toml", "/c.d/\\*.toml", "*"] {
            assert!(host.expand(pattern).is_err(), "{pattern}");
        }
        assert!(matches_stars("a*b*c", "aXbYc") && !matches_stars("a*b*c", "aXc") && !matches_stars("ab*", "a"));
    }

    #[test]
    fn the_nearest_folder_is_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc")).unwrap();
        let host = HostRoot::new(dir.path());
        assert_eq!(host.nearest_folder("/etc/nvidia/config.toml"), dir.path().join("etc"));
        assert_eq!(host.nearest_folder("/usr/x"), dir.path().join(""));
    }
}
