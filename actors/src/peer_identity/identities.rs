use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_core::imex::Identity;

/// The identities that the node has, and why it lacks others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    /// By the name of the IMEXDomain.
    pub of_domains: BTreeMap<String, Arc<Identity>>,
    /// One that is used in every domain: somebody else's certificates.
    pub of_all: Option<Arc<Identity>>,
    /// What is in the way, by IMEXDomain.
    pub missing: BTreeMap<String, String>,
    /// What is in the way of all.
    pub missing_all: Option<String>,
}

impl Identities {
    /// The identity to show in a domain.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn of(&self, domain: &str) -> Result<&Arc<Identity>, String> {
        self.of_all.as_ref().or_else(|| self.of_domains.get(domain)).ok_or_else(|| {
            let why = self.missing_all.as_ref().or_else(|| self.missing.get(domain));
            why.cloned().unwrap_or_else(|| format!("no certificate for IMEX domain {domain} has been asked for yet"))
        })
    }
}
