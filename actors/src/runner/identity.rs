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
    if let Err(error) = fill(&folder, identity).and_then(|()| point(dir, &folder)) {
        // It would take the room that is missing, and hold a key that nobody shows.
        let _ = fs::remove_dir_all(&folder);
        return Err(error);
    }
    sweep(dir, Some(&folder))
}

fn fill(folder: &Path, identity: &Identity) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(folder)?;
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
    Ok(())
}

/// Lets the link lead to that folder.
fn point(dir: &Path, folder: &Path) -> io::Result<()> {
    let (fresh, link) = (dir.join(format!("{LINK}.new")), dir.join(LINK));
    clear(&fresh)?;
    if fs::symlink_metadata(&link).is_ok_and(|found| !found.is_symlink()) {
        clear(&link)?;
    }
    symlink(folder.file_name().unwrap_or_default(), &fresh)?;
    fs::rename(&fresh, &link)
}

/// Removes them: nobody serves that domain here any more.
pub(super) fn forget(dir: &Path) -> io::Result<()> {
    clear(&dir.join(LINK))?;
    sweep(dir, None)
}

/// What is known of those that are there.
pub(super) fn note(dir: &Path) -> Option<Note> {
    read(dir).map(|(note, _)| note)
}

/// Those that are there, but for their name; none if anything is missing or is not what was written.
pub(super) fn read(dir: &Path) -> Option<(Note, Identity)> {
    let text = |name: &str| fs::read_to_string(dir.join(LINK).join(name)).ok();
    let note: Note = serde_json::from_str(&text(NOTE)?).ok()?;
    let identity = Identity {
        name: String::new(),
        certificate_pem: text(CERTIFICATE)?,
        key_pem: text(KEY)?,
        authority_pem: text(AUTHORITY)?,
        not_after: note.not_after,
    };
    (identity.hash() == note.hash).then_some((note, identity))
}

/// Removes whatever is there; where nothing is, also for want of a folder, there is nothing to do.
fn clear(path: &Path) -> io::Result<()> {
    let removed = fs::symlink_metadata(path)
        .and_then(|found| if found.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) });
    removed.or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Removes every folder but one.
fn sweep(dir: &Path, kept: Option<&Path>) -> io::Result<()> {
    let prefix = format!("{LINK}.");
    let entries = match fs::read_dir(dir) {
        Err(error) if is_absent(&error) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
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
        forget(&dir.path().join("gone")).unwrap();
    }

    fn identity(text: &str) -> Identity {
        Identity {
            name: "d.x".into(),
            certificate_pem: text.into(),
            key_pem: text.into(),
            authority_pem: text.into(),
            not_after: 1,
        }
    }

    #[test]
    fn what_is_not_whole_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| dir.path().join(LINK).join(name);
        let damages: [fn(&Path); 2] = [|path| fs::remove_file(path).unwrap(), |path| fs::write(path, "x").unwrap()];
        for damage in damages {
            for name in [CERTIFICATE, KEY, AUTHORITY, NOTE] {
                write(dir.path(), &identity("a")).unwrap();
                assert!(note(dir.path()).is_some());
                damage(&of(name));
                assert_eq!(note(dir.path()), None, "{name}");
            }
        }
        write(dir.path(), &identity("a")).unwrap();
        assert_eq!(read(dir.path()).unwrap().1, Identity { name: String::new(), ..identity("a") });
    }

    #[test]
    fn what_stands_in_the_way_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("identity.new/x")).unwrap();
        fs::create_dir_all(dir.path().join("identity/x")).unwrap();
        write(dir.path(), &identity("a")).unwrap();
        assert!(note(dir.path()).is_some());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the link and one folder");
    }
}
