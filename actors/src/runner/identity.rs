use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use heddle_core::imex::{Identity, IdentityFiles};
use serde::{Deserialize, Serialize};

/// The link that the daemon's configuration goes by.
const LINK: &str = "identity";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";
/// What the runner itself remembers of it.
const NOTE: &str = "note.json";

/// What a runner that is started anew needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Note {
    pub(super) hash: String,
    pub(super) not_after: i64,
}

/// The daemon's paths.
pub(super) fn files(dir: &Path) -> IdentityFiles {
    let path = |name: &str| dir.join(LINK).join(name).display().to_string();
    IdentityFiles { certificate: path(CERTIFICATE), key: path(KEY), authority: path(AUTHORITY) }
}

/// Writes them in place of what was there, all at once: a daemon that reads meanwhile gets key and certificate of one
/// another, but for the instant in which the link changes, and reads again at its signal.
pub(super) fn write(dir: &Path, identity: &Identity) -> io::Result<()> {
    let folder = dir.join(format!("{LINK}.{:016x}", fastrand::u64(..)));
    fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let note = Note { hash: identity.hash(), not_after: identity.not_after };
    let files: [(&str, &[u8]); 4] = [
        (CERTIFICATE, identity.certificate_pem.as_bytes()),
        (KEY, identity.key_pem.as_bytes()),
        (AUTHORITY, identity.authority_pem.as_bytes()),
        (NOTE, &serde_json::to_vec(&note)?),
    ];
    for (name, bytes) in files {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(folder.join(name))?.write_all(bytes)?;
    }
    let fresh = dir.join(format!("{LINK}.new"));
    remove(&fresh)?;
    symlink(folder.file_name().unwrap_or_default(), &fresh)?;
    fs::rename(&fresh, dir.join(LINK))?;
    sweep(dir, Some(&folder))
}

/// Removes them: nobody serves that domain here any more.
pub(super) fn forget(dir: &Path) -> io::Result<()> {
    remove(&dir.join(LINK))?;
    sweep(dir, None)
}

/// What is known of those that are there.
pub(super) fn note(dir: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(dir.join(LINK).join(NOTE)).ok()?).ok()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes every folder but one.
fn sweep(dir: &Path, kept: Option<&Path>) -> io::Result<()> {
    let prefix = format!("{LINK}.");
    for entry in fs::read_dir(dir)? {
        let path: PathBuf = entry?.path();
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
        if ours && Some(path.as_path()) != kept && path.is_dir() {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_takes_the_place_of_the_other_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(note(dir.path()), None);
        for life in [100, 200] {
            let text = format!("-----BEGIN {life}");
            let identity = Identity {
                name: "d.x".into(),
                certificate_pem: text.clone(),
                key_pem: text.clone(),
                authority_pem: text.clone(),
                not_after: life,
            };
            write(dir.path(), &identity).unwrap();
            assert_eq!(note(dir.path()), Some(Note { hash: identity.hash(), not_after: life }));
            let files = files(dir.path());
            for path in [&files.certificate, &files.key, &files.authority] {
                assert_eq!(fs::read_to_string(path).unwrap(), text);
                assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
            }
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the link and one folder");
        }
        forget(dir.path()).unwrap();
        forget(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
