use std::collections::BTreeSet;
use std::ops::Bound;

/// What one pass decides at most. A controller that decides a whole large cluster at a stretch renews no lease meanwhile,
/// loses it, and begins anew when it leads again.
const PART: Turn<usize> = Turn { cds: 256, cliques: 32, nodes: 1024 };

/// One of each for ComputeDomains, cliques and nodes: where the last part has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn<T = Option<String>> {
    cds: T,
    cliques: T,
    nodes: T,
}

/// What is to be decided anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// ComputeDomains by UID: finalizer, template, status.
    pub cds: BTreeSet<String>,
    /// Cliques: their domains, members, moves and channels.
    pub cliques: BTreeSet<String>,
    /// Nodes by name: whether their IMEXNode may go.
    pub nodes: BTreeSet<String>,
}

impl Dirty {
    /// Nothing is.
    pub fn is_empty(&self) -> bool {
        self.cds.is_empty() && self.cliques.is_empty() && self.nodes.is_empty()
    }

    /// Adds what another says.
    pub fn merge(&mut self, other: Self) {
        self.cds.extend(other.cds);
        self.cliques.extend(other.cliques);
        self.nodes.extend(other.nodes);
    }

    /// Takes a part out, in turn, so that nothing waits for ever behind what comes again and again.
    pub fn take(&mut self, turn: &mut Turn) -> Self {
        Self {
            cds: part(&mut self.cds, &mut turn.cds, PART.cds),
            cliques: part(&mut self.cliques, &mut turn.cliques, PART.cliques),
            nodes: part(&mut self.nodes, &mut turn.nodes, PART.nodes),
        }
    }
}

fn part(all: &mut BTreeSet<String>, last: &mut Option<String>, most: usize) -> BTreeSet<String> {
    if all.len() <= most {
        *last = None;
        return std::mem::take(all);
    }
    let after = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let behind = all.range::<str, _>((after, Bound::Unbounded));
    let keys: Vec<String> = behind.chain(all.iter()).take(most).cloned().collect();
    *last = keys.last().cloned();
    for key in &keys {
        all.remove(key);
    }
    keys.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_taken_in_turn_and_nothing_is_left_behind() {
        let name = |n: usize| format!("{n:05}");
        let all: BTreeSet<String> = (0..PART.cliques * 3 + 1).map(name).collect();
        let mut dirty = Dirty { cliques: all.clone(), ..Dirty::default() };
        let (mut turn, mut seen) = (Turn::default(), BTreeSet::new());
        let mut passes = 0;
        // The first comes again after each pass.
        while seen.len() < all.len() {
            let taken = dirty.take(&mut turn);
            assert!(taken.cliques.len() <= PART.cliques && taken.cds.is_empty());
            seen.extend(taken.cliques);
            dirty.cliques.insert(name(0));
            passes += 1;
        }
        assert!(passes <= 5, "{passes}");
        dirty.cliques.clear();
        assert!(dirty.take(&mut turn).is_empty());
    }
}
