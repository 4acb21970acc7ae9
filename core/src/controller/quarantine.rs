use std::fmt;

use super::View;
use crate::api::IMEXDomain;
use crate::protocol::{lists, name};

/// A number of a ComputeDomain that is gone or going, which nodes list that nobody can wait for. It is given to nobody
/// until they come back after a reboot, or a person releases it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined<'a> {
    /// The number.
    pub channel: u32,
    /// Name of the IMEXDomain.
    pub domain: &'a str,
    /// The lost nodes that list it.
    pub nodes: Vec<&'a str>,
}

impl fmt::Display for Quarantined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (channel, domain) = (self.channel, self.domain);
        let nodes = self.nodes.join(", ");
        let first = self.nodes.first().copied().unwrap_or_default();
        write!(
            f,
            "channel {channel} of IMEX domain {domain} stays in quarantine, for node {nodes} is lost and may use it; if it is \
             off for good: heddle channel release --node {first}"
        )
    }
}

/// The ComputeDomain's number in the domain, if it is in quarantine.
pub fn of<'a>(view: &'a View, domain: &'a IMEXDomain, cd_uid: &str) -> Option<Quarantined<'a>> {
    let entry = domain.status.as_ref()?.channels.get(cd_uid)?;
    if view.cd(cd_uid).is_some_and(|cd| !cd.deleting) {
        return None;
    }
    let domain = name(domain);
    let nodes: Vec<&str> =
        view.nodes_with(cd_uid).filter(|node| lists(node, domain, cd_uid).is_some()).map(name).collect();
    let lost = !nodes.is_empty() && nodes.iter().all(|node| view.lost(node));
    lost.then_some(Quarantined { channel: entry.channel, domain, nodes })
}

/// How many numbers of the domain are in quarantine.
pub fn count(view: &View, domain: &IMEXDomain) -> usize {
    let entries = domain.status.iter().flat_map(|status| status.channels.keys());
    entries.filter(|uid| of(view, domain, uid).is_some()).count()
}
