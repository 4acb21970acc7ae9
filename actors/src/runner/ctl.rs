use std::path::{Path, PathBuf};

use heddle_core::imex::{DaemonState, OwnRow, own_row};

use super::Settings;
use super::enter::Join;
use super::files::CONFIG;
use super::question::{answer, of_domain, of_state};

/// Questions to the runner's daemon, each with a hard time limit.
pub(super) struct Ctl {
    pub(super) settings: Settings,
    pub(super) daemon: Join,
}

impl Ctl {
    /// The daemon's word for its state, or why there is none.
    pub(super) async fn state(&self) -> Result<DaemonState, String> {
        let text = self.ask(of_state(self.settings.command_socket())).await?;
        Ok(DaemonState::parse(&text))
    }

    /// The node's own row of the domain's matrix.
    pub(super) async fn own_row(&self, index: u32) -> Result<Option<OwnRow>, String> {
        let text = self.ask(of_domain(&self.settings.config_dir_of_daemon().join(CONFIG))).await?;
        Ok(own_row(&text, index))
    }

    async fn ask(&self, arguments: Vec<PathBuf>) -> Result<String, String> {
        let command = self.settings.ctl_command(&self.daemon, arguments)?;
        answer(command, &self.settings.programs()[1], self.settings.timing.query_limit).await
    }
}

/// Shows a daemon the runner's folders anew.
pub(super) async fn renew(settings: &Settings, daemon: &Join) -> Result<(), String> {
    let Some(command) = settings.renew_command(daemon)? else { return Ok(()) };
    answer(command, Path::new("imex-enter"), settings.timing.query_limit).await.map(drop)
}
