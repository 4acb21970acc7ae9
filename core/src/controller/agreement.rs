use std::fmt;
use std::str::FromStr;

/// Which driver versions may meet in one IMEX domain. NVIDIA documents no rule; the daemon knows a "version mismatch".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverMatch {
    /// Those of one branch: the number before the first point.
    #[default]
    Branch,
    /// Equal ones.
    Exact,
    /// Any.
    Off,
}

impl DriverMatch {
    /// What must be equal of a version; none if nothing must, or if the version is not known.
    pub fn key<'a>(&self, version: &'a str) -> Option<&'a str> {
        let key = match self {
            Self::Branch => version.split('.').next().unwrap_or_default(),
            Self::Exact => version,
            Self::Off => "",
        };
        Some(key).filter(|key| !key.is_empty())
    }
}

const WORDS: [(&str, DriverMatch); 3] =
    [("branch", DriverMatch::Branch), ("exact", DriverMatch::Exact), ("off", DriverMatch::Off)];

impl FromStr for DriverMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, rule)| *rule).ok_or_else(|| format!("{text:?} is none of branch, exact, off"))
    }
}

impl fmt::Display for DriverMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(_, rule)| rule == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

/// How much a node's vote counts on what the nodes of a domain must have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Standing {
    /// It lists a channel of the domain: jobs may run there.
    pub busy: bool,
    /// It is a member.
    pub member: bool,
}

impl Standing {
    /// It is never left out for what it has.
    pub fn established(self) -> bool {
        self.busy || self.member
    }
}

/// What most have. Newcomers have no vote where jobs run, and among equals the busy ones and then the members decide: a
/// single newcomer changes nothing.
pub fn common<T: Ord + Copy>(votes: impl Iterator<Item = (T, Standing)> + Clone) -> Option<T> {
    let at_work = votes.clone().any(|(_, standing)| standing.busy);
    let mut tally: Vec<(T, [usize; 3])> = Vec::new();
    for (value, standing) in votes.filter(|(_, standing)| !at_work || standing.established()) {
        let counts = [1, usize::from(standing.busy), usize::from(standing.member)];
        match tally.iter_mut().find(|(known, _)| *known == value) {
            Some((_, sum)) => sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count),
            None => tally.push((value, counts)),
        }
    }
    tally.into_iter().max_by_key(|(value, counts)| (*counts, *value)).map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Standing = Standing { busy: false, member: false };
    const IDLE: Standing = Standing { busy: false, member: true };
    const BUSY: Standing = Standing { busy: true, member: true };

    fn decide(votes: &[(u32, Standing)]) -> Option<u32> {
        common(votes.iter().copied())
    }

    #[test]
    fn the_majority_is_stable() {
        assert_eq!(decide(&[]), None);
        assert_eq!(decide(&[(1, NEW), (2, NEW), (1, NEW)]), Some(1));
        assert_eq!(decide(&[(1, NEW), (2, NEW)]), Some(2), "the order of names decides nothing");
        assert_eq!(decide(&[(1, IDLE), (2, NEW)]), Some(1), "a single newcomer changes nothing");
        assert_eq!(decide(&[(1, IDLE), (2, NEW), (2, NEW)]), Some(2), "the first to come may be the odd one");
        assert_eq!(decide(&[(1, BUSY), (2, NEW), (2, NEW)]), Some(1), "but not under its jobs");
        assert_eq!(decide(&[(1, BUSY), (2, IDLE)]), Some(1));
        assert_eq!(decide(&[(1, BUSY), (2, IDLE), (2, IDLE), (1, NEW)]), Some(2), "members that change one by one");
    }

    #[test]
    fn versions_are_compared_by_branch_unless_told_otherwise() {
        assert_eq!(DriverMatch::default().key("580.65.06"), Some("580"));
        assert_eq!(DriverMatch::Exact.key("580.65.06"), Some("580.65.06"));
        assert_eq!(DriverMatch::Off.key("580.65.06"), None);
        assert_eq!(DriverMatch::Branch.key(""), None);
        for (word, rule) in WORDS {
            assert_eq!((word.parse(), rule.to_string().as_str()), (Ok(rule), word));
        }
        assert!("major".parse::<DriverMatch>().unwrap_err().contains("branch, exact, off"));
    }
}
