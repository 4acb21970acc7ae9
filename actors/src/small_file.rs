//! Files that are small when they are what they should be: of the kernel, the host's configuration, our own.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// What is larger is not what it should be.
const MAX: u64 = 1 << 20;

/// Opens a regular file for reading. Whatever else is in its place is not waited for: opening a pipe never ends.
///
/// # Errors
/// It is not there, cannot be opened, or is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    regular(OpenOptions::new().read(true).custom_flags(flags).open(path)?)
}

/// The file, if it is a regular one.
///
/// # Errors
/// It is something else.
pub fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
}

/// Its text.
///
/// # Errors
/// It cannot be read, is larger than 1 MiB, or no UTF-8.
pub fn text(file: File) -> io::Result<String> {
    let mut text = String::new();
    // Files of the kernel say that they are empty; only reading tells.
    file.take(MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX { Err(io::Error::other("it is larger than 1 MiB")) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn a_file_of_the_kernel_has_a_text_whatever_size_it_says() {
        let file = open(Path::new("/proc/self/status")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert!(text(file).unwrap().contains("Name:"));
    }

    #[test]
    fn what_is_no_file_or_too_large_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, large) = (folder.path().join("pipe"), folder.path().join("large"));
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for none in [&pipe, folder.path(), Path::new("/dev/zero")] {
            assert!(open(none).unwrap_err().to_string().contains("no file"), "{}", none.display());
        }
        let file = File::create_new(&large).unwrap();
        file.set_len(1 << 20).unwrap();
        assert!(text(open(&large).unwrap()).is_ok());
        file.set_len(1 << 40).unwrap();
        assert!(text(open(&large).unwrap()).unwrap_err().to_string().contains("1 MiB"));
    }
}
