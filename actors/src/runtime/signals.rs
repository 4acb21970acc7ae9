//! How a process is told to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ends at the first SIGTERM or SIGINT: finish what is in hand. The second ends the process with code 130 at once, so
/// that a shutdown that hangs needs no SIGKILL.
///
/// # Panics
/// Away from the thread of a tokio runtime.
pub async fn signals() {
    let streams = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
    let (mut term, mut int) = match streams {
        Ok(streams) => streams,
        Err(error) => {
            // Then the signals keep their default meaning, and end the process.
            tracing::warn!("signals are not handled, so there is no graceful shutdown: {error}");
            return std::future::pending().await;
        }
    };
    let first = either(&mut term, &mut int).await;
    tracing::info!("{first}: shutting down; once more to end at once");
    tokio::spawn(async move {
        let second = either(&mut term, &mut int).await;
        tracing::warn!("{second} again: ending at once");
        std::process::exit(130);
    });
}

async fn either(term: &mut Signal, int: &mut Signal) -> &'static str {
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}
