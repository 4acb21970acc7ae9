use super::Line;
use crate::condition::enumerate;

/// The admission policies that tie agents to their nodes.
#[derive(Clone, Debug, Default)]
pub struct PolicyFacts {
    /// Names of those that are not in force; none if the API was not asked, or did not answer.
    pub missing: Option<Vec<String>>,
}

pub(super) fn check(facts: &PolicyFacts) -> Line {
    let check = "agent-policies";
    match facts.missing.as_deref() {
        None => Line::ok(check, "the API server was not asked for them"),
        Some([]) => Line::ok(check, "an agent's token is good for its own node's objects"),
        Some(missing) => Line::warn(
            check,
            format!(
                "an agent's token is good for other nodes' objects: not in force are the ValidatingAdmissionPolicies {}",
                enumerate(missing.iter().cloned())
            ),
            "install them with the Helm chart (admissionPolicies.enabled)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;

    #[test]
    fn each_outcome() {
        for (missing, grade) in [(None, "Ok"), (Some(vec![]), "Ok"), (Some(vec!["heddle-agent-x".to_owned()]), "Warn")]
        {
            let facts = PolicyFacts { missing };
            assert_eq!(graded(&[check(&facts)]), [format!("{grade} agent-policies")], "{facts:?}");
        }
    }
}
