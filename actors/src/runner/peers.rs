use std::time::Duration;

use heddle_core::imex::{DomainConfig, Links, OwnRow, links};
use heddle_proto::runner::State;
use tokio::time::Instant;

use super::Timing;

/// When to ask the daemon for its connections: now and then, and when its log says something.
#[derive(Debug)]
pub(super) struct Peers {
    /// None while a question is under way, and before the daemon was READY.
    next: Option<Instant>,
    asked: Option<Instant>,
    /// The log's events at the last question.
    events: u64,
    /// The last question came of the log, and how many in a row did that brought nothing new: a daemon that logs our very
    /// questions is not asked for ever.
    prompted: bool,
    in_vain: u32,
    /// When connections were last to be made anew.
    disturbed: Instant,
}

impl Peers {
    /// Of a daemon that starts now.
    pub(super) fn new() -> Self {
        Self { next: None, asked: None, events: 0, prompted: false, in_vain: 0, disturbed: Instant::now() }
    }

    /// When to ask.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// The daemon is READY.
    pub(super) fn ready(&mut self, now: Instant) {
        if self.asked.is_none() {
            self.next = Some(now);
        }
    }

    /// It is asked now, with so many events in its log.
    pub(super) fn ask(&mut self, now: Instant, events: u64) {
        (self.next, self.asked, self.events) = (None, Some(now), events);
    }

    /// It cannot be asked yet.
    pub(super) fn postpone(&mut self, now: Instant, timing: &Timing) {
        self.next = Some(now + timing.poll_peers_least);
    }

    /// Its connections are to be made anew: until then peers may be missing.
    pub(super) fn disturb(&mut self, now: Instant, timing: &Timing) {
        (self.disturbed, self.in_vain) = (now, 0);
        self.look_soon(timing);
    }

    /// It has logged something.
    pub(super) fn hear(&mut self, events: u64, timing: &Timing) {
        if events != self.events {
            self.look_soon(timing);
        }
    }

    fn look_soon(&mut self, timing: &Timing) {
        let (Some(asked), Some(next)) = (self.asked, &mut self.next) else { return };
        let soon = asked + timing.poll_peers_least.saturating_mul(1 << self.in_vain.min(5));
        if soon < *next {
            (*next, self.prompted) = (soon, true);
        }
    }

    /// It has answered; whether that was news, and how many events there are by now.
    pub(super) fn answered(&mut self, now: Instant, pause: Duration, news: bool, events: u64, timing: &Timing) {
        self.in_vain = if self.prompted && !news { self.in_vain.saturating_add(1) } else { 0 };
        self.prompted = false;
        self.next = Some(now + pause);
        self.hear(events, timing);
    }

    /// Puts an answer into the state; how long to wait until the next question. Where there is none the last one stays: the
    /// matrix is no condition of anything.
    pub(super) fn show(
        &self,
        state: &mut State,
        row: Result<Option<OwnRow>, String>,
        config: &DomainConfig,
        timing: &Timing,
        unix_ms: i64,
    ) -> Duration {
        let nothing = || Err("nvidia-imex-ctl says nothing of this node".to_owned());
        let row = match row.and_then(|row| row.map_or_else(nothing, Ok)) {
            Ok(row) => row,
            Err(why) => {
                if state.links_unknown.is_empty() {
                    state.links_since_unix_ms = unix_ms;
                }
                state.links_unknown = why;
                return timing.poll_missing_peers;
            }
        };
        let Links { connected, missing } = links(&row, config);
        let complete = missing.is_empty();
        if !complete && self.disturbed.elapsed() < timing.peers_settle {
            return timing.poll_peers_least;
        }
        if state.links_since_unix_ms == 0 || !state.links_unknown.is_empty() {
            state.links_since_unix_ms = unix_ms;
        }
        state.links_unknown.clear();
        state.peers_connected = u32::try_from(connected.len()).unwrap_or(u32::MAX);
        state.connected = connected.into_iter().collect();
        state.missing = missing.into_iter().map(|peer| (peer.index, peer.state)).collect();
        state.daemon_version = row.version;
        if complete { timing.poll_peers } else { timing.poll_missing_peers }
    }
}

/// Of a daemon that has not been asked yet, or that does not run.
pub(super) fn forget(state: &mut State) {
    state.peers_connected = 0;
    state.connected.clear();
    state.missing.clear();
    state.links_unknown.clear();
    state.links_since_unix_ms = 0;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn config() -> DomainConfig {
        let host = |address: &str| (address.to_owned(), "name".to_owned());
        DomainConfig { hosts: vec![host("10.0.0.1"), host("10.0.0.2")], ..DomainConfig::default() }
    }

    fn row(word: &str) -> Result<Option<OwnRow>, String> {
        Ok(Some(OwnRow { connections: [(1, word.to_owned())].into(), ..OwnRow::default() }))
    }

    #[test]
    fn a_word_in_the_log_is_a_question_soon_and_a_log_of_our_questions_is_not_one_for_ever() {
        let (timing, mut peers, mut now) = (Timing::default(), Peers::new(), Instant::now());
        peers.hear(7, &timing);
        assert_eq!(peers.due(), None, "not before it is READY");
        peers.ready(now);
        assert_eq!(peers.due(), Some(now));
        let mut pauses = Vec::new();
        for events in 0..8 {
            peers.ask(now, events);
            assert_eq!(peers.due(), None);
            // Each question is logged.
            peers.answered(now, timing.poll_peers, false, events + 1, &timing);
            let next = peers.due().unwrap();
            pauses.push(next - now);
            now = next;
        }
        assert_eq!(pauses[..6], [1, 2, 4, 8, 16, 30].map(|seconds| SECOND * seconds));
        // What is news is asked for at once again.
        peers.ask(now, 9);
        peers.answered(now, timing.poll_peers, true, 9, &timing);
        assert_eq!(peers.due(), Some(now + timing.poll_peers));
        peers.hear(10, &timing);
        assert_eq!(peers.due(), Some(now + SECOND));
    }

    #[test]
    fn what_is_missing_is_said_when_it_has_had_its_time() {
        let (timing, peers, mut state) = (Timing::default(), Peers::new(), State::default());
        let mut show = |peers: &Peers, row, at| {
            let pause = peers.show(&mut state, row, &config(), &timing, at);
            (pause, state.clone())
        };
        let (pause, said) = show(&peers, row("NEVER_CONNECTED"), 1);
        assert_eq!((pause, said.links_since_unix_ms), (timing.poll_peers_least, 0), "it has just begun");
        let (pause, said) = show(&peers, row("CONNECTED"), 2);
        assert_eq!((pause, said.links_since_unix_ms, said.connected), (timing.poll_peers, 2, vec![1]));
        let later = Peers { disturbed: Instant::now() - timing.peers_settle, ..Peers::new() };
        let (pause, said) = show(&later, row("RECOVERING"), 3);
        assert_eq!((pause, said.missing), (timing.poll_missing_peers, [(1, "RECOVERING".to_owned())].into()));
        assert_eq!(said.links_since_unix_ms, 2, "known it was before");
        for (at, why) in [(4, Err("it hangs".to_owned())), (5, Ok(None))] {
            let (_, said) = show(&later, why, at);
            assert_eq!((said.links_since_unix_ms, said.missing.len()), (4, 1), "the last word stays");
            assert!(!said.links_unknown.is_empty());
        }
        let (_, said) = show(&later, row("CONNECTED"), 6);
        assert_eq!((said.links_since_unix_ms, said.links_unknown.as_str(), said.missing.len()), (6, "", 0));
    }
}
