use super::DaemonState;
use crate::api::{DaemonStatus, LinksState, MissingPeer};

/// Whether a report of the daemon differs from the one before in what others act upon: that it can be used, where and as
/// whom, which peers it misses, and what must be done about it.
///
/// All else is for people and may wait for a moment: the steps of a start, the end of a certificate, and a peer that has come,
/// for in a clique that boots one after the other every daemon would say so of every other one.
pub fn is_news(before: &DaemonStatus, now: &DaemonStatus) -> bool {
    gist(before) != gist(now)
}

#[derive(PartialEq, Eq)]
struct Gist<'a> {
    usable: bool,
    /// Domain, index and node map of a daemon that is READY.
    ready: Option<(Option<&'a str>, Option<u32>, Option<&'a str>)>,
    /// None before it was asked for its connections.
    links: Option<(LinksState, &'a [MissingPeer])>,
    recovery_action: Option<&'a str>,
}

fn gist(status: &DaemonStatus) -> Gist<'_> {
    let is_ready = DaemonState::parse(&status.state) == DaemonState::Ready;
    let place = || (status.domain.as_deref(), status.index, status.node_map_hash.as_deref());
    Gist {
        usable: status.message.is_none(),
        ready: is_ready.then(place),
        links: status.links.as_ref().map(|links| (links.state, links.missing.as_slice())),
        recovery_action: status.recovery_action.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PeerLinks;

    fn ready() -> DaemonStatus {
        DaemonStatus { state: "READY".into(), domain: Some("d".into()), index: Some(1), ..Default::default() }
    }

    fn starting(state: &str) -> DaemonStatus {
        let message = Some(format!("nvidia-imex says {state}"));
        DaemonStatus { state: state.into(), message, domain: Some("d".into()), ..Default::default() }
    }

    #[test]
    fn issues_732_and_822_the_steps_of_a_start_are_no_news_its_end_is() {
        assert!(!is_news(&starting("INITIALIZING"), &starting("INIT_GPU")));
        assert!(!is_news(&starting("DOWN"), &DaemonStatus { domain: None, ..starting("INITIALIZING") }));
        assert!(is_news(&starting("INIT_GPU"), &ready()));
        assert!(is_news(&ready(), &starting("UNAVAILABLE")));
    }

    fn linked(connected: &[u32], missing: &[u32]) -> DaemonStatus {
        let missing = missing.iter().map(|index| MissingPeer { index: *index, state: "RECOVERING".into() }).collect();
        let links = PeerLinks { connected: connected.to_vec(), missing, ..PeerLinks::default() };
        DaemonStatus { links: Some(PeerLinks { state: LinksState::Known, ..links }), ..ready() }
    }

    #[test]
    fn a_peer_that_has_come_is_no_news_and_one_that_is_missed_is() {
        assert!(is_news(&ready(), &linked(&[2], &[])), "it has been asked");
        assert!(!is_news(&linked(&[2], &[]), &linked(&[2, 3], &[])));
        assert!(is_news(&linked(&[2, 3], &[]), &linked(&[2], &[3])));
        assert!(is_news(&linked(&[2], &[3]), &linked(&[2, 3], &[])));
        let mut unknown = linked(&[2], &[]);
        unknown.links.as_mut().unwrap().state = LinksState::Unknown;
        assert!(is_news(&linked(&[2], &[]), &unknown));
    }

    #[test]
    fn whatever_is_acted_upon_is_news() {
        assert!(!is_news(&ready(), &DaemonStatus { peers_connected: 17, version: "595".into(), ..ready() }));
        assert!(is_news(&ready(), &DaemonStatus { domain: Some("e".into()), ..ready() }));
        assert!(is_news(&ready(), &DaemonStatus { index: Some(2), ..ready() }));
        assert!(is_news(&ready(), &DaemonStatus { node_map_hash: Some("00".into()), ..ready() }));
        assert!(is_news(&ready(), &DaemonStatus { message: Some("it is another member".into()), ..ready() }));
        assert!(is_news(&ready(), &DaemonStatus { recovery_action: Some("GPU 1: reset".into()), ..ready() }));
    }
}
