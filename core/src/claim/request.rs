//! What a claim asks of this node.
