use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, fstat, open, stat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::process::{chdir, chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::super::child::start_time;
use super::Folder;
use super::mounts::{below, failed, make_read_only};

/// A process with a root of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Join {
    /// Its number.
    pub pid: u32,
    /// When it was started, in clock ticks since boot: the number may be another's by now.
    pub start_time: u64,
}

impl Join {
    /// Takes the process's root for this one's. No namespace is changed: a root is enough to find programs, libraries,
    /// names and sockets by.
    pub(super) fn enter(&self) -> Result<(), String> {
        settle(&self.root()?)
    }

    /// Puts folders of this process's root in the place of those that the other sees.
    pub(super) fn renew(&self, folders: &[Folder]) -> Result<(), String> {
        let clone = |folder: &Folder| {
            let told = failed(format!("{} cannot be taken along", folder.from.display()));
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            open_tree(CWD, &folder.from, flags).map_err(told)
        };
        let clones = folders.iter().map(clone).collect::<Result<Vec<_>, _>>()?;
        let (root, namespace) = (self.root()?, self.open("ns/mnt", OFlags::RDONLY)?);
        let told = failed("the daemon's mount namespace cannot be entered");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)).map_err(told)?;
        settle(&root)?;
        for (folder, clone) in folders.iter().zip(clones) {
            let told = |error| failed(format!("{} cannot be shown to the daemon anew", folder.at.display()))(error);
            // Nobody is to find the old one below the new.
            unmount(&folder.at, UnmountFlags::DETACH).map_err(told)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(&clone, "", CWD, &folder.at, flags).map_err(told)?;
            if folder.read_only {
                below(&folder.at)?.iter().try_for_each(make_read_only).map_err(told)?;
            }
        }
        Ok(())
    }

    /// Its root, if it has made one yet.
    fn root(&self) -> Result<OwnedFd, String> {
        let root = self.open("root", OFlags::PATH | OFlags::DIRECTORY)?;
        let told = failed("the daemon's root cannot be looked at");
        let (own, other) = stat("/").and_then(|own| Ok((own, fstat(&root)?))).map_err(told)?;
        if (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino) {
            return Err("the daemon has not entered its root yet".into());
        }
        Ok(root)
    }

    fn open(&self, what: &str, flags: OFlags) -> Result<OwnedFd, String> {
        let path: PathBuf = Path::new("/proc").join(self.pid.to_string()).join(what);
        let opened = open(&path, flags | OFlags::CLOEXEC, Mode::empty())
            .map_err(failed(format!("the daemon's {} cannot be opened", path.display())))?;
        // Looked at after it was opened: until then the number may have become another's.
        match start_time(self.pid) == Some(self.start_time) {
            true => Ok(opened),
            false => Err(format!("nvidia-imex of pid {} has ended", self.pid)),
        }
    }
}

fn settle(root: &OwnedFd) -> Result<(), String> {
    let told = |error| failed("the daemon's root cannot be entered")(error);
    fchdir(root).map_err(told)?;
    chroot(".").map_err(told)?;
    chdir("/").map_err(told)
}
