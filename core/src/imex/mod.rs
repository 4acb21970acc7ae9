//! IMEX: domain names, node map, hosts, daemon configuration, daemon states, readiness.

pub mod agreement;
mod config;
mod daemon;
mod domain;
mod gate;
mod host;
mod hosts;
mod ledger;
mod links;
mod member;
mod mode;
mod news;
mod node_map;
mod node_status;
mod readiness;
mod setting;
mod shown;
mod silence;
mod step;
mod verdict;

pub use config::{
    DaemonFiles, daemon_config, daemon_settings, forwarded_level, settings_file, settings_of_agent, settings_warnings,
};
pub use daemon::{Daemon, DaemonState, own_index};
pub use domain::{BIND, DomainConfig, desired, exclusive_domain_name, is_exclusive, shared_domain_name};
pub use gate::{Gate, gate};
pub use host::{HostConfig, HostDaemon, HostMap, host_config, host_map};
pub use hosts::{SENTINEL, hosts, hosts_file, hosts_in};
pub use ledger::Ledger;
pub use links::{LINKS_CONTRACT, Links, OwnRow, links, own_row};
pub use member::{MEMBER, member_condition, refusal};
pub use mode::{IMEX_MODE, IMEX_MODE_CHANGED, Known, Standing, host_refusal, standing};
pub use news::is_news;
pub use node_map::{member_name, node_map, node_map_hash};
pub use node_status::{Answer, Decision, Report, Wishes, clash, decide};
pub use readiness::readiness;
pub use setting::{SETTINGS, SetBy, Setting, Takes, setting_of};
pub use shown::{IDENTITY_CONTRACT, Identity, IdentityFiles, Shown, gss_settings, identity_settings, shown_name};
pub use silence::{BEAT_CONTRACT, patience};
pub use step::{Sent, Step, next};
pub use verdict::{Verdict, validate, verdict};

/// The first `len` hexadecimal digits of the SHA-256 of `text`.
fn short_hash(text: &str, len: usize) -> String {
    let mut hex = sha256(text);
    hex.truncate(len);
    hex
}

/// The SHA-256 of `text` in hex.
fn sha256(text: &str) -> String {
    use std::fmt::Write as _;

    use sha2::{Digest, Sha256};
    Sha256::digest(text.as_bytes()).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
