//! Files of one folder, by directory handle: no link is followed below it, and a reader sees a file whole or not at all.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use heddle_core::fault::{Fault, reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::point::point;
use super::temporary::{self, Temporary};

/// Larger files than this are not ours: the largest has 2,047 device nodes of about 130 bytes.
const MAX_FILE: u64 = 1 << 20;

/// Waits for the disk since the process began.
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// How often this process has waited for the disk: each claim costs a few of these, and they are what is slow.
#[derive(Debug)]
pub(crate) struct DiskSyncs;

impl Collector for DiskSyncs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Files and folders synced to the disk";
        let descriptor = encoder.encode_descriptor("disk_syncs", help, None, MetricType::Counter)?;
        ConstCounter::new(SYNCS.load(Ordering::Relaxed)).encode(descriptor)
    }
}

/// Tells whether a folder can be written.
const PROBE: &str = ".heddle-probe";

/// Whether a change must outlive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It must: file and folder are synced before the call returns.
    Durable,
    /// It need not: the folder is a tmpfs, or is checked after every boot.
    ThisBoot,
}

/// What there is of a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A file, with its bytes.
    File(Vec<u8>),
    /// Something that no write of ours leaves: a link, a folder, a pipe, a file that the disk has lost. In words.
    Other(String),
}

/// A folder that we write to. It is opened anew for every call: somebody may have put another in its place.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    durability: Durability,
    mode: u32,
}

impl Folder {
    /// The folder at `path`; `mode` is what it gets where we have to make it.
    pub(crate) fn new(path: impl Into<PathBuf>, durability: Durability, mode: u32) -> Self {
        Self { path: path.into(), durability, mode }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder where it is missing; says whether it was.
    pub(crate) fn create(&self) -> Result<bool, Fault> {
        self.make().map_err(|error| self.fault("make", "", error))
    }

    /// Fails if a file cannot be made here; `what` and `flag` tell a person what to set.
    pub(crate) fn check(&self, what: &str, flag: &str) -> Result<(), Fault> {
        // Not worth waiting for the disk.
        let here = Self { durability: Durability::ThisBoot, ..self.clone() };
        let tried = here.put(PROBE, b"").and_then(|()| {
            self.sweep_at(|target| target == PROBE)?;
            remove(&self.open()?, PROBE)
        });
        tried.map_err(|error| {
            Fault::fatal(
                reason::NODE_IO,
                format!(
                    "the {what} directory {} does not exist or cannot be written: {error}; create it or set {flag}",
                    self.path.display()
                ),
            )
        })
    }

    /// What there is of this name; none if there is nothing.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Found>, Fault> {
        match self.open().and_then(|dir| read(&dir, name)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(self.fault("read", name, error)),
        }
    }

    /// Puts `bytes` there, in place of whatever there was. A folder that somebody has removed is made anew.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        let written = match self.put(name, bytes) {
            Err(error) if is_absent(&error) => self.make().and_then(|_| self.put(name, bytes)),
            written => written,
        };
        written.map_err(|error| self.fault("write", name, error))
    }

    /// Removes what there is of this name, if there is anything.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Fault> {
        let removed = self.open().and_then(|dir| {
            remove(&dir, name)?;
            self.sync(&dir)
        });
        match removed {
            Err(error) if !is_absent(&error) => Err(self.fault("remove", name, error)),
            _ => Ok(()),
        }
    }

    /// Moves it, whatever it is, to another folder, in place of whatever there was.
    pub(crate) fn move_to(&self, name: &str, other: &Folder, new_name: &str) -> Result<(), Fault> {
        let rename = || {
            other.make()?;
            let (from, to) = (self.open()?, other.open()?);
            rename(&from, name, &to, new_name)?;
            self.sync(&to)?;
            self.sync(&from)
        };
        rename().map_err(|error| self.fault("move", name, error))
    }

    /// The names in it, in order; none if the folder is not there.
    pub(crate) fn names(&self) -> Result<Vec<String>, Fault> {
        self.list().map_err(|error| self.fault("list", "", error))
    }

    /// Removes what writes that were cut off have left of files that `ours` knows.
    pub(crate) fn sweep(&self, ours: impl Fn(&str) -> bool) -> Result<(), Fault> {
        self.sweep_at(ours).map_err(|error| self.fault("clean", "", error))
    }

    fn sweep_at(&self, ours: impl Fn(&str) -> bool) -> std::io::Result<()> {
        for name in self.list()? {
            if temporary::target(&name).is_some_and(&ours) {
                temporary::remove_dead(&self.open()?, &name)?;
            }
        }
        Ok(())
    }

    fn list(&self) -> std::io::Result<Vec<String>> {
        let mut names = Vec::new();
        let dir = match self.open() {
            Err(error) if is_absent(&error) => return Ok(names),
            dir => rustix::fs::Dir::read_from(dir?)?,
        };
        for entry in dir {
            // What is no text is not of our making.
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let dir = self.open()?;
        let mut file = Temporary::create(&dir, name)?;
        file.write(bytes)?;
        if self.durability == Durability::Durable {
            SYNCS.fetch_add(1, Ordering::Relaxed);
            file.sync()?;
        }
        rename(&dir, file.name(), &dir, name)?;
        file.renamed();
        self.sync(&dir)
    }

    fn make(&self) -> std::io::Result<bool> {
        use std::os::unix::fs::DirBuilderExt;
        let missing: Vec<&Path> = self.path.ancestors().take_while(|path| !path.exists()).collect();
        if missing.is_empty() {
            return Ok(false);
        }
        point("mkdir")?;
        std::fs::DirBuilder::new().recursive(true).mode(self.mode).create(&self.path)?;
        // A file is no more durable than the folders above it.
        for parent in missing.iter().filter_map(|path| path.parent()) {
            self.sync(&open(parent)?)?;
        }
        Ok(true)
    }

    fn open(&self) -> std::io::Result<OwnedFd> {
        open(&self.path)
    }

    fn sync(&self, dir: &OwnedFd) -> std::io::Result<()> {
        if self.durability == Durability::Durable {
            point("fsync-dir")?;
            SYNCS.fetch_add(1, Ordering::Relaxed);
            rustix::fs::fsync(dir)?;
        }
        Ok(())
    }

    fn fault(&self, verb: &str, name: &str, error: std::io::Error) -> Fault {
        Fault::retryable(reason::NODE_IO, format!("cannot {verb} {}: {error}", self.path.join(name).display()))
    }
}

fn open(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn read(dir: &OwnedFd, name: &str) -> std::io::Result<Found> {
    let other = |what: &dyn std::fmt::Display| Ok(Found::Other(what.to_string()));
    // A pipe would be waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::LOOP) => return other(&"it is a symbolic link"),
        Err(Errno::NXIO) => return other(&"it is a socket or a device"),
        Err(error) => return Err(error.into()),
    };
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return other(&"it is a directory"),
        _ => return other(&"it is no regular file"),
    }
    let mut bytes = Vec::new();
    match File::from(file).take(MAX_FILE).read_to_end(&mut bytes) {
        Ok(_) => Ok(Found::File(bytes)),
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => other(&error),
        Err(error) => Err(error),
    }
}

/// Removes a file, a link, or a folder with what is in it. No link is followed.
fn remove(dir: &OwnedFd, name: &str) -> std::io::Result<()> {
    point("unlink")?;
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        // The handle's own path, so that nothing above it can have been exchanged meanwhile.
        Err(Errno::ISDIR) => std::fs::remove_dir_all(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())),
        removed => Ok(removed?),
    }
}

fn rename(from: &OwnedFd, name: &str, to: &OwnedFd, new_name: &str) -> std::io::Result<()> {
    point("rename")?;
    match rustix::fs::renameat(from, name, to, new_name) {
        // Only things of one kind replace each other. A container runtime that is told to mount a file which is not
        // there makes a folder of its name.
        Err(Errno::ISDIR | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => {
            remove(to, new_name)?;
            Ok(rustix::fs::renameat(from, name, to, new_name)?)
        }
        renamed => Ok(renamed?),
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(bytes: &[u8]) -> Option<Found> {
        Some(Found::File(bytes.to_vec()))
    }

    #[test]
    fn a_file_is_written_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        for durability in [Durability::Durable, Durability::ThisBoot] {
            let folder = Folder::new(dir.path(), durability, 0o700);
            assert_eq!(folder.read("a").unwrap(), None);
            folder.write("a", b"one").unwrap();
            folder.write("a", b"two").unwrap();
            assert_eq!(folder.read("a").unwrap(), file(b"two"));
            assert_eq!(folder.names().unwrap(), ["a"]);
            folder.remove("a").unwrap();
            folder.remove("a").unwrap();
            assert_eq!(folder.names().unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("a")).unwrap();
        let folder = Folder::new(dir.path(), Durability::ThisBoot, 0o755);
        assert_eq!(folder.read("a").unwrap(), Some(Found::Other("it is a symbolic link".into())));
        folder.write("a", b"ours").unwrap();
        assert_eq!(std::fs::read(outside.path()).unwrap(), b"");
        assert_eq!(folder.read("a").unwrap(), file(b"ours"));
    }

    #[test]
    fn the_fault_of_a_missing_folder_says_what_to_do() {
        let folder = Folder::new("/nonexistent/cdi", Durability::ThisBoot, 0o755);
        let fault = folder.check("CDI", "--cdi-dir").unwrap_err();
        assert_eq!(fault.class, heddle_core::fault::Class::Fatal);
        assert_eq!(
            fault.message,
            "the CDI directory /nonexistent/cdi does not exist or cannot be written: No such file or directory \
             (os error 2); create it or set --cdi-dir"
        );
    }

    #[test]
    fn a_folder_put_in_the_place_of_another_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().join("f"), Durability::ThisBoot, 0o755);
        folder.create().unwrap();
        folder.write("a", b"one").unwrap();
        std::fs::remove_dir_all(dir.path().join("f")).unwrap();
        assert_eq!((folder.read("a").unwrap(), folder.names().unwrap().len()), (None, 0));
        folder.write("a", b"two").unwrap();
        assert_eq!(folder.read("a").unwrap(), file(b"two"));
        let mode = std::fs::metadata(folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert!(!folder.create().unwrap());
    }

    #[test]
    fn whatever_is_in_the_place_of_a_file_gives_way_without_being_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("kept"), "x").unwrap();
        let folder = Folder::new(dir.path(), Durability::Durable, 0o700);
        let aside = Folder::new(outside.path().join("aside"), Durability::Durable, 0o700);
        let at = dir.path().join("a");
        let make = |kind: &str| match kind {
            "folder" => {
                std::fs::create_dir_all(at.join("deep")).unwrap();
                std::fs::write(at.join("deep/file"), "x").unwrap();
                std::os::unix::fs::symlink(outside.path(), at.join("link")).unwrap();
            }
            "link" => std::os::unix::fs::symlink(outside.path(), &at).unwrap(),
            "dangling" => std::os::unix::fs::symlink("/nowhere", &at).unwrap(),
            "pipe" => rustix::fs::mknodat(rustix::fs::CWD, &at, FileType::Fifo, Mode::RUSR, 0).unwrap(),
            _ => drop(std::os::unix::net::UnixListener::bind(&at).unwrap()),
        };
        for kind in ["folder", "link", "dangling", "pipe", "socket"] {
            make(kind);
            assert!(matches!(folder.read("a").unwrap(), Some(Found::Other(_))), "{kind}");
            folder.write("a", b"ours").unwrap();
            assert_eq!(folder.read("a").unwrap(), file(b"ours"), "{kind}");
            folder.remove("a").unwrap();
            make(kind);
            folder.remove("a").unwrap();
            assert_eq!(folder.names().unwrap().len(), 0, "{kind}");
            make(kind);
            folder.move_to("a", &aside, "a").unwrap();
            assert_eq!(aside.names().unwrap(), ["a"], "{kind}");
            folder.write("a", b"ours").unwrap();
            folder.move_to("a", &aside, "a").unwrap();
            assert_eq!(aside.read("a").unwrap(), file(b"ours"), "{kind}");
            assert!(outside.path().join("kept").exists(), "{kind}");
        }
    }
}
