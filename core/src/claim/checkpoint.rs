//! What is remembered of a claim.
