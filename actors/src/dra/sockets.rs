//! The agent's Unix sockets: their names, binding, and the removal of what dead agents left behind.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sha2::{Digest, Sha256};
use tokio::net::UnixListener;

/// Longest path of a Unix socket, without the closing zero.
const LONGEST: usize = 107;

/// The socket on which the kubelet calls the driver.
pub(crate) fn service_path(folder: &Path, driver: &str, pod_uid: &str) -> PathBuf {
    if pod_uid.is_empty() {
        return folder.join("dra.sock");
    }
    let names = [
        format!("dra-{pod_uid}.sock"),
        format!("dra-{}.sock", digest(&[pod_uid], 8)),
        format!("{}.sock", digest(&[driver, pod_uid], 8)),
    ];
    first_that_fits(folder, names)
}

/// The socket by which the kubelet finds the driver. The shorter forms are those of the reference implementation
/// (k8s.io/dynamic-resource-allocation 0.37, `kubeletplugin`).
pub(crate) fn registration_path(folder: &Path, driver: &str, pod_uid: &str) -> PathBuf {
    if pod_uid.is_empty() {
        return folder.join(format!("{driver}-reg.sock"));
    }
    let names = [
        format!("{driver}-{pod_uid}-reg.sock"),
        format!("{driver}-{}-reg.sock", digest(&[pod_uid], 8)),
        format!("dra-{}-reg.sock", digest(&[driver, pod_uid], 16)),
    ];
    first_that_fits(folder, names)
}

/// The last one if none fits; binding it says that the folder's path is too long.
fn first_that_fits(folder: &Path, names: [String; 3]) -> PathBuf {
    let paths = names.map(|name| folder.join(name));
    let fitting = paths.iter().find(|path| path.as_os_str().len() <= LONGEST);
    fitting.unwrap_or(&paths[2]).clone()
}

fn digest(parts: &[&str], bytes: usize) -> String {
    base64_url(&Sha256::digest(parts.join("\0"))[..bytes])
}

/// Unpadded.
fn base64_url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = (0..3).fold(0_usize, |word, i| word << 8 | usize::from(chunk.get(i).copied().unwrap_or(0)));
        for i in 0..=chunk.len() {
            text.push(ALPHABET[word >> (18 - 6 * i) & 63].into());
        }
    }
    text
}

/// A socket of ours in the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    /// Whether the socket is still there, and not another one in its place.
    pub(crate) fn stands(&self) -> bool {
        std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == (self.device, self.inode))
    }

    /// Removes it, if it is still ours.
    pub(crate) fn remove(&self) {
        if self.stands() {
            // If this fails the next agent removes it: nobody listens on it any more.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, for this user only, in place of whatever is there. The folder is made if it is missing and
/// `make_folder` says so.
pub(crate) fn listen(path: &Path, make_folder: bool) -> std::io::Result<(UnixListener, Place)> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    if make_folder {
        std::fs::create_dir_all(folder)?;
    }
    // The one thing that a socket cannot be put in place of. Before anything is changed in a folder that is watched.
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    // It appears under its name when its permissions are right. The kubelet takes no notice of a leading dot.
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let hidden = folder.join(format!(".{}", digest(&[name], 6)));
    match std::fs::remove_file(&hidden) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&hidden)?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
    let found = std::fs::symlink_metadata(&hidden)?;
    std::fs::rename(&hidden, path)?;
    Ok((listener, Place { path: path.to_owned(), device: found.dev(), inode: found.ino() }))
}

/// Removes sockets in `folder` that `ours` recognises by name and on which nobody listens. One whose agent lives is
/// never touched: two agents overlap during a rolling update.
pub(crate) fn remove_dead(folder: &Path, ours: impl Fn(&str) -> bool) {
    use std::os::unix::fs::FileTypeExt;
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let recognised = entry.file_name().to_str().is_some_and(&ours);
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if recognised && is_socket && nobody_listens(&entry.path()) {
            match std::fs::remove_file(entry.path()) {
                Ok(()) => tracing::info!("removed the socket of a dead agent: {}", entry.path().display()),
                Err(error) => tracing::warn!("a dead agent's socket {} stays: {error}", entry.path().display()),
            }
        }
    }
}

/// Whether a service socket may be ours, by its name.
pub(crate) fn is_service_name(name: &str) -> bool {
    name.ends_with(".sock")
}

/// Whether a registration socket may be one of `driver`, by its name.
pub(crate) fn is_registration_name(name: &str, driver: &str) -> bool {
    let suffixed = name.ends_with("-reg.sock");
    suffixed && (name.starts_with(&format!("{driver}-")) || name.starts_with("dra-"))
}

fn nobody_listens(path: &Path) -> bool {
    connect(path) == Err(rustix::io::Errno::CONNREFUSED)
}

/// Whether there is a socket on which somebody listens.
pub(crate) fn somebody_listens(path: &Path) -> bool {
    matches!(connect(path), Ok(()) | Err(rustix::io::Errno::AGAIN))
}

/// Not blocking: the queue of an agent that hangs may be full.
fn connect(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "7f2c1b7e-9d14-4c0b-9a76-0d6b0a5e4f11";

    #[test]
    fn case_8_a_path_that_is_too_long_has_a_shorter_form() {
        let driver = "compute-domain.nvidia.com";
        let registry = Path::new("/var/lib/kubelet/plugins_registry");
        let usual = registration_path(registry, driver, UID);
        assert_eq!(usual, registry.join(format!("{driver}-{UID}-reg.sock")));
        for length in 0..90 {
            let folder = PathBuf::from(format!("/{}", "f".repeat(length)));
            for path in [registration_path(&folder, driver, UID), service_path(&folder, driver, UID)] {
                let longest = folder.as_os_str().len() + 36;
                assert!(path.as_os_str().len() <= LONGEST || longest > LONGEST, "{}", path.display());
            }
        }
        let deep = PathBuf::from(format!("/{}", "f".repeat(55)));
        let name = registration_path(&deep, driver, UID).file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("compute-domain.nvidia.com-") && name.len() < 50, "{name}");
        assert!(is_registration_name(&name, driver));
        assert_ne!(service_path(&deep, driver, UID), service_path(&deep, driver, "another"));
    }

    #[test]
    fn base64_is_of_the_url_alphabet_without_padding() {
        for (bytes, text) in
            [(&b""[..], ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xff\xfe\xfd\xfc", "__79_A")]
        {
            assert_eq!(base64_url(bytes), text);
        }
    }

    #[tokio::test]
    async fn case_43_only_the_sockets_of_dead_agents_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, _) = listen(&dir.path().join("dra-dead.sock"), false).unwrap();
        let (_live, _) = listen(&dir.path().join("dra-live.sock"), false).unwrap();
        drop(dead);
        std::fs::write(dir.path().join("file.sock"), "").unwrap();
        remove_dead(dir.path(), is_service_name);
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["dra-live.sock", "file.sock"]);
    }

    #[tokio::test]
    async fn a_socket_is_private_and_knows_whether_it_still_stands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("driver/dra.sock");
        assert!(listen(&path, false).is_err());
        let (_first, old) = listen(&path, true).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(old.stands());
        let (_second, new) = listen(&path, true).unwrap();
        assert!(!old.stands() && new.stands());
        old.remove();
        assert!(new.stands());
        new.remove();
        assert!(!new.stands() && !path.exists());
    }
}
