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
    /// When something of them was last said.
    said: Option<Instant>,
}

impl Peers {
    /// Of a daemon that starts now.
    pub(super) fn new() -> Self {
        let disturbed = Instant::now();
        Self { next: None, asked: None, events: 0, prompted: false, in_vain: 0, disturbed, said: None }
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
    ///
    /// A peer that has come is no hurry: in a clique that boots one after the other, every daemon would say so of every other.
    pub(super) fn show(
        &mut self,
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
        let was_complete = state.links_unknown.is_empty() && state.missing.is_empty();
        let grown =
            connected.len() > state.connected.len() && state.connected.iter().all(|peer| connected.contains(peer));
        let wait = self.said.map_or(Duration::ZERO, |said| timing.peers_settle.saturating_sub(said.elapsed()));
        if complete && was_complete && grown && !wait.is_zero() {
            return wait.max(timing.poll_peers_least);
        }
        self.said = Some(Instant::now());
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
    fn peers_that_come_one_after_the_other_are_told_together() {
        let (timing, mut peers, mut state) = (Timing::default(), Peers::new(), State::default());
        let all = DomainConfig { hosts: vec![("10.0.0.1".into(), "name".into())], ..DomainConfig::default() };
        let row = |peers: &[u32]| {
            let connections = peers.iter().map(|peer| (*peer, "CONNECTED".to_owned())).collect();
            Ok(Some(OwnRow { connections, ..OwnRow::default() }))
        };
        let mut show = |peers: &mut Peers, connected: &[u32]| {
            let pause = peers.show(&mut state, row(connected), &all, &timing, 1);
            (pause, state.connected.clone())
        };
        assert_eq!(show(&mut peers, &[1]), (timing.poll_peers, vec![1]));
        let (pause, said) = show(&mut peers, &[1, 2]);
        assert!(said == [1] && pause > timing.poll_peers_least && pause <= timing.peers_settle, "{pause:?}");
        peers.said = Some(Instant::now() - timing.peers_settle);
        assert_eq!(show(&mut peers, &[1, 2, 3]), (timing.poll_peers, vec![1, 2, 3]));
        assert_eq!(show(&mut peers, &[1, 3]).1, [1, 3], "one that has gone is told at once");
    }

    #[test]
    fn what_is_missing_is_said_when_it_has_had_its_time() {
        let (timing, mut peers, mut state) = (Timing::default(), Peers::new(), State::default());
        let mut show = |peers: &mut Peers, row, at| {
            let pause = peers.show(&mut state, row, &config(), &timing, at);
            (pause, state.clone())
        };
        let (pause, said) = show(&mut peers, row("NEVER_CONNECTED"), 1);
        assert_eq!((pause, said.links_since_unix_ms), (timing.poll_peers_least, 0), "it has just begun");
        let (pause, said) = show(&mut peers, row("CONNECTED"), 2);
        assert_eq!((pause, said.links_since_unix_ms, said.connected), (timing.poll_peers, 2, vec![1]));
        let mut later = Peers { disturbed: Instant::now() - timing.peers_settle, ..Peers::new() };
        let (pause, said) = show(&mut later, row("RECOVERING"), 3);
        assert_eq!((pause, said.missing), (timing.poll_missing_peers, [(1, "RECOVERING".to_owned())].into()));
        assert_eq!(said.links_since_unix_ms, 2, "known it was before");
        for (at, why) in [(4, Err("it hangs".to_owned())), (5, Ok(None))] {
            let (_, said) = show(&mut later, why, at);
            assert_eq!((said.links_since_unix_ms, said.missing.len()), (4, 1), "the last word stays");
            assert!(!said.links_unknown.is_empty());
        }
        let (_, said) = show(&mut later, row("CONNECTED"), 6);
        assert_eq!((said.links_since_unix_ms, said.links_unknown.as_str(), said.missing.len()), (6, "", 0));
    }
}
