//! The XIDs of unhealthy GPUs on disk: NVML tells of each once, and an agent that starts anew has not heard it.

use std::io::{self, Write as _};
use std::path::Path;

use heddle_core::inventory::XidRecord;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The record with a checksum over it: a flipped digit would be another XID.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    sha256: String,
    record: XidRecord,
}

/// What was kept; nothing, if there is no file, or one that is not as it was written. That goes to quarantine.
pub(super) fn read(path: &Path) -> XidRecord {
    let found = match std::fs::read(path) {
        Ok(bytes) => decode(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return XidRecord::default(),
        Err(error) => Err(error),
    };
    found.unwrap_or_else(|error| {
        tracing::warn!("{} cannot be read, GPUs count as healthy until their next XID: {error}", path.display());
        if let (Some(folder), Some(name)) = (path.parent(), path.file_name()) {
            // Only for a person to look at.
            let _ = std::fs::rename(path, folder.join("quarantine").join(name));
        }
        XidRecord::default()
    })
}

/// Puts it in place of the last one.
pub(super) fn write(path: &Path, record: &XidRecord) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = std::fs::File::create(&temporary)?;
    file.write_all(&encode(record)?)?;
    // Of one boot only, so a power cut may take it; a half-written file is read by nobody.
    std::fs::rename(&temporary, path)
}

fn encode(record: &XidRecord) -> io::Result<Vec<u8>> {
    let sha256 = Sha256::digest(serde_json::to_vec(record)?).iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(serde_json::to_vec(&File { sha256, record: record.clone() })?)
}

fn decode(bytes: &[u8]) -> io::Result<XidRecord> {
    let file: File = serde_json::from_slice(bytes)?;
    match encode(&file.record)? == bytes {
        true => Ok(file.record),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not as it was written")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(path: &Path) -> XidRecord {
        let mut record = XidRecord::default().in_boot("b");
        record.see_driver("580.65.06");
        record.strike("GPU-1", 79);
        write(path, &record).unwrap();
        record
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xids.json");
        assert_eq!(read(&path), XidRecord::default());
        assert_eq!(written(&path), read(&path));
    }

    #[test]
    fn every_damaged_byte_is_found_and_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("xids.json"), folder.path().join("quarantine/xids.json"));
        std::fs::create_dir(folder.path().join("quarantine")).unwrap();
        written(&path);
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(decode(&bad).is_err(), "bit {bit} of byte {at}");
            }
            std::fs::write(&path, &good[..at]).unwrap();
            assert_eq!(read(&path), XidRecord::default(), "cut at {at}");
            assert!(!path.exists());
            std::fs::remove_file(&aside).unwrap();
        }
    }
}
