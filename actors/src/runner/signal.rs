use std::time::Duration;

use tokio::time::Instant;

/// When to send the daemon SIGUSR1, of which it honours one per window and drops the others: a change inside the window
/// is signalled at its end, so that the last one always arrives.
#[derive(Debug)]
pub(super) struct Signal {
    window: Duration,
    last: Option<Instant>,
    wanted: Option<Instant>,
}

impl Signal {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, last: None, wanted: None }
    }

    /// Something has changed that the daemon must read again.
    pub(super) fn want(&mut self, now: Instant) {
        self.wanted.get_or_insert(now);
    }

    /// A daemon that starts reads everything.
    pub(super) fn started(&mut self) {
        self.wanted = None;
        self.last = None;
    }

    /// When the next signal is due, if one is wanted.
    pub(super) fn due(&self) -> Option<Instant> {
        self.wanted.map(|since| self.last.map_or(since, |last| since.max(last + self.window)))
    }

    /// A signal was sent.
    pub(super) fn sent(&mut self, now: Instant) {
        self.wanted = None;
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
        assert_eq!(signal.due(), None);
        signal.want(start);
        assert_eq!(signal.due(), Some(start));
        signal.sent(start);
        assert_eq!(signal.due(), None);
        for second in 1..5 {
            signal.want(start + Duration::from_secs(second));
            assert_eq!(signal.due(), Some(start + window), "all changes of a window are one signal");
        }
        signal.sent(start + window);
        assert_eq!(signal.due(), None);
        let late = start + window * 3;
        signal.want(late);
        assert_eq!(signal.due(), Some(late), "after a quiet while it is sent at once");
    }

    #[test]
    fn a_fresh_daemon_needs_none() {
        let mut signal = Signal::new(Duration::from_secs(5));
        signal.want(Instant::now());
        signal.started();
        assert_eq!(signal.due(), None);
    }
}
