use super::View;
use crate::api::{DomainHealth, IMEXDomain, IMEXNode, IMEXNodeStatus, ImexMode, LinksState, Member};
use crate::condition::{cut, enumerate};
use crate::protocol::name;

/// Whether the node's daemon serves this domain as this member, or why not in words.
///
/// # Errors
/// The reason in words, to follow the node's name.
pub fn serves(node: &IMEXNode, domain: &str, member: &Member) -> Result<(), String> {
    let Some(status) = &node.status else { return Err("has not reported yet".into()) };
    let daemon = &status.daemon;
    if daemon.domain.as_deref() != Some(domain) {
        return Err(match daemon.domain.as_deref() {
            Some(other) => format!("still runs its IMEX daemon for domain {other}"),
            None => format!("runs no IMEX daemon{}", because(daemon.message.as_deref())),
        });
    }
    if daemon.state != "READY" {
        return Err(format!("has its IMEX daemon in state {}{}", daemon.state, because(daemon.message.as_deref())));
    }
    match daemon.index {
        // A host's daemon has the index of the host's own node map.
        Some(index) if index != member.index && status.imex_mode == ImexMode::DriverManaged => {
            Err(format!("says it is member {index} of domain {domain}, it should be {}", member.index))
        }
        _ => Ok(()),
    }
}

fn because(message: Option<&str>) -> String {
    message.map(|message| format!(" ({message})")).unwrap_or_default()
}

/// What two members' daemons say of the connection between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Both say that it stands.
    Connected,
    /// One says that it does not, in the daemon's word.
    Disconnected(String),
    /// Nobody says that it does not, and not both say that it does.
    Unknown,
}

/// The connection between two members that serve the same domain, by what each said last.
pub fn link(one: (&IMEXNode, &Member), other: (&IMEXNode, &Member)) -> Link {
    // A daemon of the host knows its peers by the host's own node map.
    let Some((of_one, of_other)) = indices(one, other) else { return Link::Unknown };
    match (says(one.0, of_other), says(other.0, of_one)) {
        (Link::Disconnected(word), _) | (_, Link::Disconnected(word)) => Link::Disconnected(word),
        (Link::Connected, Link::Connected) => Link::Connected,
        _ => Link::Unknown,
    }
}

/// The indices by which two daemons know each other; none where they know none of the other.
fn indices(one: (&IMEXNode, &Member), other: (&IMEXNode, &Member)) -> Option<(u32, u32)> {
    match (of_host(one.0), of_host(other.0)) {
        (None, None) => Some((one.1.index, other.1.index)),
        (Some(one), Some(other)) => Some((one.daemon.index?, other.daemon.index?)),
        _ => None,
    }
}

/// The status of a node whose host runs the daemon.
fn of_host(node: &IMEXNode) -> Option<&IMEXNodeStatus> {
    node.status.as_ref().filter(|status| status.imex_mode == ImexMode::HostManaged)
}

fn says(node: &IMEXNode, peer: u32) -> Link {
    let Some(links) = node.status.as_ref().and_then(|status| status.daemon.links.as_ref()) else {
        return Link::Unknown;
    };
    if let Some(missing) = links.missing.iter().find(|missing| missing.index == peer) {
        Link::Disconnected(missing.state.clone())
    } else if links.connected.contains(&peer) {
        Link::Connected
    } else {
        Link::Unknown
    }
}

/// Why it is not known how the node's connections are now, to follow its name; none if it is.
fn unheard(node: &IMEXNode) -> Option<String> {
    let Some(links) = node.status.as_ref().and_then(|status| status.daemon.links.as_ref()) else {
        return Some("has not said how its connections are".into());
    };
    let why = links.message.as_deref().unwrap_or("its daemon cannot be asked");
    (links.state == LinksState::Unknown)
        .then(|| format!("has not said since {} how its connections are: {why}", links.since))
}

/// The pairs that are not connected, for people.
pub fn disconnected<'a>(members: &[(&'a IMEXNode, &'a Member)]) -> Vec<String> {
    let pairs =
        members.iter().enumerate().flat_map(|(at, one)| members[at + 1..].iter().map(move |other| (one, other)));
    let words = pairs.filter_map(|(one, other)| match link(*one, *other) {
        Link::Disconnected(word) => Some(format!("{} and {} ({word:.32})", name(one.0), name(other.0))),
        _ => None,
    });
    words.collect()
}

/// The health of a domain over its expected members: those that are neither away nor refused.
///
/// The daemon's own word is about all lines of the node map, used or not, and so DEGRADED for ever in a domain that is
/// not full.
pub fn domain_health(domain: &IMEXDomain, view: &View) -> DomainHealth {
    let members = domain.spec.members.iter().filter(|(_, member)| !member.away);
    let members = members.map(|(node_name, member)| (node_name, view.imex_node(node_name), member));
    let refused = |node: Option<&IMEXNode>| node.is_some_and(|node| node.spec.refused.is_some());
    let expected: Vec<_> = members.filter(|(_, node, _)| !refused(*node)).collect();
    let (mut ready, mut missing) = (Vec::new(), Vec::new());
    for (node_name, node, member) in &expected {
        let state = node.map_or_else(|| Err("has no agent".into()), |node| serves(node, name(domain), member));
        match (node, state) {
            (Some(node), Ok(())) => ready.push((*node, *member)),
            (_, state) => missing.push(format!("{node_name} {}", state.err().unwrap_or_default())),
        }
    }
    let pairs = disconnected(&ready);
    let alone = ready.len() < 2;
    let unheard: Vec<_> = ready
        .iter()
        .filter(|_| !alone)
        .filter_map(|(node, _)| Some(format!("{} {}", name(*node), unheard(node)?)))
        .collect();
    let unsaid = || {
        let mut others = ready.iter().enumerate();
        others.any(|(at, one)| ready[at + 1..].iter().any(|other| link(*one, *other) == Link::Unknown))
    };
    let state = match ready.len() {
        0 if !expected.is_empty() => "Down",
        _ if !missing.is_empty() || !pairs.is_empty() => "Degraded",
        _ if !unheard.is_empty() || unsaid() => "Unknown",
        _ => "Up",
    };
    let disconnected_pairs = pairs.len() as u32;
    let said = [
        enumerate(missing.into_iter()),
        Some(pairs).filter(|pairs| !pairs.is_empty()).map_or_else(String::new, |pairs| told(&pairs)),
        enumerate(unheard.into_iter()),
    ];
    let said = said.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    DomainHealth {
        expected: expected.len() as u32,
        ready: ready.len() as u32,
        disconnected_pairs,
        state: state.into(),
        message: (!said.is_empty()).then(|| cut(said)),
    }
}

/// Pairs that are not connected, in a sentence.
pub fn told(pairs: &[String]) -> String {
    format!("not connected are {}", enumerate(pairs.iter().cloned()))
}

#[cfg(test)]
#[path = "health_tests.rs"]
mod tests;
