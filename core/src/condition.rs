//! Conditions of our objects.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// A condition's message has at most 32 KiB, an Event's 1 KiB.
const LONGEST: usize = 1000;
/// Things that a message names before it says how many more there are.
const NAMED: usize = 5;

/// One condition, before it is known when it turned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its type.
    pub type_: &'static str,
    /// `True`, `False`, `Unknown`.
    pub status: &'static str,
    /// Its reason.
    pub reason: String,
    /// Its message.
    pub message: String,
}

/// A draft whose message is cut to what an Event takes.
pub fn draft(type_: &'static str, status: &'static str, reason: &str, message: impl Into<String>) -> Draft {
    Draft { type_, status, reason: reason.into(), message: cut(message.into()) }
}

/// A message, cut to what an Event takes. Words of others may be in it.
pub fn cut(mut message: String) -> String {
    if message.len() > LONGEST {
        let cut = (0..LONGEST).rev().find(|at| message.is_char_boundary(*at)).unwrap_or_default();
        message.truncate(cut);
        message.push('…');
    }
    message
}

/// The first few things, and how many more there are.
pub fn enumerate(things: impl Iterator<Item = String>) -> String {
    let things: Vec<String> = things.collect();
    let more = things.len().saturating_sub(NAMED);
    let named = things.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// Gives each condition the time since when it holds.
pub fn settle(before: &[Condition], drafts: Vec<Draft>, generation: Option<i64>, now: &str) -> Vec<Condition> {
    let now = now.parse().map(Time).unwrap_or(Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    let settle = |draft: Draft| {
        let known = before.iter().find(|known| known.type_ == draft.type_ && known.status == draft.status);
        Condition {
            last_transition_time: known.map_or_else(|| now.clone(), |known| known.last_transition_time.clone()),
            message: draft.message,
            observed_generation: generation,
            reason: draft.reason,
            status: draft.status.into(),
            type_: draft.type_.into(),
        }
    };
    drafts.into_iter().map(settle).collect()
}

/// The same, where only some of an object's conditions are known: the others stay as they were reported.
pub fn settle_some(before: &[Condition], drafts: Vec<Draft>, now: &str) -> Vec<Condition> {
    let is_new = |condition: &&Condition| !drafts.iter().any(|draft| draft.type_ == condition.type_);
    let mut all: Vec<_> = before.iter().filter(is_new).cloned().collect();
    all.extend(settle(before, drafts, None, now));
    all.sort_by(|a, b| a.type_.cmp(&b.type_));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_stays_as_it_was_reported() {
        let first = settle_some(&[], vec![draft("B", "True", "R", "m")], "2026-01-01T00:00:00Z");
        let second = settle_some(&first, vec![draft("A", "False", "R", "m")], "2027-01-01T00:00:00Z");
        let said: Vec<_> = second.iter().map(|c| (c.type_.as_str(), c.last_transition_time.0.to_string())).collect();
        assert_eq!(said, [("A", "2027-01-01T00:00:00Z".into()), ("B", "2026-01-01T00:00:00Z".into())]);
        assert_eq!(settle_some(&second, vec![draft("A", "False", "R", "m")], "2028-01-01T00:00:00Z"), second);
    }
}
