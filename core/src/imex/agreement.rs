//! The condition of an IMEXNode that says whether its prepared claims and the channel map agree.

use std::collections::BTreeMap;

use crate::condition::{Condition, Draft, draft, enumerate};
use crate::fault::{Fault, reason};

/// Type of the condition.
pub const CHANNELS_AGREE: &str = "ChannelsAgree";

/// The condition for these clashes, by ComputeDomain UID.
pub fn condition(clashes: &BTreeMap<String, Fault>) -> Draft {
    if clashes.is_empty() {
        return draft(
            CHANNELS_AGREE,
            "True",
            "AsExpected",
            "prepared claims use the channels that the channel map gives them",
        );
    }
    let told = enumerate(clashes.values().map(|fault| fault.message.clone()));
    draft(CHANNELS_AGREE, "False", reason::CHANNEL_CLASH, told)
}

/// The node has reported clashes, maybe by an earlier agent.
pub fn says_otherwise(conditions: &[Condition]) -> bool {
    conditions.iter().any(|condition| condition.type_ == CHANNELS_AGREE && condition.status == "False")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clash_is_a_condition_until_it_passes() {
        let fault = Fault::permanent(reason::CHANNEL_CLASH, "claims use channel 4; delete these pods");
        let clash = condition(&[("green".to_owned(), fault)].into());
        assert_eq!((clash.status, clash.message.as_str()), ("False", "claims use channel 4; delete these pods"));
        let settled = crate::condition::settle(&[], vec![clash], None, "2026-01-01T00:00:00Z");
        assert!(says_otherwise(&settled));
        let well = crate::condition::settle(&settled, vec![condition(&BTreeMap::new())], None, "2026-01-02T00:00:00Z");
        assert!(!says_otherwise(&well) && !says_otherwise(&[]));
    }
}
