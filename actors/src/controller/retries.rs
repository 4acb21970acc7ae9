use std::collections::BTreeMap;
use std::time::Duration;

use heddle_core::controller::Dirty;

/// Pauses before what has failed is tried again, by what it is about.
#[derive(Debug, Default)]
pub struct Retries(BTreeMap<Key, u32>);

/// What a decision is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A ComputeDomain, by UID.
    Cd(String),
    /// A clique.
    Clique(String),
    /// A node.
    Node(String),
}

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(60);

impl Retries {
    /// It has failed once more: how long to pause, with jitter, as many may have failed for the same reason.
    pub fn failed(&mut self, key: &Key) -> Duration {
        let times = self.0.entry(key.clone()).or_default();
        let pause = FIRST.saturating_mul(1 << (*times).min(16)).min(LONGEST);
        *times += 1;
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// It has succeeded.
    pub fn succeeded(&mut self, key: &Key) {
        self.0.remove(key);
    }
}

impl Key {
    /// Its decision is to be made anew.
    pub fn is_in(&self, dirty: &Dirty) -> bool {
        match self {
            Self::Cd(uid) => dirty.cds.contains(uid),
            Self::Clique(clique) => dirty.cliques.contains(clique),
            Self::Node(node) => dirty.nodes.contains(node),
        }
    }

    /// Its decision, to be made anew.
    pub fn dirty(&self) -> Dirty {
        let mut dirty = Dirty::default();
        match self {
            Self::Cd(uid) => dirty.cds.insert(uid.clone()),
            Self::Clique(clique) => dirty.cliques.insert(clique.clone()),
            Self::Node(node) => dirty.nodes.insert(node.clone()),
        };
        dirty
    }
}
