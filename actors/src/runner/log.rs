use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::Stdio;

use heddle_core::imex::own_index;
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};
use rustix::io::Errno;

use super::enter;

/// By which a daemon's log is known in /proc.
pub(super) const LOG_NAME: &str = "nvidia-imex.log";
/// Longest line that is forwarded whole.
const LINE_MAX: usize = 4096;
/// Once so much has been read it is thrown away: the log lives in memory.
const SIZE_MAX: u64 = 1 << 20;
/// Most that is read at a time.
const READ_MAX: u64 = 4 << 20;

/// What a daemon's log tells besides being a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clues {
    /// Its index by its own word.
    pub(super) index: Option<u32>,
    /// The kernel's session is held by another daemon.
    pub(super) session_in_use: bool,
    /// Its last complaint; without one the last that was said at all.
    pub(super) last_words: Option<String>,
    /// Why it did not get into its root.
    pub(super) not_entered: Option<String>,
    /// What its loader said instead of starting it.
    pub(super) not_loaded: Option<String>,
    /// Lines so far that may tell of a connection that was made or lost. Their words are not documented: all count but
    /// those of attempts, of which a member that is away makes one every few seconds.
    pub(super) events: u64,
    complains: bool,
}

/// A daemon's standard output and error: a file without a name, which the runner reads while it is written.
///
/// Unlike a pipe it can be written when its runner has been killed, and the next runner goes on reading; unlike a file of
/// the runner's folder it needs neither the folder nor room there.
pub(super) struct Log {
    /// None where the log of a daemon that was found cannot be had.
    file: Option<File>,
    read: u64,
    line: Vec<u8>,
    pub(super) clues: Clues,
}

impl Log {
    /// A new one, and two ends for a daemon.
    pub(super) fn new() -> io::Result<(Self, [Stdio; 2])> {
        let sealed = memfd_create(LOG_NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL);
        let file = match sealed {
            // Before Linux 6.3 nobody asked whether it could be executed.
            Err(Errno::INVAL) => memfd_create(LOG_NAME, MemfdFlags::CLOEXEC)?,
            sealed => sealed?,
        };
        // So that it can be emptied under its writers.
        fcntl_setfl(&file, OFlags::APPEND)?;
        let file = File::from(file);
        let ends = [file.try_clone()?.into(), file.try_clone()?.into()];
        Ok((Self::of(Some(file)), ends))
    }

    /// That of a daemon whose runner was killed. What it has said so far is read for what it tells, and not logged once
    /// more.
    pub(super) fn of_process(pid: u32) -> Self {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/fd/2")).ok();
        let is_ours = |file: &File| file.metadata().is_ok_and(|data| data.is_file() && data.nlink() == 0);
        let mut log = Self::of(file.filter(is_ours));
        log.read_with(|_| {});
        log
    }

    fn of(file: Option<File>) -> Self {
        Self { file, read: 0, line: Vec::new(), clues: Clues::default() }
    }

    /// Logs what is new; whether there was anything.
    pub(super) fn read(&mut self) -> bool {
        self.read_with(forward)
    }

    fn read_with(&mut self, each: impl Fn(&str)) -> bool {
        let Some(file) = self.file.take() else { return false };
        let begin = self.read;
        let mut bytes = [0; 16 << 10];
        while self.read - begin < READ_MAX {
            match file.read_at(&mut bytes, self.read) {
                Ok(0) | Err(_) => break,
                Ok(count) => {
                    self.read += count as u64;
                    self.take(&bytes[..count], &each);
                }
            }
        }
        let news = self.read > begin;
        if self.read >= SIZE_MAX && file.set_len(0).is_ok() {
            self.read = 0;
        }
        self.file = Some(file);
        news
    }

    fn take(&mut self, mut bytes: &[u8], each: &impl Fn(&str)) {
        while !bytes.is_empty() {
            let room = LINE_MAX - self.line.len();
            let end = bytes.iter().position(|byte| *byte == b'\n').filter(|end| *end <= room);
            let used = end.map_or(bytes.len().min(room), |end| end + 1);
            self.line.extend_from_slice(&bytes[..used]);
            bytes = &bytes[used..];
            if end.is_some() || self.line.len() >= LINE_MAX {
                let line = std::mem::take(&mut self.line);
                let text = String::from_utf8_lossy(&line);
                let text = text.trim_end();
                each(text);
                self.clues.learn(text);
            }
        }
    }
}

impl Clues {
    fn learn(&mut self, text: &str) {
        self.index = own_index(text).or(self.index);
        self.events += u64::from(!text.contains("Attempting connection"));
        self.session_in_use |= text.contains("NV_ERR_IN_USE");
        let cut = |text: &str| Some(text.chars().take(512).collect());
        if let Some(why) = text.strip_prefix(enter::FAILED) {
            self.not_entered = cut(why);
        }
        // The words of the C library's loader: the library is not there, or is not the one that the program was made for.
        if text.contains("error while loading shared libraries") || text.contains("not found (required by") {
            self.not_loaded = cut(text);
        }
        let complains = level(text) <= Level::Error;
        if complains || !self.complains && !text.is_empty() {
            self.complains |= complains;
            self.last_words = cut(without_prefix(text));
        }
    }
}

#[derive(PartialEq, PartialOrd)]
enum Level {
    Error,
    Warning,
    Other,
}

fn level(text: &str) -> Level {
    let has = |word: &str| text.contains(word);
    match () {
        () if has("[ERROR]") || has("[CRITICAL]") || text.starts_with(enter::FAILED) => Level::Error,
        () if has("[WARNING]") => Level::Warning,
        () => Level::Other,
    }
}

/// Logs a line of the daemon with its own level.
fn forward(text: &str) {
    match level(text) {
        Level::Error => tracing::error!(target: "nvidia_imex", "{text}"),
        Level::Warning => tracing::warn!(target: "nvidia_imex", "{text}"),
        Level::Other => tracing::info!(target: "nvidia_imex", "{text}"),
    }
}

/// The line without its `[time] [LEVEL] [tid N]`.
fn without_prefix(text: &str) -> &str {
    let mut rest = text;
    while let Some((_, after)) = rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        rest = after.trim_start();
    }
    rest
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn log() -> (Log, File) {
        let (log, _) = Log::new().unwrap();
        let writer = log.file.as_ref().unwrap().try_clone().unwrap();
        (log, writer)
    }

    #[test]
    fn a_log_tells_index_session_and_complaint() {
        let (mut log, mut writer) = log();
        writer
            .write_all(b"[INFO] Attempting connection for target node 1\nIMEX Log initializing\n[Nov 30 2026 02:29:32] [INFO] [tid 42] Identified this node as I")
            .unwrap();
        assert!(log.read());
        assert_eq!((log.clues.index, log.clues.last_words.as_deref()), (None, Some("IMEX Log initializing")));
        let rest = b"D 3\n[Nov 30 2026 02:29:32] [ERROR] [tid 42] Failed to allocate Imex session: NV_ERR_IN_USE\n\xff\xfe broken\n";
        writer.write_all(rest).unwrap();
        assert!(log.read() && !log.read());
        assert_eq!(log.clues.index, Some(3));
        assert!(log.clues.session_in_use);
        assert_eq!(log.clues.events, 4, "an attempt is none");
        assert_eq!(log.clues.last_words.as_deref(), Some("Failed to allocate Imex session: NV_ERR_IN_USE"));
    }

    #[test]
    fn what_a_loader_and_an_entry_say_is_known_for_what_it_is() {
        let (mut log, mut writer) = log();
        writeln!(writer, "/usr/bin/x: error while loading shared libraries: liby.so: cannot open").unwrap();
        writeln!(writer, "{}no mount namespace", enter::FAILED).unwrap();
        log.read();
        assert!(log.clues.not_loaded.as_ref().unwrap().contains("liby.so"));
        assert_eq!(log.clues.not_entered.as_deref(), Some("no mount namespace"));
    }

    #[test]
    fn it_does_not_grow_without_end_and_loses_nothing_that_was_read() {
        let (mut log, mut writer) = log();
        let length = |log: &Log| log.file.as_ref().unwrap().metadata().unwrap().len();
        for number in 0..40 {
            writer.write_all("x".repeat(LINE_MAX * 16).as_bytes()).unwrap();
            writeln!(writer, "\nlast {number}").unwrap();
            log.read();
            assert!(length(&log) < SIZE_MAX + (LINE_MAX as u64) * 17);
            assert_eq!(log.clues.last_words, Some(format!("last {number}")));
        }
        assert!(length(&log) < 40 * (LINE_MAX as u64) * 16);
    }
}
