use clap::Args;
use heddle_actors::runner::enter::{Entry, FAILED};

/// What the runner starts in order to become a program of the driver root.
#[derive(Args)]
pub struct ImexEnter {
    /// What to do, in the runner's own words
    entry: String,
}

impl ImexEnter {
    /// Returns only if it has not become another program. The words are found by the runner in the daemon's log.
    pub fn run(&self) -> std::process::ExitCode {
        match Entry::run(&self.entry) {
            Ok(()) => std::process::ExitCode::SUCCESS,
            Err(why) => {
                eprintln!("{FAILED}{why}");
                std::process::ExitCode::FAILURE
            }
        }
    }
}
