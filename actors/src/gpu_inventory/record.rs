//! The XIDs of unhealthy GPUs on disk: NVML tells of each once, and an agent that starts anew has not heard it.

use std::io::{self, Write as _};
use std::path::Path;

use heddle_core::inventory::XidRecord;

/// What was kept; nothing, if there is no file, or one that cannot be read.
pub(super) fn read(path: &Path) -> XidRecord {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            tracing::warn!("{} cannot be read, GPUs count as healthy until their next XID: {error}", path.display());
            XidRecord::default()
        }),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(
                    "{} cannot be read, GPUs count as healthy until their next XID: {error}",
                    path.display()
                );
            }
            XidRecord::default()
        }
    }
}

/// Puts it in place of the last one.
pub(super) fn write(path: &Path, record: &XidRecord) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    // Of one boot only, so a power cut may take it; a half-written file is read by nobody.
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_cannot_be_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xids.json");
        assert_eq!(read(&path), XidRecord::default());
        let mut record = XidRecord::default().in_boot("b");
        record.strike("GPU-1", 79);
        write(&path, &record).unwrap();
        assert_eq!(read(&path), record);
        std::fs::write(&path, "{").unwrap();
        assert_eq!(read(&path), XidRecord::default());
    }
}
