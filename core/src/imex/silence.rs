use std::time::Duration;

/// The first revision of the runner's contract whose watch goes on while nothing changes.
pub const BEAT_CONTRACT: u32 = 4;

/// Beats that may be missed: one may be late on a node that is busy.
const MISSED: u32 = 3;

/// How long a runner may say nothing that says its state again every `beat_ms`; none of one that says changes alone.
pub fn patience(beat_ms: u32) -> Option<Duration> {
    (beat_ms != 0).then(|| Duration::from_millis(beat_ms.into()) * MISSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_runner_that_beats_can_miss_a_beat() {
        assert_eq!(patience(0), None, "a runner of before is silent while nothing changes");
        assert_eq!(patience(5000), Some(Duration::from_secs(15)));
        assert!(patience(u32::MAX).is_some());
    }
}
