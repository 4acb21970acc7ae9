//! Whether a node has all that Heddle needs: facts in, one line a check out.
//!
//! `heddle preflight` prints them, the agent looks by the same functions. `docs/preflight.md` explains each line.

mod cdi;
mod channels;
mod daemon;
mod driver;
mod fabric;
mod guard;
mod host;
mod kubelet;
mod policies;
mod programs;
mod rival;

use std::fmt::Write as _;

use serde::Serialize;

pub use cdi::{CdiFacts, folders_of};
pub use channels::ChannelFacts;
pub use daemon::{DaemonFacts, Process};
pub use driver::{DriverFacts, NEEDED, OPTIONAL};
pub use host::HostFacts;
pub use kubelet::{Folder, KubeletFacts};
pub use policies::PolicyFacts;
pub use programs::ProgramFacts;
pub use rival::RivalFacts;

use crate::condition::{Draft, draft, enumerate};
use crate::inventory::Inventory;
use crate::runtime_guard::Guard;

/// Type of the IMEXNode's condition.
pub const PREFLIGHT: &str = "Preflight";

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// It works, or it is not known that it does not; somebody should look.
    Warn,
    /// Pods will not get what they ask for, or get what they must not.
    Fail,
}

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Name of the check: an anchor of `docs/preflight.md`.
    pub check: &'static str,
    /// How it came out.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// What to do, unless all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

impl Line {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, grade: Grade::Ok, found: found.into(), advice: String::new() }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, grade: Grade::Warn, found: found.into(), advice: advice.into() }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, grade: Grade::Fail, found: found.into(), advice: advice.into() }
    }

    /// What was found and what to do, in one sentence.
    pub fn sentence(&self) -> String {
        let found = self.found.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        if self.advice.is_empty() { found } else { format!("{found}; {}", self.advice) }
    }
}

/// All that was found on a node.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The driver's files.
    pub driver: DriverFacts,
    /// The GPUs; or why they cannot be read.
    pub inventory: Result<Inventory, String>,
    /// The kernel module's channels.
    pub channels: ChannelFacts,
    /// The driver's programs.
    pub programs: ProgramFacts,
    /// The second door.
    pub guard: Guard,
    /// The container runtime.
    pub cdi: CdiFacts,
    /// The kubelet's folders.
    pub kubelet: KubeletFacts,
    /// Other drivers of our name.
    pub rival: RivalFacts,
    /// What agents are held to.
    pub policies: PolicyFacts,
    /// IMEX daemons.
    pub daemon: DaemonFacts,
    /// The node itself.
    pub host: HostFacts,
}

/// All checks, from the hardware up.
pub fn check(facts: &Facts) -> Vec<Line> {
    let mut lines = driver::check(&facts.driver, facts.inventory.as_ref().ok());
    lines.extend(fabric::check(&facts.inventory));
    lines.extend(channels::check(&facts.channels));
    lines.push(programs::check(&facts.programs));
    lines.push(daemon::check(&facts.daemon));
    lines.push(guard::check(&facts.guard));
    lines.extend(cdi::check(&facts.cdi));
    lines.extend(kubelet::check(&facts.kubelet));
    lines.push(rival::check(&facts.rival));
    lines.push(policies::check(&facts.policies));
    lines.extend(host::check(&facts.host));
    lines
}

/// For people: one line a check.
pub fn text(lines: &[Line]) -> String {
    let width = lines.iter().map(|line| line.check.len()).max().unwrap_or_default();
    lines.iter().fold(String::new(), |mut text, line| {
        let grade = match line.grade {
            Grade::Ok => "OK  ",
            Grade::Warn => "WARN",
            Grade::Fail => "FAIL",
        };
        let _ = writeln!(text, "{grade}  {:width$}  {}", line.check, line.sentence());
        text
    })
}

/// The worst grade.
pub fn worst(lines: &[Line]) -> Grade {
    lines.iter().map(|line| line.grade).max().unwrap_or(Grade::Ok)
}

/// The IMEXNode's condition: what fails, else what is to be looked at.
pub fn condition(lines: &[Line]) -> Draft {
    let worst = worst(lines);
    let told = lines.iter().filter(|line| line.grade == worst);
    let told = enumerate(told.map(|line| format!("{}: {}", line.check, line.sentence())));
    match worst {
        Grade::Ok => draft(PREFLIGHT, "True", "AsExpected", "every check is well"),
        Grade::Warn => draft(PREFLIGHT, "True", "Warnings", told),
        Grade::Fail => draft(PREFLIGHT, "False", "ChecksFailed", told),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line of each check, `GRADE check`, for the tables of the checks.
    pub fn graded(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|line| format!("{:?} {}", line.grade, line.check)).collect()
    }

    #[test]
    fn the_condition_tells_the_worst() {
        let ok = Line::ok("a", "fine");
        let warn = Line::warn("b", "odd", "look");
        let fail = Line::fail("c", "broken", "mend it");
        let said = |lines: &[Line]| {
            let draft = condition(lines);
            (draft.status, draft.reason, draft.message)
        };
        assert_eq!(said(std::slice::from_ref(&ok)).1, "AsExpected");
        let expected = ("True", "Warnings".to_owned(), "b: odd; look".to_owned());
        assert_eq!(said(&[ok.clone(), warn.clone()]), expected);
        let expected = ("False", "ChecksFailed".to_owned(), "c: broken; mend it".to_owned());
        assert_eq!(said(&[ok, warn, fail]), expected);
    }

    #[test]
    fn a_line_is_one_line() {
        let lines = [Line::ok("a", "fine"), Line::fail("longer", "two\n  lines", "mend it")];
        assert_eq!(text(&lines), "OK    a       fine\nFAIL  longer  two lines; mend it\n");
    }
}
