use std::cell::RefCell;
use std::collections::BTreeMap;

use heddle_core::claim::ClaimKey;

/// Which ComputeDomains have claims on this node: a pod can use only those of its namespace, so one that is alone there
/// needs no look at pods.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Namespace and ComputeDomain's UID, by claim UID.
    claims: RefCell<BTreeMap<String, (String, String)>>,
}

impl Neighbours {
    /// The claim is prepared, or about to be.
    pub(crate) fn come(&self, claim: &ClaimKey, cd_uid: &str) {
        let of = (claim.namespace.clone(), cd_uid.to_owned());
        self.claims.borrow_mut().insert(claim.uid.clone(), of);
    }

    /// The claim is undone, or was never prepared.
    pub(crate) fn go(&self, claim: &ClaimKey) {
        self.claims.borrow_mut().remove(&claim.uid);
    }

    /// Whether a ComputeDomain other than this one has claims of the namespace.
    pub(crate) fn has_other(&self, namespace: &str, cd_uid: &str) -> bool {
        self.claims.borrow().values().any(|(space, other)| space == namespace && other != cd_uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_compute_domain_of_the_namespace_counts_while_it_has_claims() {
        let claim =
            |namespace: &str, uid: &str| ClaimKey { namespace: namespace.into(), name: uid.into(), uid: uid.into() };
        let neighbours = Neighbours::default();
        neighbours.come(&claim("team", "1"), "green");
        neighbours.come(&claim("other", "2"), "blue");
        assert!(!neighbours.has_other("team", "green") && neighbours.has_other("team", "yellow"));
        neighbours.come(&claim("team", "3"), "blue");
        assert!(neighbours.has_other("team", "green"));
        neighbours.go(&claim("team", "3"));
        assert!(!neighbours.has_other("team", "green"));
    }
}
