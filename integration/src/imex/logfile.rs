//! The daemon's log file, which does not grow without bound.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A file of bounded size, and the full ones before it: `<name>.1` is the latest of them. How NVIDIA's daemon names them is
/// not documented.
pub struct LogFile {
    path: PathBuf,
    /// None once it is full and nothing may be rotated.
    file: Option<File>,
    size: u64,
    limit: u64,
    rotations: u32,
}

impl LogFile {
    /// Opens or makes it.
    pub fn open(path: &Path, append: bool, limit: u64, rotations: u32) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).write(true).append(append).truncate(!append).open(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file: Some(file), size, limit, rotations })
    }

    /// Writes a line, into a new file if it does not fit into this one.
    pub fn write(&mut self, line: &str) -> io::Result<()> {
        let length = line.len() as u64;
        if self.size > 0 && self.size + length > self.limit {
            self.file = None;
            if self.rotations > 0 {
                self.file = Some(self.rotate()?);
                self.size = 0;
            }
        }
        if let Some(file) = &mut self.file {
            file.write_all(line.as_bytes())?;
            self.size += length;
        }
        Ok(())
    }

    fn rotate(&self) -> io::Result<File> {
        for number in (1..self.rotations).rev() {
            let older = self.numbered(number);
            if older.exists() {
                std::fs::rename(older, self.numbered(number + 1))?;
            }
        }
        std::fs::rename(&self.path, self.numbered(1))?;
        File::create(&self.path)
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(rotations: u32) -> (tempfile::TempDir, Vec<Option<String>>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log/imex.log");
        let mut log = LogFile::open(&path, true, 8, rotations).unwrap();
        for number in 0..8 {
            log.write(&format!("{number}..\n")).unwrap();
        }
        let read = |end: &str| std::fs::read_to_string(format!("{}{end}", path.display())).ok();
        let texts = ["", ".1", ".2", ".3"].map(read).to_vec();
        (folder, texts)
    }

    #[test]
    fn full_files_are_kept_up_to_a_number() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(filled(2).1, [text("6..\n7..\n"), text("4..\n5..\n"), text("2..\n3..\n"), None]);
        assert_eq!(filled(0).1, [text("0..\n1..\n"), None, None, None]);
    }

    #[test]
    fn a_file_is_gone_on_with_or_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imex.log");
        let text = |append| {
            LogFile::open(&path, append, 100, 0).unwrap().write("x").unwrap();
            std::fs::read_to_string(&path).unwrap()
        };
        assert_eq!([text(true), text(true), text(false)], ["x", "xx", "x"]);
    }
}
