use super::{marks, name};
use crate::api::{ChannelState, IMEXDomain, IMEXNode, IMEXNodeStatus};

/// Notes that the agent knows of every drain in its view of the domain. `None` when a mark already says so: the
/// controller's fence may have been first.
///
/// Guard of the write: the resourceVersion of `node`.
pub fn observe(node: &IMEXNode, domain: &IMEXDomain) -> Option<IMEXNodeStatus> {
    if node.spec.domain.as_deref() != Some(name(domain)) {
        return None;
    }
    let map = domain.status.as_ref()?;
    let newest = map.channels.values().filter(|entry| entry.state == ChannelState::Draining).map(|e| e.epoch).max()?;
    if marks::mark(node, name(domain)) >= newest {
        return None;
    }
    let mut status = node.status.clone().unwrap_or_default();
    status.observed = Some(marks::observed(status.observed.as_ref(), name(domain), map.epoch));
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EpochMark;
    use crate::protocol::{drain, samples::*};

    #[test]
    fn only_an_unknown_drain_is_worth_a_write() {
        let mut domain = with_channel(shared("d"), "green", 7);
        let mut node = member_of("n1", "d");
        assert_eq!(observe(&node, &domain), None);
        domain.status = drain(&domain, &["green".to_string()].into());
        let status = observe(&node, &domain).unwrap();
        assert_eq!(status.observed, Some(EpochMark { domain: "d".into(), epoch: 2 }));
        node.status = Some(status);
        assert_eq!(observe(&node, &domain), None);
        let mut fenced = member_of("n1", "d");
        fenced.spec.fence = Some(EpochMark { domain: "d".into(), epoch: 2 });
        assert_eq!(observe(&fenced, &domain), None);
        assert_eq!(observe(&member_of("n1", "x"), &domain), None);
    }
}
