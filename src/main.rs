//! The one binary of Heddle: every role is a subcommand.

mod command;
mod logging;

use std::process::ExitCode;

/// Set by a parent whose children must not outlive it.
const END_WITH_PARENT: &str = "HEDDLE_END_WITH_PARENT";

fn main() -> ExitCode {
    if std::env::var_os(END_WITH_PARENT).is_some() {
        // An end by SIGTERM is orderly: a runner ends its daemon.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    }
    #[cfg(feature = "demo")]
    if let Some(code) = command::fake::called_by_its_name() {
        return code;
    }
    command::run()
}
