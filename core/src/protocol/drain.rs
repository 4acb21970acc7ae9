use std::collections::BTreeSet;

use crate::api::{ChannelState, IMEXDomain, IMEXDomainStatus};

/// Closes the channels of ComputeDomains that are gone to new enters. `None` if none of them is Active.
///
/// Guard of the write: the resourceVersion of `domain`. `gone` are UIDs: a ComputeDomain created anew under the same
/// name is another.
pub fn drain(domain: &IMEXDomain, gone: &BTreeSet<String>) -> Option<IMEXDomainStatus> {
    turn(domain, gone, ChannelState::Active, ChannelState::Draining)
}

/// The channels of these ComputeDomains that are in one state, put into another: all of them are one change of the map.
/// `None` if there are none.
pub(super) fn turn(
    domain: &IMEXDomain,
    uids: &BTreeSet<String>,
    from: ChannelState,
    to: ChannelState,
) -> Option<IMEXDomainStatus> {
    let mut status = domain.status.clone()?;
    let epoch = status.epoch.saturating_add(1);
    let mut changed = false;
    for (_, entry) in status.channels.iter_mut().filter(|(uid, entry)| entry.state == from && uids.contains(*uid)) {
        entry.state = to;
        entry.epoch = epoch;
        changed = true;
    }
    status.epoch = epoch;
    changed.then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::samples::*;

    #[test]
    fn a_batch_is_one_epoch_and_one_write() {
        let domain = with_channel(with_channel(with_channel(shared("d"), "a", 1), "b", 2), "c", 3);
        let status = drain(&domain, &["a", "b", "nobody"].map(String::from).into()).unwrap();
        assert_eq!(status.epoch, 4);
        let states: Vec<_> = status.channels.values().map(|e| (e.state, e.epoch)).collect();
        assert_eq!(states, [(ChannelState::Draining, 4), (ChannelState::Draining, 4), (ChannelState::Active, 3)]);
        let drained = IMEXDomain { status: Some(status), ..domain };
        assert_eq!(drain(&drained, &["a".to_string()].into()), None);
    }
}
