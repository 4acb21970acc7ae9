use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::Duration;

use heddle_core::imex::DomainConfig;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::Isolation;
use super::enter::Join;
use super::log::Log;

/// Pause between looks at a daemon that is no child, of whose end nobody tells us.
const ORPHAN_POLL: Duration = Duration::from_millis(100);

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
    /// What it sees, by which it is asked; of a runner of before this was kept that is not known.
    #[serde(default)]
    pub(super) isolation: Option<Isolation>,
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
    start_time: u64,
    pub(super) started: Instant,
    pub(super) log: Log,
}

impl Daemon {
    /// Starts `nvidia-imex` in the foreground. Dropping the value leaves the process alone: it must not end because
    /// something of ours fails.
    pub(super) fn start(mut command: Command) -> std::io::Result<Self> {
        let (log, [out, err]) = Log::new()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            // What is typed at a terminal is for the runner, which ends the daemon in good order.
            .process_group(0)
            .kill_on_drop(false)
            .spawn()?;
        let pid = child.id().unwrap_or_default();
        let start_time = start_time(pid).unwrap_or_default();
        Ok(Self { process: Process::Child(child), pid, start_time, started: Instant::now(), log })
    }

    /// The daemon of a runner that was killed, if it lives.
    pub(super) fn adopt(record: &Record) -> Option<Self> {
        let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw)?;
        // Opened before it is looked at: from then on the number cannot be another's.
        let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        if start_time(record.pid)? != record.start_time {
            return None;
        }
        let (process, start_time) = (Process::Orphan(process, record.start_time), record.start_time);
        let mut log = Log::of_process(record.pid);
        // Long logs are thrown away from their beginning.
        log.clues.index = log.clues.index.or(record.index);
        Some(Self { process, pid: record.pid, start_time, started: Instant::now(), log })
    }

    /// By which others find it.
    pub(super) fn id(&self) -> Join {
        Join { pid: self.pid, start_time: self.start_time }
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
        if tokio::time::timeout(limit, self.ended()).await.is_err() {
            tracing::warn!(pid = self.pid, "nvidia-imex has not ended {limit:?} after SIGTERM and is killed");
            self.send(Signal::KILL);
            self.ended().await;
        }
        self.log.read();
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
