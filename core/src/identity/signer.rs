use super::names::{USAGES, identity_name, request_prefix};
use super::request::{P256, Request};
use crate::api::{IMEXDomain, IMEXNode};
use crate::fault::{Fault, reason};
use crate::protocol::name;

/// Under this the API server says which node a token is bound to (Kubernetes KEP-4193).
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// A shorter life than this is refused by the API server, too.
const SHORTEST: u32 = 600;

/// Who may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agents {
    /// Namespace of the agents' ServiceAccount.
    pub namespace: String,
    /// Its name.
    pub service_account: String,
}

/// A request that is as it must be, as far as it says so itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The node that asks.
    pub node: String,
    /// The IMEXDomain whose identity it asks for.
    pub domain: String,
    /// How long it is to be valid, in seconds.
    pub seconds: u32,
}

/// The node whose agent has made the request.
///
/// # Errors
/// Permanent: it is not an agent, or its token is not bound to a node.
pub fn node_of<'a>(request: &'a Request, agents: &Agents) -> Result<&'a str, Fault> {
    let denied = |what: String| Err(Fault::permanent(reason::NOT_AN_AGENT, what));
    let agent = format!("system:serviceaccount:{}:{}", agents.namespace, agents.service_account);
    if request.username != agent {
        return denied(format!("{:.200} is not the agents' ServiceAccount {agent}", request.username));
    }
    match request.extra.get(NODE_NAME).map(Vec::as_slice) {
        Some([node]) if !node.is_empty() => Ok(node),
        _ => denied(format!("the token of {agent} is not bound to a node; use the token that the kubelet projects")),
    }
}

/// Whether the request asks for nothing but one peer identity, and for which. `longest` is the longest life, in seconds.
///
/// # Errors
/// Permanent: what is not exactly as the agent makes it.
pub fn fits(request: &Request, agents: &Agents, longest: u32) -> Result<Verdict, Fault> {
    let node = node_of(request, agents)?;
    let odd = |what: String| Err(Fault::permanent(reason::REQUEST_NOT_EXACT, what));
    if !request.name.starts_with(&request_prefix(node)) {
        return odd(format!("a request of node {node} is called {}…, not {:.100}", request_prefix(node), request.name));
    }
    let asked = match &request.asked {
        Ok(asked) => asked,
        Err(why) => return odd(format!("the signing request cannot be read: {why:.200}")),
    };
    let Some(domain) = asked.domain() else {
        return odd(format!("{:.200?} is not the one DNS name of a peer identity", asked.dns_names));
    };
    let identity = identity_name(domain);
    if asked.common_names != [identity.as_str()] || !asked.other_subject.is_empty() {
        return odd(format!("the subject is not CN={identity} alone"));
    }
    if let Some(other) = asked.other_names.first() {
        return odd(format!("it asks for a second name: {other:.200}"));
    }
    if let Some(other) = asked.others.first() {
        return odd(format!("it asks for more than a name: {other:.200}"));
    }
    if asked.key != P256 {
        return odd(format!("its key is {:.100}, not {P256}", asked.key));
    }
    if !asked.signed {
        return odd("it is not signed with its own key".into());
    }
    let mut usages: Vec<&str> = request.usages.iter().map(String::as_str).collect();
    usages.sort_unstable();
    if usages != USAGES {
        return odd(format!("the usages are {:.200?}, not {USAGES:?}", request.usages));
    }
    let seconds = request.expiration_seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(longest);
    let verdict = Verdict {
        node: node.to_owned(),
        domain: domain.to_owned(),
        seconds: seconds.clamp(SHORTEST, longest.max(SHORTEST)),
    };
    Ok(verdict)
}

/// Whether the node may have the domain's identity: it is a member, serves it, or is about to.
///
/// # Errors
/// Permanent: it may not.
pub fn member(verdict: &Verdict, node: Option<&IMEXNode>, domain: Option<&IMEXDomain>) -> Result<(), Fault> {
    let Verdict { node: asks, domain: wanted, .. } = verdict;
    let Some(domain) = domain.filter(|domain| name(*domain) == wanted) else {
        return Err(Fault::permanent(reason::NOT_A_MEMBER, format!("there is no IMEXDomain {wanted}")));
    };
    let assigned = node.filter(|node| name(*node) == asks).is_some_and(|node| {
        [&node.spec.domain, &node.spec.next].into_iter().any(|named| named.as_deref() == Some(wanted))
    });
    if assigned || domain.spec.members.contains_key(asks) {
        return Ok(());
    }
    let text = format!("node {asks} is no member of IMEX domain {wanted}, and is not about to become one");
    Err(Fault::permanent(reason::NOT_A_MEMBER, text))
}
