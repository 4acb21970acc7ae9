//! One NVLink partition.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::fault::{Fault, reason};

/// Key of a clique: `<clusterUUID>.<cliqueId>`. The clique id alone is not unique over clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CliqueId {
    /// UUID of the NVLink cluster.
    pub cluster: Uuid,
    /// The fabric's partition within it.
    pub id: u32,
}

impl fmt::Display for CliqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.cluster.hyphenated(), self.id)
    }
}

impl FromStr for CliqueId {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let parsed = text
            .split_once('.')
            .and_then(|(cluster, id)| Some(Self { cluster: Uuid::parse_str(cluster).ok()?, id: id.parse().ok()? }));
        parsed.filter(|clique| clique.to_string() == text).ok_or_else(|| {
            Fault::permanent(
                reason::MEMBER_MISMATCH,
                format!("{text:?} is no clique, expected <clusterUUID>.<cliqueId>"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clique_has_one_spelling() {
        let text = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.32766";
        assert_eq!(text.parse::<CliqueId>().unwrap().to_string(), text);
        for bad in [
            "",
            "7",
            "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11",
            "0B6FBB2E-7b1a-4a5c-9a53-6f3f5dfb2a11.1",
            "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.01",
            "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.-1",
        ] {
            assert!(bad.parse::<CliqueId>().is_err(), "{bad}");
        }
    }
}
