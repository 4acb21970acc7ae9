use super::View;
use crate::api::{DomainHealth, IMEXDomain, IMEXNode, Member};
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
        Some(index) if index != member.index => {
            Err(format!("says it is member {index} of domain {domain}, it should be {}", member.index))
        }
        _ => Ok(()),
    }
}

fn because(message: Option<&str>) -> String {
    message.map(|message| format!(" ({message})")).unwrap_or_default()
}

/// The health of a domain over its expected members: those that are not away.
///
/// The daemon's own word is about all lines of the node map, used or not, and so DEGRADED for ever in a domain that is
/// not full.
pub fn domain_health(domain: &IMEXDomain, view: &View) -> DomainHealth {
    let expected: Vec<_> = domain.spec.members.iter().filter(|(_, member)| !member.away).collect();
    let serves =
        |node: &str, member: &Member| view.imex_node(node).is_some_and(|n| serves(n, name(domain), member).is_ok());
    let ready = expected.iter().filter(|(node, member)| serves(node, member)).count();
    let state = match ready {
        all if all == expected.len() => "Up",
        0 => "Down",
        _ => "Degraded",
    };
    DomainHealth { expected: expected.len() as u32, ready: ready as u32, state: state.into() }
}
