//! Where log lines go: standard error, so that standard output stays the command's own answer.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. `RUST_LOG` overrides `level`.
pub fn start(format: Format, level: &str) {
    // The client logs every failed request before whoever made it says in better words what came of it.
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("{level},kube_client=off")));
    let base = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        Format::Text => base.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
        Format::Json => base.json().flatten_event(true).init(),
    }
}
