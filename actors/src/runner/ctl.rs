use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use heddle_core::imex::{DaemonState, OwnRow, own_row};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::Settings;
use super::enter::{FAILED, Join};
use super::files::CONFIG;

/// Most of an answer that is read: the matrix of a thousand members is below it.
const ANSWER_MAX: u64 = 16 << 20;
/// Most that is read of what goes with a failure.
const COMPLAINT_MAX: u64 = 4096;

/// Questions to the daemon through `nvidia-imex-ctl`, each with a hard time limit: the tool may hang (upstream 1417).
pub(super) struct Ctl {
    pub(super) settings: Settings,
    pub(super) daemon: Join,
}

impl Ctl {
    /// The daemon's word for its state, or why there is none.
    pub(super) async fn state(&self) -> Result<DaemonState, String> {
        let text = self.ask(vec!["-q".into(), "-u".into(), self.settings.command_socket().into()]).await?;
        Ok(DaemonState::parse(&text))
    }

    /// The node's own row of the domain's matrix. The tool asks every member's command port, which is closed: only what
    /// the own daemon says is used.
    pub(super) async fn own_row(&self, index: u32) -> Result<Option<OwnRow>, String> {
        let config = self.settings.config_dir_of_daemon().join(CONFIG);
        let text = self.ask(vec!["-N".into(), "-j".into(), "-c".into(), config]).await?;
        Ok(own_row(&text, index))
    }

    async fn ask(&self, arguments: Vec<PathBuf>) -> Result<String, String> {
        let command = self.settings.ctl_command(&self.daemon, arguments)?;
        answer(command, &self.settings.programs()[1], self.settings.timing.query_limit).await
    }
}

/// Runs a program to its end, which it must come to in time; what it says.
async fn answer(mut command: tokio::process::Command, program: &Path, limit: Duration) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", program.display()))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let answer = async {
        let (text, complaint) = futures::join!(read(out, ANSWER_MAX), read(err, COMPLAINT_MAX));
        let status = child.wait().await.map_err(|error| error.to_string())?;
        if status.success() {
            return text;
        }
        let complaint = complaint.unwrap_or_default();
        let last = complaint.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        Err(match last.strip_prefix(FAILED) {
            Some(why) => format!("nvidia-imex-ctl cannot be asked: {why}"),
            None if last.is_empty() => format!("nvidia-imex-ctl ended with {status}"),
            None => format!("nvidia-imex-ctl ended with {status}, saying: {last:.512}"),
        })
    };
    tokio::time::timeout(limit, answer)
        .await
        .map_err(|_| format!("nvidia-imex-ctl has not answered within {limit:?}"))?
}

async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    let Some(mut stream) = stream else { return Ok(String::new()) };
    (&mut stream).take(most).read_to_end(&mut bytes).await.map_err(|error| error.to_string())?;
    // What is beyond is of no interest, and whoever writes it is not to wait.
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Shows a daemon the runner's folders anew.
pub(super) async fn renew(settings: &Settings, daemon: &Join) -> Result<(), String> {
    let Some(command) = settings.renew_command(daemon)? else { return Ok(()) };
    answer(command, Path::new("imex-enter"), settings.timing.query_limit).await.map(drop)
}
