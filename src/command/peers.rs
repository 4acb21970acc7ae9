use clap::Args;
use heddle_core::identity::Authentication;

/// How IMEX daemons know each other; the same on all nodes and in the controller.
#[derive(Args)]
pub struct Peers {
    /// How IMEX daemons know that a peer is one: domain-ca (the controller signs a certificate for each node and IMEX
    /// domain), files (your own certificates), gss (Kerberos) or insecure
    #[arg(long, default_value_t, env = "HEDDLE_PEER_AUTHENTICATION")]
    pub peer_authentication: Authentication,
    /// Life of a peer certificate: what the agents ask for, and the most that the controller signs
    #[arg(long, value_name = "HOURS", default_value_t = 168, value_parser = clap::value_parser!(u32).range(1..=8760), env = "HEDDLE_PEER_CERTIFICATE_HOURS")]
    pub peer_certificate_hours: u32,
}
