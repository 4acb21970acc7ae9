use std::collections::BTreeMap;
use std::time::Duration;

/// Requests that a node may make at once: an agent that restarts asks for two or three certificates.
const BURST: u32 = 10;
/// After that it gets one more in this time.
const REFILL: Duration = Duration::from_secs(30);

/// How many signatures each node has had lately. A stolen token must not keep the signer busy for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates(BTreeMap<String, Rate>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rate {
    left: u32,
    since: Duration,
}

impl Rates {
    /// Takes a turn for the node; `now` is any clock that only goes forward.
    ///
    /// # Errors
    /// How long until the next turn.
    pub fn take(&mut self, node: &str, now: Duration) -> Result<(), Duration> {
        self.0.retain(|_, rate| refilled(rate, now) < BURST);
        let rate = self.0.entry(node.to_owned()).or_insert(Rate { left: BURST, since: now });
        let left = refilled(rate, now);
        if left == 0 {
            return Err(REFILL.saturating_sub(now.saturating_sub(rate.since)));
        }
        let gained = left - rate.left;
        rate.since = if left == BURST { now } else { rate.since + REFILL * gained };
        rate.left = left - 1;
        Ok(())
    }
}

fn refilled(rate: &Rate, now: Duration) -> u32 {
    let gained = now.saturating_sub(rate.since).as_secs() / REFILL.as_secs();
    rate.left.saturating_add(u32::try_from(gained).unwrap_or(BURST)).min(BURST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_node_is_held_up_and_no_other() {
        let (mut rates, start) = (Rates::default(), Duration::from_secs(1000));
        for _ in 0..BURST {
            assert_eq!(rates.take("n1", start), Ok(()));
        }
        for _ in 0..1000 {
            assert_eq!(rates.take("n1", start + REFILL / 3), Err(REFILL - REFILL / 3));
        }
        assert_eq!(rates.take("n2", start), Ok(()));
        assert_eq!(rates.take("n1", start + REFILL), Ok(()));
        assert!(rates.take("n1", start + REFILL).is_err());
        assert_eq!(rates.take("n1", start + REFILL * 3), Ok(()));
        assert_eq!(rates.take("n1", start + REFILL * 3), Ok(()));
        assert!(rates.take("n1", start + REFILL * 3).is_err());
    }

    #[test]
    fn nodes_that_are_quiet_are_forgotten() {
        let mut rates = Rates::default();
        for node in 0..1000 {
            rates.take(&node.to_string(), Duration::ZERO).unwrap();
        }
        rates.take("n1", REFILL * (BURST + 1)).unwrap();
        assert_eq!(rates.0.len(), 1);
    }
}
