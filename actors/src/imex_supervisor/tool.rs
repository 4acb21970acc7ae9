use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

/// Most of an answer that is read: the matrix of a thousand members is below it.
const ANSWER_MAX: u64 = 16 << 20;

/// What `nvidia-imex-ctl` says. It is killed when it has not ended in time: it may hang (upstream 1417).
pub(super) async fn ask(mut command: Command, limit: Duration) -> Result<String, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("nvidia-imex-ctl cannot be started: {error}"))?;
    let out = child.stdout.take();
    let answer = async {
        let mut text = Vec::new();
        if let Some(out) = out {
            out.take(ANSWER_MAX).read_to_end(&mut text).await.map_err(|error| error.to_string())?;
        }
        let status = child.wait().await.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&text).into_owned();
        if status.success() { Ok(text) } else { Err(format!("nvidia-imex-ctl ended with {status}")) }
    };
    tokio::time::timeout(limit, answer)
        .await
        .map_err(|_| format!("nvidia-imex-ctl has not answered within {limit:?}"))?
}
