use super::{Grade, Line};
use crate::runtime_guard::{Guard, Verdict};

/// Where an open door withholds the node's channels it is a failure, else a warning.
pub(super) fn check(guard: &Guard) -> Line {
    let check = "runtime-guard";
    let Some(condition) = guard.condition() else {
        return Line::warn(check, "the container runtime's configuration has not been read yet", "look again");
    };
    let Guard::On { require, verdict } = guard else { return Line::ok(check, condition.message) };
    let grade = if *require { Grade::Fail } else { Grade::Warn };
    match verdict {
        Some(Verdict::Open { why, set }) => Line { check, grade, found: why.clone(), advice: set.clone() },
        Some(Verdict::Unknown { .. }) => Line { check, grade, found: condition.message, advice: String::new() },
        _ => Line::ok(check, condition.message),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::graded;
    use super::*;
    use crate::runtime_guard::Mode;

    #[test]
    fn nvidia_toolkit_pr_943_each_outcome() {
        let open = || Verdict::Open { why: "pods get channels".into(), set: "set x in /y".into() };
        let unknown = || Verdict::Unknown { why: "w".into() };
        for (mode, verdict, grade) in [
            (Mode::Warn, Verdict::Closed, "Ok"),
            (Mode::Warn, Verdict::NotNvidia, "Ok"),
            (Mode::Warn, open(), "Warn"),
            (Mode::Warn, unknown(), "Warn"),
            (Mode::Require, open(), "Fail"),
            (Mode::Require, unknown(), "Fail"),
            (Mode::Off, open(), "Ok"),
        ] {
            let line = check(&Guard::new(mode).seen(verdict));
            assert_eq!(graded(&[line]), [format!("{grade} runtime-guard")]);
        }
        assert_eq!(check(&Guard::new(Mode::Warn).seen(open())).sentence(), "pods get channels; set x in /y");
    }
}
