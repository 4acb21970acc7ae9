use std::time::Duration;

use tokio::time::Instant;

/// When to send the daemon SIGUSR1, of which it honours one per window and drops the others: a change inside the window
/// is signalled at its end, so that the last one always arrives.
#[derive(Debug)]
pub(super) struct Signal {
    window: Duration,
    last: Option<Instant>,
    wanted: bool,
}

impl Signal {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, last: None, wanted: false }
    }

    /// Something has changed that the daemon must read again.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// A daemon that starts reads everything.
    pub(super) fn started(&mut self) {
        self.wanted = false;
        self.last = None;
    }

    /// When the next signal is due, if one is wanted.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.wanted.then(|| self.last.map_or(now, |last| last + self.window).max(now))
    }

    /// A signal was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.wanted = false;
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_sent_at_once_and_the_last_one_arrives() {
        let window = Duration::from_secs(5);
        let (mut signal, start) = (Signal::new(window), Instant::now());
        assert_eq!(signal.due(start), None);
        signal.want();
        assert_eq!(signal.due(start), Some(start));
        signal.sent(start);
        assert_eq!(signal.due(start), None);
        for second in 1..5 {
            signal.want();
            let now = start + Duration::from_secs(second);
            assert_eq!(signal.due(now), Some(start + window), "all changes of a window are one signal");
        }
        let late = start + window + Duration::from_secs(1);
        assert_eq!(signal.due(late), Some(late));
        signal.sent(late);
        assert_eq!(signal.due(late), None);
    }

    #[test]
    fn a_fresh_daemon_needs_none() {
        let mut signal = Signal::new(Duration::from_secs(5));
        signal.want();
        signal.started();
        assert_eq!(signal.due(Instant::now()), None);
    }
}
