use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use heddle_core::imex::{DaemonState, OwnRow, own_row};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

/// Most of an answer that is read: the matrix of a thousand members is below it.
const ANSWER_MAX: u64 = 16 << 20;

/// Questions to the daemon through `nvidia-imex-ctl`, each with a hard time limit: the tool may hang (upstream 1417).
#[derive(Clone, Debug)]
pub(super) struct Ctl {
    pub(super) program: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) config: PathBuf,
    pub(super) limit: Duration,
}

impl Ctl {
    /// The daemon's word for its state, or why there is none.
    pub(super) async fn state(&self) -> Result<DaemonState, String> {
        let text = self.ask(["-q".as_ref(), "-u".as_ref(), self.socket.as_os_str()]).await?;
        Ok(DaemonState::parse(&text))
    }

    /// The node's own row of the domain's matrix. The tool asks every member's command port, which is closed: only what
    /// the own daemon says is used.
    pub(super) async fn own_row(&self, index: u32) -> Result<Option<OwnRow>, String> {
        let text = self.ask(["-N".as_ref(), "-j".as_ref(), "-c".as_ref(), self.config.as_os_str()]).await?;
        Ok(own_row(&text, index))
    }

    async fn ask<const N: usize>(&self, args: [&OsStr; N]) -> Result<String, String> {
        let mut child = Command::new(&self.program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("{} cannot be started: {error}", self.program.display()))?;
        let out = child.stdout.take();
        let answer = async {
            let mut text = String::new();
            if let Some(out) = out {
                out.take(ANSWER_MAX).read_to_string(&mut text).await.map_err(|error| error.to_string())?;
            }
            let status = child.wait().await.map_err(|error| error.to_string())?;
            if status.success() { Ok(text) } else { Err(format!("nvidia-imex-ctl ended with {status}")) }
        };
        tokio::time::timeout(self.limit, answer)
            .await
            .map_err(|_| format!("nvidia-imex-ctl has not answered within {:?}", self.limit))?
    }
}
