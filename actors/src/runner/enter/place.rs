use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, mkdirat, mknodat, open, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_bind, mount_bind_recursive, mount_remount};

use super::mounts::{failed, path_of};

/// A folder that is taken for `/`: no link in it leads out of it.
pub(super) struct Inside {
    folder: OwnedFd,
    path: PathBuf,
}

impl Inside {
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let folder = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(format!("{} cannot be opened", path.display())))?;
        Ok(Self { folder, path: path.to_owned() })
    }

    /// What is there under this name; none if nothing is.
    pub(super) fn get(&self, name: &Path) -> Result<Option<OwnedFd>, String> {
        match self.look(name) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed(format!("{} of {} cannot be opened", name.display(), self.path.display()))(error)),
        }
    }

    fn look(&self, name: &Path) -> Result<OwnedFd, Errno> {
        let name = name.strip_prefix("/").unwrap_or(name);
        let name = if name.as_os_str().is_empty() { Path::new(".") } else { name };
        openat2(&self.folder, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT)
    }

    /// The folder of this name, made if it is not there.
    pub(super) fn folder(&self, name: &Path) -> Result<OwnedFd, String> {
        self.make(name, |parent, last| mkdirat(parent, last, Mode::from_raw_mode(0o755)))
    }

    /// The file of this name, made if it is not there.
    pub(super) fn file(&self, name: &Path) -> Result<OwnedFd, String> {
        if let Some(parent) = name.parent() {
            self.folder(parent)?;
        }
        self.make(name, |parent, last| mknodat(parent, last, FileType::RegularFile, Mode::from_raw_mode(0o644), 0))
    }

    fn make(&self, name: &Path, make: impl Fn(&OwnedFd, &OsStr) -> Result<(), Errno>) -> Result<OwnedFd, String> {
        let told = |error| failed(format!("{} cannot be made in the daemon's root", name.display()))(error);
        let (mut at, mut walked) = (self.look(Path::new(".")).map_err(told)?, PathBuf::new());
        for part in name.components() {
            let Component::Normal(part) = part else { continue };
            walked.push(part);
            at = match self.look(&walked) {
                Err(Errno::NOENT) if self.is_on_the_same(&at).map_err(told)? => {
                    make(&at, part).map_err(told)?;
                    self.look(&walked)
                }
                Err(Errno::NOENT) => {
                    return Err(format!(
                        "{} is not in the driver root, and nothing is made there; put it below /run, /var or /tmp",
                        name.display()
                    ));
                }
                found => found,
            }
            .map_err(told)?;
        }
        Ok(at)
    }

    /// Whether something is of this folder's own file system, and not of one that is shown in it.
    fn is_on_the_same(&self, other: &OwnedFd) -> Result<bool, Errno> {
        Ok(fstat(&self.folder)?.st_dev == fstat(other)?.st_dev)
    }

    /// Shows something of outside here, with the mounts in it.
    pub(super) fn bind(&self, from: impl AsFd, what: &Path, at: &Path) -> Result<(), String> {
        let told = failed(format!("{} cannot be shown at {}", what.display(), at.display()));
        let place = if is_folder(&from)? { self.folder(at)? } else { self.file(at)? };
        mount_bind_recursive(path_of(&from), path_of(&place)).map_err(told)
    }

    /// The same for a path of outside.
    pub(super) fn bind_path(&self, from: &Path, at: &Path) -> Result<(), String> {
        let source = open(from, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(format!("{} cannot be opened", from.display())))?;
        self.bind(source, from, at)
    }

    /// Shows one folder and nothing that is mounted in it; it can only be read.
    pub(super) fn bind_alone(&self, from: &Path, at: &Path) -> Result<(), String> {
        let told = |error| failed(format!("{} cannot be shown at {}", from.display(), at.display()))(error);
        mount_bind(from, path_of(&self.folder(at)?)).map_err(told)?;
        let options = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        // Opened anew: now it is the folder that is shown.
        mount_remount(path_of(&self.folder(at)?), options, "").map_err(told)
    }
}

fn is_folder(fd: impl AsFd) -> Result<bool, String> {
    let stat = fstat(fd).map_err(failed("a path cannot be looked at"))?;
    Ok(FileType::from_raw_mode(stat.st_mode).is_dir())
}

/// Whether a program is there, as whoever has `root` for `/` would find it. A link in it may be absolute.
pub(crate) fn is_there(root: &Path, program: &Path) -> bool {
    let Ok(inside) = Inside::open(root) else { return false };
    inside.look(program).is_ok_and(|found| is_folder(found) == Ok(false))
}
