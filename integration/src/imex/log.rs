//! The daemon's log, line for line in the style of the real one.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::Write as _;

use jiff::Zoned;

use super::VERSION;
use super::config::Config;

/// Where the daemon writes. A full disk or a closed stderr stops nothing.
pub struct Log {
    level: u8,
    file: RefCell<Option<File>>,
}

impl Log {
    /// Opens the log and writes the opening lines.
    pub fn open(config: &Config) -> Self {
        let file = config.log_file.as_ref().map(|path| {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            OpenOptions::new()
                .create(true)
                .write(true)
                .append(config.log_append)
                .truncate(!config.log_append)
                .open(path)
        });
        let (file, errno) = match file {
            Some(Ok(file)) => (Some(file), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, Some(std::io::Error::from_raw_os_error(2))),
        };
        if let Some(errno) = errno {
            // Said by the real daemon in the good case too, when the name is empty.
            eprintln!("WARNING: failed to open IMEX log file  errno = {errno}");
            eprintln!("INFO: using stderr for IMEX logging");
        }
        let log = Self { level: config.log_level, file: RefCell::new(file) };
        if log.level > 0 {
            log.write(&format!("IMEX Log initializing at: {}\n", Zoned::now().strftime("%-m/%-d/%Y %H:%M:%S.%3f")));
        }
        let path = config.log_file.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        log.info(&format!("IMEX version {VERSION} is running with the following configuration options:"));
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

    /// What SIGHUP asks for. Lines are not held back, so the file has them already.
    pub fn flush(&self) {
        if let Some(file) = &mut *self.file.borrow_mut() {
            let _ = file.flush();
        }
    }

    fn line(&self, level: u8, word: &str, text: &str) {
        if level <= self.level {
            let now = Zoned::now();
            let tid = std::process::id();
            self.write(&format!("[{}] [{word}] [tid {tid}] {text}\n", now.strftime("%b %d %Y %H:%M:%S")));
        }
    }

    fn write(&self, line: &str) {
        let written = match &mut *self.file.borrow_mut() {
            Some(file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        };
        drop(written);
    }
}
