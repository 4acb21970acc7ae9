//! The demo: a picture of ComputeDomains sharing nodes, played on the embedded cluster.
