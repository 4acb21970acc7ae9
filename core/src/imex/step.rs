use super::{Daemon, DomainConfig};

/// What is to be done to the daemon now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is as it should be, or too little is known to touch it.
    Nothing,
    /// Give the runner this configuration. With `disruptive`, the daemon is restarted by it: only with the word of the
    /// channel allocator that no claim is prepared on the node, and none will be until the switch is done.
    Apply {
        /// What to serve.
        config: DomainConfig,
        /// Whether a running daemon ends.
        disruptive: bool,
    },
    /// The node serves no domain any more: end the daemon, with the same word.
    Stop,
    /// It must change, but ending a daemon kills every job on the node that holds imported memory: wait until the
    /// claims are gone.
    WaitForLeave(String),
}

/// What to do, from what should be (`desired`: none if the node is assigned to no domain), what was `applied` last over
/// this connection to the runner, what is, and whether claims are prepared here.
pub fn next(desired: Option<&DomainConfig>, applied: Option<&DomainConfig>, actual: &Daemon, prepared: bool) -> Step {
    let serves = actual.domain.as_deref();
    let Some(config) = desired else {
        return match serves {
            None => Step::Nothing,
            Some(domain) if prepared => {
                Step::WaitForLeave(format!("the IMEX daemon serves domain {domain} for claims that are prepared here"))
            }
            Some(_) => Step::Stop,
        };
    };
    if serves == Some(config.domain.as_str()) && applied == Some(config) {
        return Step::Nothing;
    }
    // A runner that was just met may run this very configuration, or one that differs in the hosts alone. It compares:
    // the first Apply over a connection therefore does not claim to be disruptive as long as domain and map agree.
    let disruptive = match (serves, applied) {
        (None, _) => false,
        (Some(domain), _) if domain != config.domain || actual.node_map_hash != config.node_map_hash() => true,
        (Some(_), None) => false,
        (Some(_), Some(applied)) => !config.needs_no_restart(applied),
    };
    if disruptive && prepared {
        return Step::WaitForLeave(format!(
            "the IMEX daemon must change from domain {} to {} or to other settings, but claims are prepared here",
            serves.unwrap_or_default(),
            config.domain
        ));
    }
    Step::Apply { config: config.clone(), disruptive }
}

#[cfg(test)]
mod tests {
    use super::super::domain::tests::{domain, node};
    use super::super::readiness::tests::{config, ready};
    use super::super::{DaemonState, desired};
    use super::*;

    #[test]
    fn a_daemon_that_is_as_it_should_be_is_left_alone() {
        let config = config();
        assert_eq!(next(Some(&config), Some(&config), &ready(&config), true), Step::Nothing);
        let crashed = Daemon { state: DaemonState::Down, ..ready(&config) };
        assert_eq!(next(Some(&config), Some(&config), &crashed, false), Step::Nothing, "the runner restarts it");
    }

    #[test]
    fn a_runner_without_a_domain_gets_it_at_once() {
        let config = config();
        for prepared in [false, true] {
            let step = next(Some(&config), None, &Daemon::default(), prepared);
            assert_eq!(step, Step::Apply { config: config.clone(), disruptive: false });
        }
    }

    #[test]
    fn new_hosts_disturb_nobody() {
        let before = config();
        let after = desired(&node("n1", "d"), Some(&domain("d", 3))).unwrap();
        let step = next(Some(&after), Some(&before), &ready(&before), true);
        assert_eq!(step, Step::Apply { config: after, disruptive: false });
    }

    #[test]
    fn a_switch_waits_for_the_claims() {
        let before = config();
        let after = desired(&node("n1", "e"), Some(&domain("e", 2))).unwrap();
        for applied in [None, Some(&before)] {
            assert!(matches!(next(Some(&after), applied, &ready(&before), true), Step::WaitForLeave(_)));
            let step = next(Some(&after), applied, &ready(&before), false);
            assert_eq!(step, Step::Apply { config: after.clone(), disruptive: true });
        }
        let renumbered = DomainConfig { index: 0, ..before.clone() };
        assert!(matches!(next(Some(&renumbered), Some(&before), &ready(&before), true), Step::WaitForLeave(_)));
    }

    #[test]
    fn a_runner_that_was_just_met_is_asked_to_compare() {
        let config = config();
        let step = next(Some(&config), None, &ready(&config), true);
        assert_eq!(step, Step::Apply { config, disruptive: false });
    }

    #[test]
    fn a_node_without_a_domain_ends_its_daemon_when_nobody_uses_it() {
        let config = config();
        assert_eq!(next(None, None, &Daemon::default(), false), Step::Nothing);
        assert_eq!(next(None, Some(&config), &ready(&config), false), Step::Stop);
        assert!(matches!(next(None, Some(&config), &ready(&config), true), Step::WaitForLeave(_)));
    }
}
