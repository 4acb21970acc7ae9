//! Growing pauses.

use std::time::Duration;

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
