//! Files of one folder, by directory handle: no link is followed below it, and a reader sees a file whole or not at all.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use heddle_core::fault::{Fault, reason};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

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

/// Whether a change must outlive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// It must: file and folder are synced before the call returns.
    Durable,
    /// It need not: the folder is a tmpfs, or is checked after every boot.
    ThisBoot,
}

/// A folder that we write to. It is opened anew for every call: somebody may have put another in its place.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    durability: Durability,
}

impl Folder {
    /// The folder at `path`, which must be there.
    pub(crate) fn new(path: impl Into<PathBuf>, durability: Durability) -> Self {
        Self { path: path.into(), durability }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the folder where it is missing, for the agent's eyes only.
    pub(crate) fn create(&self) -> Result<(), Fault> {
        use std::os::unix::fs::DirBuilderExt;
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(|error| self.fault("make", "", error))
    }

    /// Fails if a file cannot be made here; `what` and `flag` tell a person what to set.
    pub(crate) fn check(&self, what: &str, flag: &str) -> Result<(), Fault> {
        let probe = ".heddle-probe";
        // Not worth waiting for the disk.
        let here = Self { durability: Durability::ThisBoot, ..self.clone() };
        let tried = here.put(probe, b"").and_then(|()| self.open().and_then(|dir| unlink(&dir, probe)));
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

    /// The file's bytes; none if it is not there.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Fault> {
        let read = || {
            let dir = self.open()?;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = File::from(rustix::fs::openat(&dir, name, flags, Mode::empty())?);
            let mut bytes = Vec::new();
            file.take(MAX_FILE).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(self.fault("read", name, error)),
        }
    }

    /// Puts `bytes` there, in place of what there was.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        self.put(name, bytes).map_err(|error| self.fault("write", name, error))
    }

    /// Removes the file, if there is one.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Fault> {
        let remove = || {
            let dir = self.open()?;
            unlink(&dir, name)?;
            self.sync(&dir)
        };
        match remove() {
            Err(error) if !is_absent(&error) => Err(self.fault("remove", name, error)),
            _ => Ok(()),
        }
    }

    /// Moves the file to another folder.
    pub(crate) fn move_to(&self, name: &str, other: &Folder, new_name: &str) -> Result<(), Fault> {
        let rename = || {
            let (from, to) = (self.open()?, other.open()?);
            rustix::fs::renameat(&from, name, &to, new_name)?;
            self.sync(&to)?;
            self.sync(&from)
        };
        rename().map_err(|error| self.fault("move", name, error))
    }

    /// The names in it, in order.
    pub(crate) fn names(&self) -> Result<Vec<String>, Fault> {
        let list = || {
            let mut names = Vec::new();
            for entry in rustix::fs::Dir::read_from(self.open()?)? {
                // What is no text is not of our making.
                if let Ok(name) = entry?.file_name().to_str() {
                    names.push(name.to_owned());
                }
            }
            names.retain(|name| name != "." && name != "..");
            names.sort();
            Ok(names)
        };
        list().map_err(|error| self.fault("list", "", error))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let dir = self.open()?;
        // The process id keeps two agents of a rolling update apart; a dead one's left-over is overwritten.
        let temporary = format!(".{name}.{}.tmp", std::process::id());
        unlink_if_there(&dir, &temporary)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(rustix::fs::openat(&dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
        let written = file
            .write_all(bytes)
            .and_then(|()| match self.durability {
                Durability::Durable => {
                    SYNCS.fetch_add(1, Ordering::Relaxed);
                    file.sync_all()
                }
                Durability::ThisBoot => Ok(()),
            })
            .and_then(|()| Ok(rustix::fs::renameat(&dir, &temporary, &dir, name)?));
        if written.is_err() {
            // The first error is the one to tell.
            let _ = unlink_if_there(&dir, &temporary);
        }
        written?;
        self.sync(&dir)
    }

    fn open(&self) -> std::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.path, flags, Mode::empty())?)
    }

    fn sync(&self, dir: &OwnedFd) -> std::io::Result<()> {
        if self.durability == Durability::Durable {
            SYNCS.fetch_add(1, Ordering::Relaxed);
            rustix::fs::fsync(dir)?;
        }
        Ok(())
    }

    fn fault(&self, verb: &str, name: &str, error: std::io::Error) -> Fault {
        Fault::retryable(reason::NODE_IO, format!("cannot {verb} {}: {error}", self.path.join(name).display()))
    }
}

fn unlink(dir: &OwnedFd, name: &str) -> std::io::Result<()> {
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
}

fn unlink_if_there(dir: &OwnedFd, name: &str) -> std::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_read_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        for durability in [Durability::Durable, Durability::ThisBoot] {
            let folder = Folder::new(dir.path(), durability);
            assert_eq!(folder.read("a").unwrap(), None);
            folder.write("a", b"one").unwrap();
            folder.write("a", b"two").unwrap();
            assert_eq!(folder.read("a").unwrap().as_deref(), Some(&b"two"[..]));
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
        let folder = Folder::new(dir.path(), Durability::ThisBoot);
        assert!(folder.read("a").is_err());
        folder.write("a", b"ours").unwrap();
        assert_eq!(std::fs::read(outside.path()).unwrap(), b"");
        assert_eq!(folder.read("a").unwrap().as_deref(), Some(&b"ours"[..]));
    }

    #[test]
    fn the_fault_of_a_missing_folder_says_what_to_do() {
        let folder = Folder::new("/nonexistent/cdi", Durability::ThisBoot);
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
        let folder = Folder::new(dir.path().join("f"), Durability::ThisBoot);
        folder.create().unwrap();
        folder.write("a", b"one").unwrap();
        std::fs::remove_dir_all(dir.path().join("f")).unwrap();
        assert!(folder.write("a", b"two").is_err());
        folder.create().unwrap();
        folder.write("a", b"two").unwrap();
        assert_eq!(folder.read("a").unwrap().as_deref(), Some(&b"two"[..]));
    }
}
