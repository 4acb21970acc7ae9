use crate::api::IMEXNode;
use crate::condition::{Draft, draft};
use crate::fault::{Fault, reason};

/// The IMEXNode's condition: the node has a place in an IMEX domain and may give channels there.
pub const MEMBER: &str = "Member";

/// Why the controller refuses the node: it gives nobody new a channel. A reason of a newer controller that is not known
/// here comes as one that is.
pub fn refusal(node: &IMEXNode) -> Option<Fault> {
    let refused = node.spec.refused.as_ref()?;
    let known = reason::named(&refused.reason).unwrap_or(reason::MEMBER_MISMATCH);
    Some(Fault::retryable(known, &refused.message))
}

/// The condition, by what the controller has written. `clique` is what the node itself says: inside, none without NVLink
/// fabric; nothing is said before it is known.
pub fn member_condition(node: &IMEXNode, clique: Option<&Option<String>>) -> Option<Draft> {
    let Some(clique) = clique? else {
        let text = "the node has no NVLink fabric and needs no IMEX domain";
        return Some(draft(MEMBER, "False", "NoFabric", text));
    };
    Some(match (refusal(node), node.spec.domain.as_deref()) {
        (Some(fault), _) => draft(MEMBER, "False", fault.reason, fault.message),
        (None, Some(domain)) => draft(MEMBER, "True", "Assigned", format!("the node belongs to IMEX domain {domain}")),
        (None, None) => {
            let text =
                format!("the controller has not given the node a place in the IMEX domain of clique {clique} yet");
            draft(MEMBER, "False", reason::DOMAIN_PENDING, text)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::domain::tests::node;
    use super::*;
    use crate::api::Refusal;

    fn said(node: &IMEXNode, clique: Option<&Option<String>>) -> Option<(&'static str, String)> {
        member_condition(node, clique).map(|draft| (draft.status, draft.reason))
    }

    #[test]
    fn the_condition_says_what_the_controller_decided() {
        let clique = Some("c.1".to_owned());
        let mut n0 = node("n0", "d");
        assert_eq!(said(&n0, None), None, "the fabric is not known");
        assert_eq!(said(&n0, Some(&None)), Some(("False", "NoFabric".into())));
        assert_eq!(said(&n0, Some(&clique)), Some(("True", "Assigned".into())));
        n0.spec.refused = Some(Refusal { reason: "DomainFull".into(), message: "m".into() });
        assert_eq!(said(&n0, Some(&clique)), Some(("False", "DomainFull".into())));
        assert_eq!(refusal(&n0), Some(Fault::retryable(reason::DOMAIN_FULL, "m")));
        n0.spec.refused = Some(Refusal { reason: "OfTomorrow".into(), message: "m".into() });
        assert_eq!(refusal(&n0).map(|fault| fault.reason), Some(reason::MEMBER_MISMATCH));
        n0.spec = Default::default();
        assert_eq!(said(&n0, Some(&clique)), Some(("False", "DomainPending".into())));
    }
}
