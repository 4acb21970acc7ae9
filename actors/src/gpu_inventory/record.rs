//! The XIDs of unhealthy GPUs on disk: NVML tells of each once, and an agent that starts anew has not heard it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use heddle_core::fault::{Fault, reason};
use heddle_core::inventory::XidRecord;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::dra::{Durability, Folder, Found};

/// The record with a checksum over it: a flipped digit would be another XID.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    sha256: String,
    record: XidRecord,
}

/// What was kept; nothing, if there is no file, or one that is not as it was written. That goes to quarantine.
pub(super) fn read(path: &Path) -> XidRecord {
    let (folder, name) = place(path);
    let found = match folder.read(name) {
        Ok(None) => return XidRecord::default(),
        Ok(Some(Found::File(bytes))) => decode(&bytes).map_err(|error| error.to_string()),
        Ok(Some(Found::Other(what))) => Err(what),
        Err(fault) => Err(fault.message),
    };
    found.unwrap_or_else(|why| {
        tracing::warn!("{} cannot be read, GPUs count as healthy until their next XID: {why}", path.display());
        // Only for a person to look at.
        let _ = folder.move_to(name, &in_this_boot(folder.path().join("quarantine")), name);
        XidRecord::default()
    })
}

/// Puts it in place of the last one. Of one boot only, so a power cut may take it.
pub(super) fn write(path: &Path, record: &XidRecord) -> Result<(), Fault> {
    let (folder, name) = place(path);
    let encoded = encode(record).map_err(|error| Fault::retryable(reason::NODE_IO, error))?;
    folder.write(name, &encoded)
}

fn place(path: &Path) -> (Folder, &str) {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    (in_this_boot(path.parent().unwrap_or(Path::new("/"))), name)
}

fn in_this_boot(path: impl Into<PathBuf>) -> Folder {
    Folder::new(path, Durability::ThisBoot, 0o700)
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
