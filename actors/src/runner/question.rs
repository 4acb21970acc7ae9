//! Questions to an IMEX daemon through the `nvidia-imex-ctl` of its driver root: of a runner's daemon and of a host's.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use super::enter::FAILED;

/// The tool, below a driver root.
pub(crate) const CTL: &str = "usr/bin/nvidia-imex-ctl";

/// Most of an answer that is read: the matrix of a thousand members is below it.
const ANSWER_MAX: u64 = 16 << 20;
/// Most that is read of what goes with a failure.
const COMPLAINT_MAX: u64 = 4096;

/// What is asked for the daemon's state.
pub(crate) fn of_state(socket: &Path) -> Vec<PathBuf> {
    vec!["-q".into(), "-u".into(), socket.into()]
}

/// What is asked for the domain's matrix. The tool asks every member's command port, which may be closed: only what the own
/// daemon says is used.
pub(crate) fn of_domain(config: &Path) -> Vec<PathBuf> {
    vec!["-N".into(), "-j".into(), "-c".into(), config.into()]
}

/// Runs a program to its end, which it must come to in time: the tool may hang (upstream 1417). What it says.
pub(crate) async fn answer(mut command: Command, program: &Path, limit: Duration) -> Result<String, String> {
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
