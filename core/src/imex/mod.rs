//! IMEX: domain names, node map, hosts, daemon configuration, daemon states, readiness.
