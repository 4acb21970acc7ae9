//! Keeps the node's IMEX daemon at what the node must serve.
