//! One simulated OS instance: a folder that stands for a node's `/`.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};

/// Environment variable with the folder.
pub const OS_ENV: &str = "HEDDLE_FAKE_OS";

/// A node's `/` as far as IMEX looks at it: `etc/hosts`, `net/addresses` (the local interfaces, one a line),
/// `proc/devices`, and `run/`.
#[derive(Clone, Debug)]
pub struct Os {
    root: PathBuf,
}

impl Os {
    /// The one that the environment names.
    pub fn from_env() -> Result<Self> {
        let Some(root) = std::env::var_os(OS_ENV).filter(|root| *root != OsString::new()) else {
            bail!("{OS_ENV} is not set: this is a fake for tests; let it name the folder of the simulated node");
        };
        let root = PathBuf::from(root);
        if !root.is_dir() {
            bail!("{OS_ENV} names {}, which is not a folder", root.display());
        }
        Ok(Self::at(root))
    }

    /// The one in this folder.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A file of it.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Where a CUDA process asks the kernel about fabric memory.
    pub fn kernel_socket(&self) -> PathBuf {
        self.path("run/imex-kernel.sock")
    }

    /// Addresses of the local interfaces.
    pub fn addresses(&self) -> Result<Vec<IpAddr>> {
        let path = self.path("net/addresses");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(|line| line.parse().with_context(|| format!("{}: {line:?}", path.display()))).collect()
    }

    /// The addresses of a name by `etc/hosts`, in its order, or of an address by itself. There is no DNS.
    pub fn resolve(&self, name: &str) -> Vec<IpAddr> {
        if let Ok(address) = name.parse() {
            return vec![address];
        }
        let hosts = std::fs::read_to_string(self.path("etc/hosts")).unwrap_or_default();
        let address = |line: &str| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address = words.next()?.parse().ok()?;
            words.any(|word| word == name).then_some(address)
        };
        hosts.lines().filter_map(address).collect()
    }

    /// Version of the loaded kernel driver, by `proc/driver/nvidia/version`; none without that file. Its first line has the
    /// version as the one word of figures and points.
    pub fn driver_version(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.path("proc/driver/nvidia/version")).ok()?;
        let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
        text.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
    }

    /// Opens the kernel's one IMEX session; it ends when the lock is dropped or its process dies.
    pub fn open_session(&self) -> io::Result<Session> {
        let path = self.path("run/imex-session");
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let lock = File::create(path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Session { _lock: lock })
    }
}

/// The kernel's one IMEX session.
#[derive(Debug)]
pub struct Session {
    _lock: File,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os() -> (tempfile::TempDir, Os) {
        let folder = tempfile::tempdir().unwrap();
        for sub in ["etc", "net"] {
            std::fs::create_dir(folder.path().join(sub)).unwrap();
        }
        let os = Os::at(folder.path());
        (folder, os)
    }

    #[test]
    fn names_resolve_by_the_hosts_file_alone() {
        let (_folder, os) = os();
        let hosts = "# nodes\n127.0.0.1 localhost\n127.10.0.2\theddle-00 alias # heddle-02\nfd00::3 heddle-00\n";
        std::fs::write(os.path("etc/hosts"), hosts).unwrap();
        let addresses = |text: &[&str]| text.iter().map(|one| one.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(os.resolve("heddle-00"), addresses(&["127.10.0.2", "fd00::3"]));
        assert_eq!(os.resolve("alias"), addresses(&["127.10.0.2"]));
        assert_eq!(os.resolve("heddle-02"), addresses(&[]));
        assert_eq!(os.resolve("127.10.0.9"), addresses(&["127.10.0.9"]));
    }

    #[test]
    fn the_driver_says_its_version() {
        let (_folder, os) = os();
        assert_eq!(os.driver_version(), None);
        std::fs::create_dir_all(os.path("proc/driver/nvidia")).unwrap();
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.71.05  Release Build  (root@x)\n\
                    GCC version:  gcc version 12.3.0\n";
        std::fs::write(os.path("proc/driver/nvidia/version"), text).unwrap();
        assert_eq!(os.driver_version().as_deref(), Some("595.71.05"));
    }

    #[test]
    fn one_session_at_a_time() {
        let (_folder, os) = os();
        let session = os.open_session().unwrap();
        assert!(os.open_session().is_err());
        drop(session);
        os.open_session().unwrap();
    }
}
