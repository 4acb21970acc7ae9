//! Child processes, kept running as a DaemonSet would.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Set for every child: it ends when the demo does, however that ends.
pub const WITH_PARENT: &str = "HEDDLE_END_WITH_PARENT";

/// Pause before an ended process is started again; a real kubelet's first one is longer.
const RESTART_PAUSE: Duration = Duration::from_millis(300);
/// Ends in a row, each without having lived for [`STEADY`], after which a process counts as broken.
const MOST_ENDS: u32 = 5;
/// How long a process lives before its earlier ends are forgotten.
const STEADY: Duration = Duration::from_secs(5);
/// What an orderly end may take before it is forced.
const STOP_LIMIT: Duration = Duration::from_secs(8);

/// How a process is started.
#[derive(Clone, Debug)]
pub struct Start {
    /// What it is called in messages.
    pub name: String,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// Environment on top of the demo's own.
    pub environment: Vec<(&'static str, OsString)>,
    /// File for its standard output and error.
    pub log: PathBuf,
}

/// A process that is started again when it ends.
pub struct Process {
    pid: Arc<Mutex<Option<Pid>>>,
    stop: watch::Sender<bool>,
    broken: watch::Receiver<Option<String>>,
    keeper: JoinHandle<()>,
}

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// When the command cannot be started at all.
    pub fn start(start: Start) -> anyhow::Result<Self> {
        let child = spawn(&start)?;
        let pid = Arc::new(Mutex::new(pid_of(&child)));
        let (stop, stopped) = watch::channel(false);
        let (report, broken) = watch::channel(None);
        let keeper = tokio::spawn(keep(start, child, pid.clone(), stopped, report));
        Ok(Self { pid, stop, broken, keeper })
    }

    /// Kills it without warning; it is started again.
    pub fn kill(&self) {
        if let Some(pid) = *self.pid.lock().unwrap() {
            // It may have ended by itself just now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<Pid> {
        *self.pid.lock().unwrap()
    }

    /// Why it is not started again any more, if so.
    pub fn broken(&self) -> Option<String> {
        self.broken.borrow().clone()
    }

    /// Ends it in order, by force after a while.
    pub async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = self.keeper.await;
    }
}

async fn keep(
    start: Start,
    mut child: Child,
    pid: Arc<Mutex<Option<Pid>>>,
    mut stop: watch::Receiver<bool>,
    broken: watch::Sender<Option<String>>,
) {
    let mut ends = 0;
    loop {
        let since = tokio::time::Instant::now();
        tokio::select! {
            () = told(&mut stop) => return end(child).await,
            _ = child.wait() => {}
        }
        *pid.lock().unwrap() = None;
        ends = if since.elapsed() > STEADY { 1 } else { ends + 1 };
        if ends >= MOST_ENDS {
            let last = last_line(&start.log);
            let _ = broken.send(Some(format!("{} ended {ends} times in a row; its last words: {last}", start.name)));
            return;
        }
        tokio::select! {
            () = told(&mut stop) => return,
            () = tokio::time::sleep(RESTART_PAUSE) => {}
        }
        match spawn(&start) {
            Ok(next) => child = next,
            Err(error) => {
                let _ = broken.send(Some(format!("{error:#}")));
                return;
            }
        }
        *pid.lock().unwrap() = pid_of(&child);
    }
}

async fn told(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone has nobody who could still want the process.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn end(mut child: Child) {
    if let Some(pid) = pid_of(&child) {
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(STOP_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

fn spawn(start: &Start) -> anyhow::Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(&start.log)
        .with_context(|| format!("{} could not be written", start.log.display()))?;
    let (program, arguments) = start.command.split_first().context("a process needs a command")?;
    Command::new(program)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .env(WITH_PARENT, "1")
        .envs(start.environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("{} could not be started as {program:?}", start.name))
}

fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| Pid::from_raw(id.cast_signed()))
}

/// The last line of a log that is not blank.
fn last_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing").trim().to_owned()
}
