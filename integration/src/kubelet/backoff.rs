//! Growing pauses, and waiting for a time.

use std::time::Duration;

use tokio::time::{self, Instant};

/// Growing pauses between attempts.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    /// From the first pause to the longest.
    pub fn new((first, most): (Duration, Duration)) -> Self {
        Self { next: first, most }
    }

    /// The next pause.
    pub fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.most);
        pause
    }
}

/// `period` and up to half of it more, so that pods don't come back all at once.
pub fn jittered(period: Duration) -> Duration {
    period.mul_f64(1.0 + fastrand::f64() / 2.0)
}

/// Waits until then; for ever without a time.
pub async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
