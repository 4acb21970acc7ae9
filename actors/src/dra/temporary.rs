//! Files that are not whole yet: written beside their place, and renamed into it.

use std::fs::File;
use std::io::Write;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::point::point;

/// A file on its way. It is locked while it is written: a locked one has a living writer, which may be another agent's,
/// and process ids would not tell, for in their pods all agents have the same.
pub(super) struct Temporary<'a> {
    dir: &'a OwnedFd,
    name: String,
    file: File,
    renamed: bool,
}

impl<'a> Temporary<'a> {
    pub(super) fn create(dir: &'a OwnedFd, target: &str) -> std::io::Result<Self> {
        loop {
            point("create")?;
            let name = format!(".{target}.{:016x}{SUFFIX}", fastrand::u64(..));
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = match rustix::fs::openat(dir, &name, flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => continue,
                opened => File::from(opened?),
            };
            let file = Self { dir, name, file, renamed: false };
            rustix::fs::flock(&file.file, FlockOperation::LockExclusive)?;
            // Somebody who sweeps may have taken it for dead before it was locked.
            if rustix::fs::fstat(&file.file)?.st_nlink > 0 {
                return Ok(file);
            }
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        point("write")?;
        self.file.write_all(bytes)
    }

    pub(super) fn sync(&self) -> std::io::Result<()> {
        point("fsync-file")?;
        self.file.sync_all()
    }

    /// It is where it belongs.
    pub(super) fn renamed(&mut self) {
        self.renamed = true;
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // What went wrong before is what counts; the next start sweeps.
            let _ = rustix::fs::unlinkat(self.dir, &self.name, AtFlags::empty());
        }
    }
}

const SUFFIX: &str = ".tmp";

/// The name of the file that a temporary one was to become.
pub(super) fn target(name: &str) -> Option<&str> {
    let (target, token) = name.strip_prefix('.')?.strip_suffix(SUFFIX)?.rsplit_once('.')?;
    (!target.is_empty() && token.bytes().all(|b| b.is_ascii_hexdigit())).then_some(target)
}

/// Removes a temporary file whose writer is dead.
pub(super) fn remove_dead(dir: &OwnedFd, name: &str) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        // Renamed meanwhile, or none of ours.
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    point("unlink")?;
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_writer_s_file_goes_and_a_living_one_s_stays() {
        let folder = tempfile::tempdir().unwrap();
        let dir = rustix::fs::open(folder.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let mut living = Temporary::create(&dir, "a.json").unwrap();
        living.write(b"half").unwrap();
        assert_eq!(target(living.name()), Some("a.json"));
        let dead = ".a.json.00ff.tmp";
        std::fs::write(folder.path().join(dead), "half").unwrap();
        remove_dead(&dir, living.name()).unwrap();
        remove_dead(&dir, dead).unwrap();
        assert!(folder.path().join(living.name()).exists() && !folder.path().join(dead).exists());
        let name = living.name().to_owned();
        drop(living);
        assert!(!folder.path().join(name).exists());
    }

    #[test]
    fn only_our_own_names_are_temporary() {
        // The second is what an earlier release called them.
        for (name, expected) in [
            (".a.json.0123456789abcdef.tmp", Some("a.json")),
            (".a.json.77.tmp", Some("a.json")),
            ("a.json", None),
            (".a.json", None),
            (".tmp", None),
            ("..77.tmp", None),
            (".a.x-y.tmp", None),
        ] {
            assert_eq!(target(name), expected, "{name}");
        }
    }
}
