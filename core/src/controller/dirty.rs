use std::collections::BTreeSet;

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
}
