//! Which IMEX domain each node serves.
