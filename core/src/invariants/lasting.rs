use std::collections::BTreeMap;
use std::time::Duration;

use super::{Report, Violation};

/// Copies of objects are behind each other for moments. What is said is a violation that lasts.
#[derive(Clone, Debug, Default)]
pub struct Lasting(BTreeMap<Violation, Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    since: Duration,
    said: bool,
}

impl Lasting {
    /// Takes in what there is at `now`, a time since any fixed moment. Says, once each, which violations have lasted for
    /// `settle`.
    pub fn see(&mut self, report: &Report, now: Duration, settle: Duration) -> Vec<Violation> {
        let before = std::mem::take(&mut self.0);
        let mut new = Vec::new();
        for violation in report.all() {
            let mut seen = before.get(violation).copied().unwrap_or(Seen { since: now, said: false });
            if !seen.said && now.saturating_sub(seen.since) >= settle {
                seen.said = true;
                new.push(violation.clone());
            }
            self.0.insert(violation.clone(), seen);
        }
        new
    }

    /// Whether one is there that has not been said: look again.
    pub fn waits(&self) -> bool {
        self.0.values().any(|seen| !seen.said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::violation;

    #[test]
    fn a_violation_that_lasts_is_said_once() {
        let (bad, good) = (Report { s2: vec![violation("S2", "torn".into())], ..Report::default() }, Report::default());
        let (mut lasting, settle) = (Lasting::default(), Duration::from_secs(10));
        let mut at = |report: &Report, second| lasting.see(report, Duration::from_secs(second), settle).len();
        assert_eq!([at(&bad, 0), at(&bad, 9), at(&good, 10), at(&bad, 11)], [0; 4], "it has passed in between");
        assert_eq!([at(&bad, 21), at(&bad, 99)], [1, 0]);
        assert_eq!([at(&good, 100), at(&bad, 101), at(&bad, 111)], [0, 0, 1], "another time is another one");
        assert!(!lasting.waits());
    }
}
