use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// How long an agent has to note a drain by itself. Fenced at once it would be written to twice, and one of the two writes
/// refused.
const PAUSE: Duration = Duration::from_secs(2);

/// Since when nodes are to be fenced, by clique.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<String, BTreeMap<String, Instant>>);

impl Held {
    /// The nodes of a clique that its last decision wants to fence; whoever is not among them has noted it. Says when to decide
    /// again if one is to be waited for that was not waited for before.
    pub fn set<'a>(&mut self, clique: &str, nodes: impl Iterator<Item = &'a str>, now: Instant) -> Option<Duration> {
        let before = self.0.remove(clique).unwrap_or_default();
        let due = |node: &str| before.get(node).copied().unwrap_or(now + PAUSE);
        let held: BTreeMap<String, Instant> = nodes.map(|node| (node.to_owned(), due(node))).collect();
        let new = held.keys().any(|node| !before.contains_key(node));
        if !held.is_empty() {
            self.0.insert(clique.into(), held);
        }
        new.then_some(PAUSE)
    }

    /// Whether the node has had its time.
    pub fn is_due(&self, clique: &str, node: &str, now: Instant) -> bool {
        self.0.get(clique).and_then(|nodes| nodes.get(node)).is_none_or(|due| *due <= now)
    }

    /// Somebody else leads, who holds them anew.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_due_after_a_pause_in_which_the_node_has_not_noted_the_drain() {
        let (mut held, start) = (Held::default(), Instant::now());
        assert_eq!(held.set("c", ["a", "b"].into_iter(), start), Some(PAUSE));
        assert!(!held.is_due("c", "a", start));
        assert_eq!(held.set("c", ["a"].into_iter(), start + PAUSE / 2), None, "its timer runs already");
        assert!(held.is_due("c", "a", start + PAUSE) && !held.is_due("c", "a", start + PAUSE / 2));
        // It noted that one; the next drain begins anew.
        assert_eq!(held.set("c", [].into_iter(), start + PAUSE), None);
        assert_eq!(held.set("c", ["a"].into_iter(), start + PAUSE), Some(PAUSE));
        assert!(!held.is_due("c", "a", start + PAUSE));
        assert_eq!(held.set("c", [].into_iter(), start + PAUSE), None);
        assert!(held.0.is_empty());
    }
}
