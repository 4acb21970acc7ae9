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

/// What became of the configuration that was sent last over this connection to the runner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sent {
    /// None was sent.
    #[default]
    Nothing,
    /// The runner has taken it.
    Applied(DomainConfig),
    /// The runner would have to end the daemon for it, and was not told that it may.
    Refused(DomainConfig),
}

/// What to do, from what should be (`desired`: none if the node is assigned to no domain), what was `sent`, what is, and
/// whether claims are prepared here.
pub fn next(desired: Option<&DomainConfig>, sent: &Sent, actual: &Daemon, prepared: bool) -> Step {
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
    if serves == Some(config.domain.as_str()) && matches!(sent, Sent::Applied(applied) if applied == config) {
        return match (config.is_reached_at(actual.listens_at), prepared) {
            (true, _) => Step::Nothing,
            (false, false) => Step::Apply { config: config.clone(), disruptive: true },
            (false, true) => Step::WaitForLeave(format!(
                "the IMEX daemon of domain {} must listen at this node's new address, but claims are prepared here",
                config.domain
            )),
        };
    }
    // A runner that was just met may run this very configuration, or one that differs in the hosts alone. It compares:
    // the first Apply over a connection therefore does not claim to be disruptive as long as domain and map agree.
    let disruptive = serves.is_some_and(|domain| {
        domain != config.domain
            || actual.node_map_hash != config.node_map_hash()
            || match sent {
                Sent::Nothing => false,
                Sent::Applied(applied) => !config.needs_no_restart(applied),
                Sent::Refused(refused) => config.needs_no_restart(refused),
            }
    });
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
        assert_eq!(next(Some(&config), &Sent::Applied(config.clone()), &ready(&config), true), Step::Nothing);
        let crashed = Daemon { state: DaemonState::Down, ..ready(&config) };
        assert_eq!(
            next(Some(&config), &Sent::Applied(config.clone()), &crashed, false),
            Step::Nothing,
            "the runner restarts it"
        );
    }

    #[test]
    fn issues_1443_and_1245_a_daemon_that_peers_look_for_elsewhere_is_told_first_and_restarted_when_nobody_uses_it() {
        let before = config();
        let mut moved = domain("d", 2);
        moved.spec.members.get_mut("n1").unwrap().address = "10.9.9.9".into();
        let after = desired(&node("n1", "d"), Some(&moved)).unwrap();
        let step = next(Some(&after), &Sent::Applied(before.clone()), &ready(&before), true);
        assert_eq!(step, Step::Apply { config: after.clone(), disruptive: false }, "peers' addresses may be new too");
        let told = Sent::Applied(after.clone());
        assert!(matches!(next(Some(&after), &told, &ready(&before), true), Step::WaitForLeave(_)));
        let step = next(Some(&after), &told, &ready(&before), false);
        assert_eq!(step, Step::Apply { config: after.clone(), disruptive: true });
        assert_eq!(next(Some(&after), &told, &ready(&after), false), Step::Nothing);
        let at_all = Daemon { listens_at: None, ..ready(&before) };
        assert_eq!(next(Some(&after), &told, &at_all, false), Step::Nothing);
    }

    #[test]
    fn a_runner_without_a_domain_gets_it_at_once() {
        let config = config();
        for prepared in [false, true] {
            let step = next(Some(&config), &Sent::Nothing, &Daemon::default(), prepared);
            assert_eq!(step, Step::Apply { config: config.clone(), disruptive: false });
        }
    }

    #[test]
    fn new_hosts_disturb_nobody() {
        let before = config();
        let after = desired(&node("n1", "d"), Some(&domain("d", 3))).unwrap();
        let step = next(Some(&after), &Sent::Applied(before.clone()), &ready(&before), true);
        assert_eq!(step, Step::Apply { config: after, disruptive: false });
    }

    #[test]
    fn a_switch_waits_for_the_claims() {
        let before = config();
        let after = desired(&node("n1", "e"), Some(&domain("e", 2))).unwrap();
        for sent in [Sent::Nothing, Sent::Applied(before.clone())] {
            assert!(matches!(next(Some(&after), &sent, &ready(&before), true), Step::WaitForLeave(_)));
            let step = next(Some(&after), &sent, &ready(&before), false);
            assert_eq!(step, Step::Apply { config: after.clone(), disruptive: true });
        }
        let renumbered = DomainConfig { index: 0, ..before.clone() };
        assert!(matches!(
            next(Some(&renumbered), &Sent::Applied(before.clone()), &ready(&before), true),
            Step::WaitForLeave(_)
        ));
    }

    #[test]
    fn a_runner_that_was_just_met_is_asked_to_compare() {
        let config = config();
        let step = next(Some(&config), &Sent::Nothing, &ready(&config), true);
        assert_eq!(step, Step::Apply { config, disruptive: false });
    }

    #[test]
    fn a_runner_that_needs_a_restart_gets_it_when_the_claims_are_gone() {
        let config = config();
        let sent = Sent::Refused(config.clone());
        assert!(matches!(next(Some(&config), &sent, &ready(&config), true), Step::WaitForLeave(_)));
        let step = next(Some(&config), &sent, &ready(&config), false);
        assert_eq!(step, Step::Apply { config, disruptive: true });
    }

    #[test]
    fn a_node_without_a_domain_ends_its_daemon_when_nobody_uses_it() {
        let config = config();
        assert_eq!(next(None, &Sent::Nothing, &Daemon::default(), false), Step::Nothing);
        assert_eq!(next(None, &Sent::Applied(config.clone()), &ready(&config), false), Step::Stop);
        assert!(matches!(next(None, &Sent::Applied(config.clone()), &ready(&config), true), Step::WaitForLeave(_)));
    }
}
