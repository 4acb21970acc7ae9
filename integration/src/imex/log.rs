//! The daemon's log, line for line in the style of the real one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Write as _;
use std::path::PathBuf;

use jiff::Zoned;

use super::config::Config;
use super::logfile::LogFile;

/// Lines that are held back for SIGHUP. NVIDIA says nothing of the number.
const VERBOSE: usize = 1000;

/// Where the daemon writes. A full disk or a closed stderr stops nothing.
pub struct Log {
    level: u8,
    file: RefCell<Option<LogFile>>,
    /// What is only written when it is asked for.
    verbose: RefCell<VecDeque<String>>,
}

impl Log {
    /// Opens the log and writes the opening lines.
    pub fn open(config: &Config, version: &str) -> Self {
        let limit = config.log_max_megabytes.saturating_mul(1 << 20);
        let open = |path: &PathBuf| LogFile::open(path, config.log_append, limit, config.log_rotations);
        let file = match config.log_file.as_ref().map(open) {
            Some(Ok(file)) => Some(file),
            failed => {
                let none = || std::io::Error::from_raw_os_error(2);
                let errno = failed.and_then(Result::err).unwrap_or_else(none).raw_os_error().unwrap_or_default();
                // Said by the real daemon in the good case too, when the name is empty.
                eprintln!("WARNING: failed to open IMEX log file  errno = {errno}");
                eprintln!("INFO: using stderr for IMEX logging");
                eprintln!("WARNING: failed to chmod IMEX log file  errno = {errno}");
                None
            }
        };
        let log = Self { level: config.log_level, file: RefCell::new(file), verbose: RefCell::default() };
        if log.level > 0 {
            log.write(&format!("IMEX Log initializing at: {}\n", Zoned::now().strftime("%-m/%-d/%Y %H:%M:%S.%3f")));
        }
        let path = config.log_file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        log.info(&format!("IMEX version {version} is running with the following configuration options:"));
        log.info(&format!("Logging level = {}", config.log_level));
        log.info(&format!("Logging file name/path = {path}"));
        log.info(&format!("Append to log file = {}", u8::from(config.log_append)));
        log.info(&format!("Max Log file size = {} (MBs)", config.log_max_megabytes));
        log.info(&format!("Use Syslog file = {}", u8::from(config.log_syslog)));
        log.info(&format!("Authentication and Encryption enabled = {}", u8::from(config.encryption)));
        for warning in &config.warnings {
            log.warning(warning);
        }
        log
    }

    /// Something to know.
    pub fn info(&self, text: &str) {
        self.line(4, "INFO", text);
    }

    /// Something odd.
    pub fn warning(&self, text: &str) {
        self.line(3, "WARNING", text);
    }

    /// Something wrong.
    pub fn error(&self, text: &str) {
        self.line(2, "ERROR", text);
    }

    /// Something that matters only to who looks for a fault: written at SIGHUP and at the end.
    pub fn verbose(&self, text: &str) {
        let mut verbose = self.verbose.borrow_mut();
        if verbose.len() == VERBOSE {
            verbose.pop_front();
        }
        verbose.push_back(formatted("VERBOSE", text));
    }

    /// Writes what has been held back.
    pub fn flush(&self) {
        let held = std::mem::take(&mut *self.verbose.borrow_mut());
        if self.level > 0 {
            held.iter().for_each(|line| self.write(line));
        }
    }

    fn line(&self, level: u8, word: &str, text: &str) {
        if level <= self.level {
            self.write(&formatted(word, text));
        }
    }

    fn write(&self, line: &str) {
        let written = match &mut *self.file.borrow_mut() {
            Some(file) => file.write(line),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
        drop(written);
    }
}

fn formatted(word: &str, text: &str) -> String {
    let now = Zoned::now();
    format!("[{}] [{word}] [tid {}] {text}\n", now.strftime("%b %d %Y %H:%M:%S"), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::imex::os::Os;

    #[test]
    fn what_is_verbose_is_written_when_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imex.log");
        let mut config = Config::defaults(&Os::at(folder.path()));
        config.log_file = Some(path.clone());
        config.log_level = 3;
        let log = Log::open(&config, "1.2.3");
        log.info("not at this level");
        log.verbose("held back");
        log.warning("odd");
        let text = || std::fs::read_to_string(&path).unwrap();
        assert!(
            text().contains("[WARNING]") && !text().contains("level") && !text().contains("held back"),
            "{}",
            text()
        );
        log.flush();
        assert!(text().contains("] [VERBOSE] [tid ") && text().contains("held back"), "{}", text());
    }
}
