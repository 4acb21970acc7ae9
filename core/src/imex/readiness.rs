use super::{Daemon, DaemonState, DomainConfig};

/// Whether the daemon can serve claims of the domain that this node must serve.
///
/// # Errors
/// The reason in words.
pub fn readiness(desired: &DomainConfig, actual: Option<&Daemon>) -> Result<(), String> {
    let wanted = &desired.domain;
    let Some(daemon) = actual else {
        return Err("the node's IMEX runner cannot be reached".into());
    };
    let because = |text: String| match daemon.message.as_str() {
        "" => text,
        why => format!("{text}: {why}"),
    };
    match daemon.domain.as_deref() {
        None => return Err(because(format!("the IMEX daemon is not started for domain {wanted} yet"))),
        Some(serves) if serves != wanted => {
            return Err(because(format!("the IMEX daemon still serves domain {serves}, the node must serve {wanted}")));
        }
        Some(_) => {}
    }
    if daemon.state != DaemonState::Ready {
        return Err(because(format!("the IMEX daemon of domain {wanted} is {}, not READY", daemon.state)));
    }
    if daemon.node_map_hash != desired.node_map_hash() {
        return Err(format!("the IMEX daemon of domain {wanted} runs with another node map than its IMEXDomain has"));
    }
    if let (Some(at), false) = (daemon.listens_at, desired.is_reached_at(daemon.listens_at)) {
        return Err(format!(
            "the IMEX daemon of domain {wanted} listens at {at}, and peers look for this node at {}: it is started anew once no \
             claim is prepared on the node",
            desired.own_address().map(|own| own.to_string()).unwrap_or_default()
        ));
    }
    match daemon.index {
        Some(index) if index == desired.index => Ok(()),
        Some(index) => Err(format!(
            "the IMEX daemon of domain {wanted} says it is member {index}, its IMEXDomain has this node as member {}",
            desired.index
        )),
        None => Err(format!("the IMEX daemon of domain {wanted} has not said which member it is yet")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::desired;
    use super::super::domain::tests::{domain, node};
    use super::*;

    pub fn config() -> DomainConfig {
        desired(&node("n1", "d"), Some(&domain("d", 2))).unwrap()
    }

    pub fn ready(config: &DomainConfig) -> Daemon {
        Daemon {
            domain: Some(config.domain.clone()),
            state: DaemonState::Ready,
            index: Some(config.index),
            node_map_hash: config.node_map_hash(),
            message: String::new(),
            listens_at: config.own_address(),
        }
    }

    #[test]
    fn ready_is_all_of_it_together() {
        let config = config();
        assert_eq!(readiness(&config, Some(&ready(&config))), Ok(()));
    }

    /// Among them upstream 1418 and 1440, an index that is not the daemon's own, and 433, another node map.
    #[test]
    fn issues_1418_1440_and_433_each_thing_that_is_missing_is_named() {
        let config = config();
        let ready = ready(&config);
        let down = Daemon { state: DaemonState::Down, message: "no nvidia-imex below /".into(), ..ready.clone() };
        for (daemon, says) in [
            (None, "runner"),
            (Some(Daemon { domain: None, ..ready.clone() }), "not started"),
            (Some(Daemon { domain: Some("e".into()), ..ready.clone() }), "still serves domain e"),
            (Some(Daemon { state: DaemonState::InitGpu, ..ready.clone() }), "INIT_GPU"),
            (Some(Daemon { state: DaemonState::parse("NOT_READY"), ..ready.clone() }), "NOT_READY"),
            (Some(down), "no nvidia-imex below /"),
            (Some(Daemon { node_map_hash: "0".repeat(64), ..ready.clone() }), "node map"),
            (Some(Daemon { index: Some(0), ..ready.clone() }), "member 0"),
            (Some(Daemon { index: None, ..ready.clone() }), "which member"),
            (Some(Daemon { listens_at: Some([10, 0, 0, 9].into()), ..ready.clone() }), "listens at 10.0.0.9"),
        ] {
            let why = readiness(&config, daemon.as_ref()).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
