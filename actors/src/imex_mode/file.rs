use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use heddle_core::api::ImexMode;
use heddle_core::fault::{Fault, reason};

use crate::small_file;

/// Its name in the state folder.
pub(super) const NAME: &str = "imex-mode";

/// What is remembered; none if nothing is.
pub(super) fn read(file: &Path) -> io::Result<Option<ImexMode>> {
    match small_file::open(file).and_then(small_file::text) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Remembers, so that it outlives a crash of the node.
pub(super) fn write(state_dir: &Path, mode: ImexMode) -> Result<(), Fault> {
    let (file, temporary) = (state_dir.join(NAME), state_dir.join(format!("{NAME}.new")));
    let written = || {
        fs::create_dir_all(state_dir)?;
        let mut options = OpenOptions::new();
        let mut new = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        writeln!(new, "{mode}")?;
        new.sync_all()?;
        fs::rename(&temporary, &file)?;
        File::open(state_dir)?.sync_all()
    };
    written().map_err(|error: io::Error| {
        Fault::retryable(reason::NODE_IO, format!("{} cannot be written: {error}", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_read_and_what_is_damaged_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(NAME);
        assert_eq!(read(&file).unwrap(), None);
        for mode in [ImexMode::HostManaged, ImexMode::DriverManaged] {
            write(dir.path(), mode).unwrap();
            assert_eq!(read(&file).unwrap(), Some(mode));
        }
        fs::write(&file, "who knows").unwrap();
        assert!(read(&file).is_err());
    }
}
