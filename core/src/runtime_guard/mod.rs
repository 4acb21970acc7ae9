//! The second door: whether the node's container runtime gives a pod IMEX channels by itself.
//!
//! Where NVIDIA's runtime is installed, a pod may ask it for any channel by `NVIDIA_IMEX_CHANNELS` or by a mount, past
//! claims and ComputeDomains, unless `features.ignore-imex-channel-requests` is on in the toolkit's configuration
//! (NVIDIA/nvidia-container-toolkit PR 943, 952, 1267). `docs/runtime-guard.md` has the facts with their sources.

mod judge;
#[cfg(test)]
mod judge_tests;
mod toolkit;

pub use judge::{Facts, Program, beside, is_nvidia, judge};
pub use toolkit::config_of_wrapper;

use crate::condition::{Draft, draft};
use crate::fault::{Fault, reason};

/// Type of the IMEXNode's condition.
pub const RUNTIME_GUARDED: &str = "RuntimeGuarded";

/// The text by which a program of the toolkit shows that it knows the setting.
pub const KEY: &str = toolkit::KEY;

/// What is done about an open door.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is told.
    #[default]
    Warn,
    /// It is told, and the node gives no channel.
    Require,
    /// Nobody looks.
    Off,
}

/// What is known of the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A pod that is not privileged gets no channel that way.
    Closed,
    /// The container runtime has no runtime of NVIDIA's.
    NotNvidia,
    /// A pod can get any channel.
    Open {
        /// By what.
        why: String,
        /// What to set, and in which file.
        set: String,
    },
    /// It cannot be told.
    Unknown {
        /// What could not be read.
        why: String,
    },
}

impl Verdict {
    /// All labels, for zero series.
    pub const LABELS: [&'static str; 4] = ["closed", "not-nvidia", "open", "unknown"];

    /// Its label in metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::NotNvidia => "not-nvidia",
            Self::Open { .. } => "open",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// The door, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nobody looks.
    Off,
    /// Somebody looks.
    On {
        /// Whether an open door withholds the node's channels.
        require: bool,
        /// What is known; none before the first look.
        verdict: Option<Verdict>,
    },
}

impl Guard {
    /// Before the first look.
    pub fn new(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::Warn => Self::On { require: false, verdict: None },
            Mode::Require => Self::On { require: true, verdict: None },
        }
    }

    /// The same after a look.
    pub fn seen(&self, verdict: Verdict) -> Self {
        match self {
            Self::Off => Self::Off,
            Self::On { require, .. } => Self::On { require: *require, verdict: Some(verdict) },
        }
    }

    /// Whether it is not known yet what it will say.
    pub fn awaits_look(&self) -> bool {
        matches!(self, Self::On { require: true, verdict: None })
    }

    /// Why the node gives no channel.
    pub fn withholds(&self) -> Option<Fault> {
        let Self::On { require: true, verdict } = self else { return None };
        let fault = |reason, text: String| Some(Fault::retryable(reason, text));
        match verdict {
            None => fault(
                reason::RUNTIME_GUARD_UNKNOWN,
                "the container runtime's configuration has not been read yet".into(),
            ),
            Some(Verdict::Closed | Verdict::NotNvidia) => None,
            Some(Verdict::Open { why, set }) => fault(reason::RUNTIME_GUARD_OPEN, format!("{why}; {set}")),
            Some(Verdict::Unknown { why }) => fault(reason::RUNTIME_GUARD_UNKNOWN, unknown(why)),
        }
    }

    /// The IMEXNode's condition; none before the first look.
    pub fn condition(&self) -> Option<Draft> {
        let verdict = match self {
            Self::Off => {
                let text =
                    "nobody looks whether the container runtime gives pods IMEX channels: --runtime-guard is off";
                return Some(draft(RUNTIME_GUARDED, "Unknown", "Off", text));
            }
            Self::On { verdict, .. } => verdict.as_ref()?,
        };
        Some(match verdict {
            Verdict::Closed => draft(
                RUNTIME_GUARDED,
                "True",
                "Closed",
                "the NVIDIA Container Toolkit ignores requests for IMEX channels",
            ),
            Verdict::NotNvidia => {
                draft(RUNTIME_GUARDED, "True", "NotNvidia", "the container runtime has no runtime of NVIDIA's")
            }
            Verdict::Open { why, set } => {
                draft(RUNTIME_GUARDED, "False", reason::RUNTIME_GUARD_OPEN, format!("{why}; {set}"))
            }
            Verdict::Unknown { why } => draft(RUNTIME_GUARDED, "Unknown", reason::RUNTIME_GUARD_UNKNOWN, unknown(why)),
        })
    }
}

fn unknown(why: &str) -> String {
    format!(
        "whether the container runtime gives pods IMEX channels cannot be told: {why}; set --host-root, \
         --container-runtime-config and --toolkit-config, or correct the file"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_require_withholds_and_only_what_is_not_known_to_be_safe() {
        let open = || Verdict::Open { why: "w".into(), set: "s".into() };
        let unknown = || Verdict::Unknown { why: "w".into() };
        for (mode, verdict, withheld) in [
            (Mode::Require, Some(open()), Some(reason::RUNTIME_GUARD_OPEN)),
            (Mode::Require, Some(unknown()), Some(reason::RUNTIME_GUARD_UNKNOWN)),
            (Mode::Require, None, Some(reason::RUNTIME_GUARD_UNKNOWN)),
            (Mode::Require, Some(Verdict::Closed), None),
            (Mode::Require, Some(Verdict::NotNvidia), None),
            (Mode::Warn, Some(open()), None),
            (Mode::Warn, None, None),
            (Mode::Off, Some(open()), None),
        ] {
            let guard = Guard::new(mode);
            let guard = verdict.map_or(guard.clone(), |verdict| guard.seen(verdict));
            assert_eq!(guard.withholds().map(|fault| fault.reason), withheld, "{guard:?}");
        }
    }

    #[test]
    fn the_condition_says_what_to_set() {
        let open = Verdict::Open { why: "pods get channels".into(), set: "set x in /y".into() };
        let said = |guard: Guard| guard.condition().map(|draft| (draft.status, draft.reason, draft.message));
        let guard = Guard::new(Mode::Warn);
        assert_eq!(said(guard.clone()), None, "nothing is said before it was looked");
        let expected = ("False", "RuntimeGuardOpen".to_owned(), "pods get channels; set x in /y".to_owned());
        assert_eq!(said(guard.seen(open.clone())), Some(expected));
        assert_eq!(said(guard.seen(Verdict::NotNvidia)).map(|said| said.0), Some("True"));
        assert_eq!(
            said(Guard::new(Mode::Off).seen(open)).map(|said| (said.0, said.1)),
            Some(("Unknown", "Off".into()))
        );
    }
}
