use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use heddle_core::imex::{DomainConfig, own_index};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;

/// Longest line that is forwarded whole.
const LINE_MAX: u64 = 4096;

/// Pause between looks at a daemon that is no child, of whose end nobody tells us.
const ORPHAN_POLL: Duration = Duration::from_millis(100);

/// What a daemon's log tells besides being a log.
#[derive(Clone, Debug, Default)]
pub(super) struct Clues {
    /// Its index by its own word.
    pub(super) index: Option<u32>,
    /// The kernel's session is held by another daemon.
    pub(super) session_in_use: bool,
    /// Its last complaint.
    pub(super) complaint: Option<String>,
    /// Lines so far that may tell of a connection that was made or lost. Their words are not documented: all count but
    /// those of attempts, of which a member that is away makes one every few seconds.
    pub(super) events: u64,
}

/// What is kept of a running daemon, for the case that its runner is killed and it is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) pid: u32,
    /// Tells it from a later process of the same number: clock ticks since boot.
    pub(super) start_time: u64,
    /// What it was started with.
    pub(super) config: DomainConfig,
    /// Its index by its own word.
    pub(super) index: Option<u32>,
}

/// How a daemon is known.
enum Process {
    Child(Child),
    /// Started by a runner that was killed.
    Orphan(OwnedFd, u64),
}

/// A running daemon.
pub(super) struct Daemon {
    process: Process,
    pub(super) pid: u32,
    pub(super) started: Instant,
    pub(super) clues: watch::Receiver<Clues>,
}

impl Daemon {
    /// Starts `nvidia-imex` in the foreground. Dropping the value leaves the process alone: it must not end because
    /// something of ours fails.
    pub(super) fn start(program: &Path, config: &Path) -> std::io::Result<Self> {
        let mut child = Command::new(program)
            .arg("-c")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What is typed at a terminal is for the runner, which ends the daemon in good order.
            .process_group(0)
            .kill_on_drop(false)
            .spawn()?;
        let (told, clues) = watch::channel(Clues::default());
        if let Some(out) = child.stdout.take() {
            tokio::spawn(forward(out, told.clone()));
        }
        if let Some(err) = child.stderr.take() {
            tokio::spawn(forward(err, told));
        }
        let pid = child.id().unwrap_or_default();
        Ok(Self { process: Process::Child(child), pid, started: Instant::now(), clues })
    }

    /// The daemon of a runner that was killed, if it lives.
    pub(super) fn adopt(record: &Record) -> Option<Self> {
        let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw)?;
        // Opened before it is looked at: from then on the number cannot be another's.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        if start_time(record.pid)? != record.start_time {
            return None;
        }
        let process = Process::Orphan(process, record.start_time);
        // Its log ended with its runner.
        let (_, clues) = watch::channel(Clues { index: record.index, ..Default::default() });
        Some(Self { process, pid: record.pid, started: Instant::now(), clues })
    }

    /// Waits for its end, and tells of it.
    pub(super) async fn ended(&mut self) -> String {
        match &mut self.process {
            Process::Child(child) => {
                child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string())
            }
            Process::Orphan(_, started) => {
                while start_time(self.pid) == Some(*started) {
                    tokio::time::sleep(ORPHAN_POLL).await;
                }
                "started by an earlier runner".into()
            }
        }
    }

    /// Makes it read its names again.
    pub(super) fn signal(&self) {
        self.send(Signal::USR1);
    }

    /// Ends it: asked first, then without asking.
    pub(super) async fn stop(mut self, limit: Duration) {
        self.send(Signal::TERM);
        if tokio::time::timeout(limit, self.ended()).await.is_ok() {
            return;
        }
        tracing::warn!(pid = self.pid, "nvidia-imex has not ended {limit:?} after SIGTERM and is killed");
        self.send(Signal::KILL);
        self.ended().await;
    }

    fn send(&self, signal: Signal) {
        let sent = match &self.process {
            Process::Child(child) => {
                // `id` is none once the process was waited for; then its number may be another's.
                let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
                pid.map_or(Ok(()), |pid| kill_process(pid, signal))
            }
            Process::Orphan(process, _) => pidfd_send_signal(process, signal),
        };
        if let Err(error) = sent {
            tracing::warn!(pid = self.pid, "nvidia-imex cannot be signalled: {error}");
        }
    }
}

/// When a process was started; none if it has ended.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything; the state follows it, and the start time is field 22.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    fields.next().filter(|state| *state != "Z")?;
    fields.nth(18)?.parse().ok()
}

/// Forwards a log line by line until it ends. It never stops reading: a full pipe would block the daemon.
async fn forward(stream: impl AsyncRead + Unpin, told: watch::Sender<Clues>) {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut stream).take(LINE_MAX).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        let complains = log(text);
        told.send_modify(|clues| {
            clues.index = own_index(text).or(clues.index);
            clues.events += u64::from(!text.contains("Attempting connection"));
            clues.session_in_use |= text.contains("NV_ERR_IN_USE");
            if complains {
                clues.complaint = Some(without_prefix(text).chars().take(256).collect());
            }
        });
    }
}

/// Logs a line of the daemon with its own level; whether it is a complaint.
fn log(text: &str) -> bool {
    if text.contains("[ERROR]") || text.contains("[CRITICAL]") {
        tracing::error!(target: "nvidia_imex", "{text}");
        true
    } else if text.contains("[WARNING]") {
        tracing::warn!(target: "nvidia_imex", "{text}");
        false
    } else {
        tracing::info!(target: "nvidia_imex", "{text}");
        false
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
    use super::*;

    #[tokio::test]
    async fn a_log_tells_index_session_and_complaint() {
        let log: &[u8] =
            b"IMEX Log initializing\n[Nov 30 2026 02:29:31] [INFO] [tid 42] Attempting connection for target node 1\n\
            [Nov 30 2026 02:29:32] [INFO] [tid 42] Identified this node as ID 3\n\
            [Nov 30 2026 02:29:32] [ERROR] [tid 42] Failed to allocate Imex session: NV_ERR_IN_USE\n\xff\xfe broken\n";
        let (told, clues) = watch::channel(Clues::default());
        forward(log, told).await;
        let clues = clues.borrow().clone();
        assert_eq!(clues.index, Some(3));
        assert!(clues.session_in_use);
        assert_eq!(clues.events, 4);
        assert_eq!(clues.complaint.as_deref(), Some("Failed to allocate Imex session: NV_ERR_IN_USE"));
    }
}
