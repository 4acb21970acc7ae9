//! node_link
