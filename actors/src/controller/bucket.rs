use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Writes that a status may make at once; after that one per [`REFILL`].
const BURST: u32 = 3;
/// A status that changes faster than this is not read by anybody, and would be written for nobody.
const REFILL: Duration = Duration::from_secs(1);

/// Lets each key act in short bursts, and once per second in the long run.
#[derive(Debug, Default)]
pub struct Buckets(BTreeMap<String, (u32, Instant)>);

impl Buckets {
    /// Takes a turn.
    ///
    /// # Errors
    /// How long to wait for the next.
    pub fn take(&mut self, key: &str, now: Instant) -> Result<(), Duration> {
        let (left, since) = self.0.get(key).copied().unwrap_or((BURST, now));
        let refilled = (now.saturating_duration_since(since).as_millis() / REFILL.as_millis()) as u32;
        let left = left.saturating_add(refilled).min(BURST);
        let since = if left == BURST { now } else { since + REFILL * refilled };
        if left == 0 {
            self.0.insert(key.into(), (left, since));
            return Err(REFILL.saturating_sub(now.saturating_duration_since(since)));
        }
        self.0.insert(key.into(), (left - 1, since));
        Ok(())
    }

    /// Forgets keys that are full again.
    pub fn forget_idle(&mut self, now: Instant) {
        self.0.retain(|_, (_, since)| now.saturating_duration_since(*since) < REFILL * (BURST + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_then_one_a_second() {
        let start = Instant::now();
        let mut buckets = Buckets::default();
        for _ in 0..BURST {
            assert_eq!(buckets.take("a", start), Ok(()));
        }
        assert_eq!(buckets.take("a", start + REFILL / 4), Err(REFILL * 3 / 4));
        assert_eq!(buckets.take("b", start), Ok(()));
        assert_eq!(buckets.take("a", start + REFILL), Ok(()));
        assert_eq!(buckets.take("a", start + REFILL), Err(REFILL));
        buckets.forget_idle(start + REFILL * 9);
        assert_eq!(buckets.0.len(), 0);
        for _ in 0..BURST {
            assert_eq!(buckets.take("a", start + REFILL * 9), Ok(()));
        }
    }
}
