use std::io::Write as _;

use clap::Args;
use heddle_actors::runner::enter::{Entry, FAILED};

/// The command, in this very binary, also after its file was replaced.
pub const WORDS: [&str; 2] = ["/proc/self/exe", "imex-enter"];

/// What a runner or an agent starts in order to become a program of the driver root.
#[derive(Args)]
pub struct ImexEnter {
    /// What to do, in the words of who starts it
    entry: String,
}

impl ImexEnter {
    /// Returns only if it has not become another program. The words are found by the runner in the daemon's log.
    pub fn run(&self) -> std::process::ExitCode {
        match Entry::run(&self.entry) {
            Ok(()) => std::process::ExitCode::SUCCESS,
            Err(why) => {
                let _ = writeln!(std::io::stderr(), "{FAILED}{why}");
                std::process::ExitCode::FAILURE
            }
        }
    }
}
