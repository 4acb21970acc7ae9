//! What people were told lately: the kubelet retries every few seconds and a GPU that fails reports a thousand times a
//! second, and nobody needs to read the same words that often.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The same words are said again after this long at the earliest.
pub(crate) const REPEAT: Duration = Duration::from_secs(300);
/// Words that are remembered for it.
const REMEMBERED: usize = 256;

/// Words by when they were said.
pub(crate) struct Said<K>(BTreeMap<K, Instant>);

impl<K> Default for Said<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Said<K> {
    /// Whether this was said lately.
    pub(crate) fn lately(&mut self, words: &K, now: Instant) -> bool {
        self.0.retain(|_, said| now.duration_since(*said) < REPEAT);
        self.0.contains_key(words)
    }

    /// Whether it is time to say this; it has been said then.
    pub(crate) fn is_news(&mut self, words: K, now: Instant) -> bool {
        if self.lately(&words, now) || self.0.len() >= REMEMBERED {
            return false;
        }
        self.0.insert(words, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn words_are_news_once_in_a_while_and_never_too_many() {
        let mut said = Said::default();
        assert!(!said.lately(&0, Instant::now()), "asking is not saying");
        assert!(said.is_news(0, Instant::now()) && !said.is_news(0, Instant::now()));
        assert!(said.lately(&0, Instant::now()) && !said.lately(&1, Instant::now()));
        tokio::time::advance(REPEAT).await;
        assert!(!said.lately(&0, Instant::now()) && said.is_news(0, Instant::now()));
        let news = (1..1000).filter(|words| said.is_news(*words, Instant::now())).count();
        assert_eq!(news, REMEMBERED - 1);
    }
}
