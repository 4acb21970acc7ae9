use std::net::IpAddr;

use super::DomainConfig;

/// What a runner does with a configuration that it is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has it already.
    Nothing,
    /// Rewrite the hosts file and signal the daemon.
    Hosts,
    /// Start a daemon; none was configured.
    Start,
    /// End the daemon and start it anew.
    Restart,
    /// Not without the agent's word that no claim is prepared; why.
    Refuse(String),
}

/// Compares what a runner has with what it is given. `listens_at`: the one address at which its daemon can be reached.
pub fn verdict(
    current: Option<&DomainConfig>,
    given: &DomainConfig,
    listens_at: Option<IpAddr>,
    no_claims_prepared: bool,
) -> Verdict {
    let Some(current) = current else { return Verdict::Start };
    if no_claims_prepared && given.needs_no_restart(current) && !given.is_reached_at(listens_at) {
        Verdict::Restart
    } else if current == given {
        Verdict::Nothing
    } else if given.needs_no_restart(current) {
        Verdict::Hosts
    } else if no_claims_prepared {
        Verdict::Restart
    } else {
        Verdict::Refuse(format!(
            "the daemon is configured for domain {} and {} needs its restart, which ends every job on this node that \
             imports memory; the agent has not said that no claim is prepared",
            current.domain,
            if current.domain == given.domain { "its new configuration" } else { given.domain.as_str() },
        ))
    }
}

/// Whether a configuration from outside is whole and can be written to files line by line.
///
/// # Errors
/// What is wrong, in words.
pub fn validate(config: &DomainConfig) -> Result<(), String> {
    let label = |text: &str, max: usize| {
        !text.is_empty()
            && text.len() <= max
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || b == b'_')
    };
    if !label(&config.domain, 253) {
        return Err(format!("{:.80?} is no name of an IMEX domain", config.domain));
    }
    // Not by `lines`, which takes the line ends of other systems for one of its own.
    let whole = config.node_map.strip_suffix('\n').unwrap_or(&config.node_map);
    let lines: Vec<&str> = if whole.is_empty() { Vec::new() } else { whole.split('\n').collect() };
    if lines.is_empty() || lines.len() > 1024 || !config.node_map.ends_with('\n') {
        return Err(format!("the node map has {} lines, expected 1 to 1024 whole ones", lines.len()));
    }
    if let Some(bad) = lines.iter().find(|line| !label(line, 253)) {
        return Err(format!("the node map has a line {bad:.80?}, expected one name a line"));
    }
    if config.index as usize >= lines.len() {
        return Err(format!("index {} is beyond the node map's {} lines", config.index, lines.len()));
    }
    if config.hosts.len() > 1024 {
        return Err(format!("{} hosts are more than 1024", config.hosts.len()));
    }
    for (address, name) in &config.hosts {
        if address.parse::<IpAddr>().is_err() || !label(name, 253) {
            return Err(format!("{address:.80?} {name:.80?} is no address and name for the hosts file"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::desired;
    use super::super::domain::tests::{domain, node};
    use super::*;

    fn config(name: &str, members: u32) -> DomainConfig {
        desired(&node("n0", name), Some(&domain(name, members))).unwrap()
    }

    #[test]
    fn only_a_restart_needs_the_agents_word() {
        let current = config("d", 2);
        for no_claims in [false, true] {
            assert_eq!(verdict(None, &current, None, no_claims), Verdict::Start);
            assert_eq!(verdict(Some(&current), &current, None, no_claims), Verdict::Nothing);
            assert_eq!(verdict(Some(&current), &config("d", 3), None, no_claims), Verdict::Hosts);
        }
        assert_eq!(verdict(Some(&current), &config("e", 2), None, true), Verdict::Restart);
        assert!(
            matches!(verdict(Some(&current), &config("e", 2), None, false), Verdict::Refuse(why) if why.contains("domain d"))
        );
        let renumbered = DomainConfig { index: 1, ..current.clone() };
        assert!(matches!(verdict(Some(&current), &renumbered, None, false), Verdict::Refuse(_)));
    }

    #[test]
    fn a_daemon_that_peers_look_for_elsewhere_is_restarted_by_the_agents_word_alone() {
        let current = config("d", 2);
        let mut moved = current.clone();
        moved.settings.insert("BIND_INTERFACE_IP".into(), "10.9.9.9".into());
        let old = current.own_address();
        assert_eq!(verdict(Some(&current), &moved, old, false), Verdict::Hosts);
        assert_eq!(verdict(Some(&moved), &moved, old, false), Verdict::Nothing);
        assert_eq!(verdict(Some(&moved), &moved, old, true), Verdict::Restart);
        assert_eq!(verdict(Some(&moved), &moved, moved.own_address(), true), Verdict::Nothing);
        assert_eq!(verdict(Some(&current), &moved, None, true), Verdict::Hosts, "it listens at all addresses");
    }

    #[test]
    fn what_would_break_a_file_is_refused() {
        let good = config("d", 2);
        assert_eq!(validate(&good), Ok(()));
        let bad = |change: fn(&mut DomainConfig)| {
            let mut config = good.clone();
            change(&mut config);
            validate(&config).unwrap_err()
        };
        assert!(bad(|c| c.domain = "../d".into()).contains("no name"));
        assert!(bad(|c| c.domain.clear()).contains("no name"));
        assert!(bad(|c| c.node_map.clear()).contains("0 lines"));
        assert!(bad(|c| c.node_map = "a".into()).contains("whole"));
        assert!(bad(|c| c.node_map = "a\nb c\n".into()).contains("b c"));
        assert!(bad(|c| c.node_map = "a\r\nb\r\n".into()).contains(r"a\r"));
        assert!(bad(|c| c.node_map = "a\n\n".into()).contains("one name a line"));
        assert!(bad(|c| c.index = 4).contains("index 4"));
        assert!(bad(|c| c.hosts[0].0 = "here".into()).contains("here"));
        assert!(bad(|c| c.hosts[0].1 = "a\nb".into()).contains("hosts file"));
    }
}
