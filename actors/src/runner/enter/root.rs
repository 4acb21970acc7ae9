use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_move, unmount};
use rustix::process::{chdir, chroot, pivot_root};
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};

use super::Folder;
use super::etc;
use super::mounts::{below, failed, make_read_only};
use super::place::Inside;

/// Made by us rather than taken from the driver root.
const OURS: [&str; 7] = ["dev", "etc", "proc", "run", "sys", "tmp", "var"];
/// Places of people's data and of other file systems, by the Filesystem Hierarchy Standard. No driver is in them, and what
/// is mounted there would be held as long as the daemon lives.
const NOT_THE_DRIVERS: [&str; 7] = ["boot", "home", "lost+found", "media", "mnt", "root", "srv"];

/// Most that the daemon may write beside its state.
const SIZE: &std::ffi::CStr = c"mode=0755,size=64m";

/// A root that consists of the driver root and of what the runner has for the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Root {
    /// `/`, or where the driver's container is.
    pub driver_root: PathBuf,
    /// An empty folder on which the root is built. Nobody else sees what is mounted there.
    pub build: PathBuf,
    /// The runner's folders, each without what is mounted in it if it can only be read.
    pub folders: Vec<Folder>,
    /// What else is seen, at the same path, and can be written if it can be here.
    pub also: Vec<PathBuf>,
    /// Of the host, for a tool that asks its daemon. Names are then those of the host's hosts file, and of the runner's
    /// otherwise.
    pub host: Option<HostFiles>,
    /// Whom to ask for names that are not in the hosts file.
    pub nameservers: Vec<IpAddr>,
}

/// Files of the host, which are seen where the host has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostFiles {
    /// Where its `/` is.
    pub root: PathBuf,
    /// What it calls them. One that is not there is left out.
    pub files: Vec<PathBuf>,
}

impl HostFiles {
    fn show(&self, new: &Inside) -> Result<(), String> {
        let host = Inside::open(&self.root)?;
        for file in self.files.iter().map(PathBuf::as_path).chain([Path::new("/etc/hosts")]) {
            if let Some(found) = host.get(file)? {
                new.bind(found, &self.root.join(file.strip_prefix("/").unwrap_or(file)), file)?;
            }
        }
        Ok(())
    }
}

impl Root {
    /// Builds it and makes it this process's root.
    pub(super) fn enter(&self) -> Result<(), String> {
        own_namespace()?;
        let build = &self.build;
        mount_tmpfs(build)?;
        // What is bound below may contain this very folder, if the driver root is `/`: it is left out then.
        mount_change(build, MountPropagationFlags::UNBINDABLE)
            .map_err(failed("the daemon's root cannot be set apart"))?;
        let (new, driver_root) = (Inside::open(build)?, Inside::open(&self.driver_root)?);
        self.show_driver(&new, &driver_root)?;
        etc::compose(&new, build, &driver_root, self)?;
        for kernels in ["/proc", "/sys", "/dev"] {
            new.bind_path(Path::new(kernels), Path::new(kernels))?;
        }
        self.make_folders(&new)?;
        for folder in &self.folders {
            let show = if folder.read_only { Inside::bind_alone } else { Inside::bind_path };
            show(&new, &folder.from, &folder.at)?;
        }
        if let Some(host) = &self.host {
            host.show(&new)?;
        }
        for path in &self.also {
            new.bind_path(path, path)?;
        }
        self.protect()?;
        mount_change(build, MountPropagationFlags::PRIVATE).map_err(failed("the daemon's root cannot be finished"))?;
        become_root(build)
    }

    /// Every top entry of the driver root as it is there: a link is the same link, a folder is shown.
    fn show_driver(&self, new: &Inside, driver_root: &Inside) -> Result<(), String> {
        let told = |error: std::io::Error| {
            format!("the driver root {} cannot be read: {error}; set another", self.driver_root.display())
        };
        for entry in fs::read_dir(&self.driver_root).map_err(told)? {
            let entry = entry.map_err(told)?;
            let (name, kind) = (entry.file_name(), entry.file_type().map_err(told)?);
            let is = |names: &[&str]| names.iter().any(|one| OsStr::new(one) == name);
            if is(&OURS) || is(&NOT_THE_DRIVERS) {
                continue;
            }
            if kind.is_symlink() {
                let target = fs::read_link(entry.path()).map_err(told)?;
                symlink(target, self.build.join(&name)).map_err(told)?;
            } else if kind.is_dir()
                && let Some(folder) = driver_root.get(Path::new(&name))?
            {
                new.bind(folder, &entry.path(), &Path::new("/").join(&name))?;
            }
        }
        Ok(())
    }

    /// Whether a name in `/etc` leads to a file of the host: then the driver root's of that name is not shown.
    pub(super) fn has_of_the_host(&self, name: &OsStr) -> bool {
        let files = self.host.iter().flat_map(|host| &host.files);
        files.filter_map(|file| file.strip_prefix("/etc").ok()).any(|below| below.iter().next() == Some(name))
    }

    fn make_folders(&self, new: &Inside) -> Result<(), String> {
        let told = |error: std::io::Error| format!("the daemon's root cannot be laid out: {error}");
        for folder in ["/run", "/run/lock", "/var/cache", "/var/lib", "/var/log", "/var/tmp", "/tmp", "/root"] {
            new.folder(Path::new(folder))?;
        }
        for folder in ["tmp", "var/tmp"] {
            fs::set_permissions(self.build.join(folder), Permissions::from_mode(0o1777)).map_err(told)?;
        }
        symlink("../run", self.build.join("var/run")).map_err(told)
    }

    /// Makes read-only what the daemon has no reason to write. A mount that cannot be made so stays as it is: some are
    /// fixed by whoever started the container.
    fn protect(&self) -> Result<(), String> {
        let inside = |path: &Path| self.build.join(path.strip_prefix("/").unwrap_or(path));
        let states = self.folders.iter().filter(|folder| !folder.read_only).map(|folder| &folder.at);
        let kernels = ["/proc", "/sys", "/dev"].map(|path| inside(Path::new(path)));
        let written: Vec<_> = kernels.into_iter().chain(states.chain(&self.also).map(|path| inside(path))).collect();
        for mount in below(&self.build)? {
            if mount.point == self.build || written.iter().any(|path| mount.point.starts_with(path)) {
                continue;
            }
            if let Err(error) = make_read_only(&mount) {
                let point = mount.point.strip_prefix(&self.build).unwrap_or(&mount.point);
                let point = point.display();
                let _ = writeln!(io::stderr(), "[WARNING] the daemon's /{point} cannot be made read-only: {error}");
            }
        }
        Ok(())
    }
}

/// Whether a root can be made here: each kind of call once.
pub(super) fn probe() -> Result<(), String> {
    own_namespace()?;
    let folder = std::env::temp_dir();
    mount_tmpfs(&folder)?;
    Inside::open(&folder)?.bind_path(Path::new("/proc"), Path::new("/proc"))?;
    become_root(&folder)
}

fn own_namespace() -> Result<(), String> {
    #[expect(
        deprecated,
        reason = "deprecated for the file descriptors that another flag would part from other threads"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS).map_err(failed("no mount namespace can be made"))?;
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", flags).map_err(failed("the mount namespace cannot be made private"))
}

fn mount_tmpfs(folder: &Path) -> Result<(), String> {
    let told = failed(format!("no tmpfs can be mounted at {}", folder.display()));
    mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, SIZE).map_err(told)
}

/// The usual call also lets go of everything that was mounted before. It is not to be had where a seccomp profile forbids
/// it (that of container runtimes does) or the old root is the kernel's first; then the new root is laid over the old.
fn become_root(folder: &Path) -> Result<(), String> {
    chdir(folder).map_err(failed(format!("{} cannot be entered", folder.display())))?;
    match pivot_root(".", ".") {
        Ok(()) => unmount(".", UnmountFlags::DETACH).map_err(failed("the old root cannot be let go of"))?,
        Err(Errno::PERM | Errno::INVAL | Errno::NOSYS) => {
            mount_move(".", "/").map_err(failed("the daemon's root cannot be laid over the old one"))?;
            chroot(".").map_err(failed("the daemon's root cannot be entered"))?;
        }
        Err(error) => return Err(failed("the daemon's root cannot take the place of the old one")(error)),
    }
    chdir("/").map_err(failed("the daemon's root cannot be entered"))
}
