use std::collections::BTreeSet;

use super::{marks, name};
use crate::api::{IMEXDomain, IMEXNode, IMEXNodeStatus};

/// Leaves the channels of these ComputeDomains, after their last claims on the node are undone durably, and notes
/// what of the domain the agent knows. `None` if the node lists none of them.
///
/// Guard of the write: the resourceVersion of `node`. It may be coalesced and retried for ever.
pub fn leave(node: &IMEXNode, domain: Option<&IMEXDomain>, cd_uids: &BTreeSet<String>) -> Option<IMEXNodeStatus> {
    let mut status = node.status.clone()?;
    let before = status.channels.len();
    status.channels.retain(|uid, _| !cd_uids.contains(uid));
    if status.channels.len() == before {
        return None;
    }
    if let Some(domain) = domain.filter(|domain| node.spec.domain.as_deref() == Some(name(*domain))) {
        let epoch = domain.status.as_ref().map_or(0, |status| status.epoch);
        status.observed = Some(marks::observed(status.observed.as_ref(), name(domain), epoch));
    }
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::EpochMark;
    use crate::protocol::samples::*;

    #[test]
    fn leaving_observes_and_never_forgets() {
        let domain = with_channel(shared("d"), "green", 7);
        let mut node = listing("d", "green", 7);
        let status = leave(&node, Some(&domain), &["green".to_string()].into()).unwrap();
        assert!(status.channels.is_empty());
        assert_eq!(status.observed, Some(EpochMark { domain: "d".into(), epoch: 1 }));
        node.status.as_mut().unwrap().observed = Some(EpochMark { domain: "d".into(), epoch: 9 });
        let status = leave(&node, Some(&domain), &["green".to_string()].into()).unwrap();
        assert_eq!(status.observed.unwrap().epoch, 9, "an old view takes no mark back");
    }

    #[test]
    fn leaving_works_without_a_view_and_only_what_is_listed() {
        let node = listing("d", "green", 7);
        assert!(leave(&node, None, &["green".to_string()].into()).unwrap().observed.is_none());
        assert!(leave(&node, Some(&shared("x")), &["green".to_string()].into()).unwrap().observed.is_none());
        assert_eq!(leave(&node, None, &["blue".to_string()].into()), None);
    }
}
