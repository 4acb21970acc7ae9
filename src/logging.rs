//! Where log lines go: standard error, so that standard output stays the command's own answer.

mod lossy;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{IsTerminal, Write as _};
use std::os::fd::AsFd as _;
use std::panic::PanicHookInfo;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use lossy::Lossy;

/// How long the last lines may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What writes the lines of who must not wait for their reader.
static LOSSY: OnceLock<Lossy> = OnceLock::new();

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging. `RUST_LOG` overrides `level`. Who `serves` goes on whatever the reader of its log does.
pub fn start(format: Format, level: &str, serves: bool) {
    // The client logs every failed request before whoever made it says in better words what came of it.
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(format!("{level},kube_client=off")));
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(if serves { lossy_stderr() } else { BoxMakeWriter::new(std::io::stderr) })
        // It would be said on standard error, which is what has failed, and that panics.
        .log_internal_errors(false);
    match format {
        Format::Text => base.with_ansi(std::io::stderr().is_terminal()).with_target(false).init(),
        Format::Json => base.json().flatten_event(true).init(),
    }
}

fn lossy_stderr() -> BoxMakeWriter {
    let tell = |lost| tracing::warn!(lost, "log lines were lost: nobody has read them");
    // Not by way of the standard library's own, whose lock a writer holds that waits.
    let stderr = std::io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let Ok(lossy) = stderr.and_then(|stderr| Lossy::start(stderr, tell)) else {
        return BoxMakeWriter::new(std::io::sink);
    };
    let _ = LOSSY.set(lossy.clone());
    std::panic::set_hook(Box::new(said_by_panic));
    BoxMakeWriter::new(move || lossy.clone())
}

fn said_by_panic(panic: &PanicHookInfo<'_>) {
    let Some(mut lossy) = LOSSY.get().cloned() else { return };
    let thread = std::thread::current();
    let mut text = format!("thread '{}' {panic}\n", thread.name().unwrap_or("without a name"));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text.push_str(&format!("{backtrace}"));
    }
    let _ = lossy.write_all(text.as_bytes());
}

/// Ends logging with a last word. What was said is written, unless nobody reads it.
pub fn end(last_word: Option<&str>) {
    let line = last_word.map(|text| format!("heddle: {text}\n")).unwrap_or_default();
    let Some(mut lossy) = LOSSY.get().cloned() else {
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    };
    if !line.is_empty() {
        let _ = lossy.write_all(line.as_bytes());
    }
    Lossy::flush(&lossy, LAST_LINES);
}
