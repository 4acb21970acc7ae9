//! Why no node will do, in the scheduler's words.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::allocator::Missing;

/// Kinds of missing devices that a message names.
const MAX_DETAILS: usize = 3;

/// What was found out, node by node.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    nodes: usize,
    reasons: BTreeMap<String, usize>,
    details: BTreeMap<String, usize>,
}

impl Verdict {
    /// For a cluster of so many nodes.
    pub fn new(nodes: usize) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// One node is out for `reason`.
    pub fn refused(&mut self, reason: String) {
        *self.reasons.entry(reason).or_default() += 1;
    }

    /// One node does not have the devices.
    pub fn missing(&mut self, missing: &Missing) {
        self.refused("cannot allocate all claims".into());
        *self.details.entry(missing.to_string()).or_default() += 1;
    }

    /// The message of the pod's condition.
    pub fn message(&self) -> String {
        if self.nodes == 0 {
            return "no nodes available to schedule pods".into();
        }
        let mut reasons: Vec<String> = self.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        reasons.sort();
        let mut message = format!("0/{} nodes are available: {}.", self.nodes, reasons.join(", "));
        let mut details: Vec<(&String, &usize)> = self.details.iter().collect();
        details.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (detail, count) in details.iter().take(MAX_DETAILS) {
            let _ = write!(message, " {detail} (on {count} node(s)).");
        }
        if details.len() > MAX_DETAILS {
            let _ = write!(message, " And {} more.", details.len() - MAX_DETAILS);
        }
        message
    }
}

/// The message when it does not depend on the nodes.
pub fn everywhere(nodes: usize, reason: &str) -> String {
    format!("0/{nodes} nodes are available: {reason}.")
}
