use std::collections::BTreeSet;

use crate::api::{ChannelState, IMEXDomain};

/// The ComputeDomains whose channel was taken back while they live, by UID. It may come and go between two writes of a
/// status, which would then say nothing of it.
#[derive(Clone, Debug, Default)]
pub(super) struct TakenBack(BTreeSet<String>);

impl TakenBack {
    /// A domain has changed.
    pub fn see(&mut self, before: Option<&IMEXDomain>, now: &IMEXDomain, alive: impl Fn(&str) -> bool) {
        let has = |uid: &str| now.status.as_ref().is_some_and(|status| status.channels.contains_key(uid));
        let gone = before.into_iter().flat_map(|before| entries(before, ChannelState::Draining));
        self.0.extend(gone.filter(|uid| !has(uid) && alive(uid)).map(String::from));
        for uid in entries(now, ChannelState::Active) {
            self.0.remove(uid);
        }
    }

    /// The ComputeDomain is gone.
    pub fn forget(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Whether it is one of them.
    pub fn has(&self, uid: &str) -> bool {
        self.0.contains(uid)
    }
}

fn entries(domain: &IMEXDomain, state: ChannelState) -> impl Iterator<Item = &str> {
    let all = domain.status.iter().flat_map(|status| &status.channels);
    all.filter(move |(_, entry)| entry.state == state).map(|(uid, _)| uid.as_str())
}
