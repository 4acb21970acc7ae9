use super::{free::Obstacle, free::obstacle, name};
use crate::api::{ChannelState, EpochMark, IMEXDomain, IMEXNode};

/// The fences that stand between draining channels and their freeing: one per node, for all channels at once.
///
/// A channel that some node still lists is left alone: that node's leave carries a mark, and until then no fence of
/// the others would free anything.
///
/// Guard of each write: the resourceVersion of that copy of the IMEXNode.
pub fn fences(domain: &IMEXDomain, nodes: &[IMEXNode]) -> Vec<(String, EpochMark)> {
    let Some(status) = &domain.status else { return Vec::new() };
    let mark = EpochMark { domain: name(domain).into(), epoch: status.epoch };
    let waiting: Vec<_> = status
        .channels
        .iter()
        .filter(|(_, entry)| entry.state == ChannelState::Draining)
        .filter(|(uid, _)| !nodes.iter().any(|node| super::lists(node, name(domain), uid).is_some()))
        .collect();
    let unmarked = |node: &&IMEXNode| {
        waiting.iter().any(|(uid, entry)| obstacle(domain, node, uid, entry.epoch) == Some(Obstacle::NoMark))
    };
    nodes.iter().filter(unmarked).map(|node| (name(node).to_string(), mark.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{drain, observe, samples::*};

    #[test]
    fn each_unmarked_node_of_the_domain_gets_one_fence() {
        let mut domain = with_channel(with_channel(shared("d"), "a", 1), "b", 2);
        domain.status = drain(&domain, &["a", "b"].map(String::from).into());
        let mut seen = member_of("seen", "d");
        seen.status = observe(&seen, &domain);
        let nodes = [member_of("n1", "d"), member_of("elsewhere", "x"), seen, member_of("n2", "d")];
        let mark = EpochMark { domain: "d".into(), epoch: 3 };
        assert_eq!(fences(&domain, &nodes), [("n1".to_string(), mark.clone()), ("n2".to_string(), mark)]);
    }

    #[test]
    fn a_channel_in_use_asks_for_no_fence() {
        let mut domain = with_channel(shared("d"), "a", 1);
        let nodes = [member_of("n1", "d"), listing("d", "a", 1)];
        assert_eq!(fences(&domain, &nodes), []);
        domain.status = drain(&domain, &["a".to_string()].into());
        assert_eq!(fences(&domain, &nodes), []);
    }
}
