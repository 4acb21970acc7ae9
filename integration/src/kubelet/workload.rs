//! What a container would do if it ran a process: nothing, for ever or for a while.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};

/// Annotation of a pod: its containers end well after so many seconds.
pub const RUN_SECONDS: &str = "heddle.dev/run-seconds";

/// How long a container runs and how it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Run {
    /// Until it is stopped.
    Forever,
    /// By itself.
    Ends {
        /// After so long.
        after: Duration,
        /// With this code.
        code: i32,
    },
}

impl Run {
    /// What this container does. Its command counts if it is made of `sleep`, `true`, `false`, `exit` and `echo`;
    /// then the pod's annotation; else an init container is done at once and any other runs for ever.
    pub fn of(pod: &Pod, container: &Container, completes: bool) -> Self {
        let words: Vec<&str> = container.command.iter().chain(&container.args).flatten().map(String::as_str).collect();
        if let Some(run) = Self::command(&words) {
            return run;
        }
        if completes {
            return Self::Ends { after: Duration::ZERO, code: 0 };
        }
        let annotations = pod.metadata.annotations.as_ref();
        match annotations.and_then(|all| all.get(RUN_SECONDS)).and_then(|text| seconds(text)) {
            Some(after) => Self::Ends { after, code: 0 },
            None => Self::Forever,
        }
    }

    fn command(words: &[&str]) -> Option<Self> {
        let (program, rest) = words.split_first()?;
        match (program.rsplit('/').next()?, rest) {
            ("sh" | "bash" | "ash", [.., flags, script]) if flags.starts_with('-') && flags.ends_with('c') => {
                Self::script(script)
            }
            _ => Self::statement(words),
        }
    }

    fn script(script: &str) -> Option<Self> {
        let mut total = Duration::ZERO;
        let mut last = 0;
        for statement in script.split([';', '\n']).flat_map(|part| part.split("&&")) {
            let words: Vec<&str> = statement.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            match Self::statement(&words)? {
                Self::Forever => return Some(Self::Forever),
                Self::Ends { after, code } => {
                    total += after;
                    last = code;
                }
            }
            if words[0] == "exit" {
                break;
            }
        }
        Some(Self::Ends { after: total, code: last })
    }

    fn statement(words: &[&str]) -> Option<Self> {
        let ends = |after, code| Some(Self::Ends { after, code });
        match words {
            ["sleep", "infinity" | "inf"] => Some(Self::Forever),
            ["sleep", time] => ends(seconds(time.strip_suffix('s').unwrap_or(time))?, 0),
            ["true"] | ["echo", ..] => ends(Duration::ZERO, 0),
            ["false"] => ends(Duration::ZERO, 1),
            ["exit"] => ends(Duration::ZERO, 0),
            ["exit", code] => ends(Duration::ZERO, code.parse().ok()?),
            _ => None,
        }
    }
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Run {
        let command = Some(words.iter().map(|word| (*word).to_owned()).collect());
        Run::of(&Pod::default(), &Container { command, ..Default::default() }, false)
    }

    fn ends(seconds: f64, code: i32) -> Run {
        Run::Ends { after: Duration::from_secs_f64(seconds), code }
    }

    #[test]
    fn commands_of_known_words_end() {
        assert_eq!(run(&["sleep", "2.5"]), ends(2.5, 0));
        assert_eq!(run(&["false"]), ends(0.0, 1));
        assert_eq!(run(&["sh", "-c", "echo hello; sleep 1 && exit 3"]), ends(1.0, 3));
        assert_eq!(run(&["/bin/bash", "-ec", "sleep infinity"]), Run::Forever);
    }

    #[test]
    fn anything_else_runs_for_ever_unless_it_must_complete() {
        assert_eq!(run(&["mpirun", "-n", "8"]), Run::Forever);
        assert_eq!(run(&[]), Run::Forever);
        assert_eq!(Run::of(&Pod::default(), &Container::default(), true), ends(0.0, 0));
    }

    #[test]
    fn the_annotation_gives_the_time() {
        let mut pod = Pod::default();
        pod.metadata.annotations = Some([(RUN_SECONDS.to_owned(), "0.5".to_owned())].into());
        assert_eq!(Run::of(&pod, &Container::default(), false), ends(0.5, 0));
    }
}
