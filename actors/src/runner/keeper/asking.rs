use std::time::Duration;

use heddle_core::imex::DaemonState;
use tokio::time::Instant;

use super::{Answer, Keeper, unix_ms};
use crate::runner::ctl::Ctl;

/// How often a log is read between two questions: what it tells is asked about before the next one is due.
const LOG_READS: u32 = 16;

impl Keeper {
    fn ctl(&self) -> Option<Ctl> {
        self.daemon.as_ref().map(|daemon| Ctl { settings: self.settings.clone(), daemon: daemon.id() })
    }

    pub(super) fn ask(&mut self) {
        if let Some(ctl) = self.ctl() {
            let (answers, start) = (self.answers.clone(), self.starts());
            tokio::spawn(async move { answers.send((start, Answer::State(ctl.state().await))).await });
        }
    }

    pub(super) fn ask_about_peers(&mut self) {
        let clues = self.daemon.as_ref().map(|daemon| daemon.log.clues.clone()).unwrap_or_default();
        let (Some(index), Some(ctl)) = (clues.index, self.ctl()) else {
            return self.peers.postpone(Instant::now(), &self.settings.timing);
        };
        self.peers.ask(Instant::now(), clues.events);
        let (answers, start) = (self.answers.clone(), self.starts());
        tokio::spawn(async move { answers.send((start, Answer::Row(ctl.own_row(index).await))).await });
    }

    pub(super) fn hear(&mut self, start: u32, answer: Answer) {
        // An answer about a daemon that has ended meanwhile says nothing of the one that runs.
        if self.daemon.is_none() || start != self.starts() {
            return;
        }
        let now = Instant::now();
        match answer {
            Answer::State(answer) => {
                self.hear_state(answer);
                let ready = self.is_ready();
                self.ask_at = Some(now + self.pause(ready));
                if ready {
                    self.peers.ready(now);
                }
            }
            Answer::Row(row) => {
                let Some(config) = self.config.clone() else { return };
                let before = self.state.borrow().clone();
                let mut state = before.clone();
                let pause = self.peers.show(&mut state, row, &config, &self.settings.timing, unix_ms());
                let news = state != before;
                self.publish(|known| *known = state);
                let events = self.daemon.as_ref().map_or(0, |daemon| daemon.log.clues.events);
                self.peers.answered(now, pause, news, events, &self.settings.timing);
            }
        }
    }

    /// One that takes long, such as one that waits for its last life's importers, tells of its next state in its log.
    fn pause(&self, ready: bool) -> Duration {
        let timing = self.timing();
        match &self.daemon {
            _ if ready => timing.poll_ready,
            Some(daemon) if daemon.started.elapsed() > timing.poll_starting * 100 => timing.poll_starting * 5,
            _ => timing.poll_starting,
        }
    }

    pub(super) fn read_log(&mut self) {
        let pause = self.pause(self.is_ready()) / LOG_READS;
        self.log_at = Some(Instant::now() + pause);
        if self.daemon.as_mut().is_some_and(|daemon| daemon.log.read()) {
            self.read_clues();
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        DaemonState::parse(&self.state.borrow().daemon_state) == DaemonState::Ready
    }

    fn hear_state(&mut self, answer: Result<DaemonState, String>) {
        // Until it has answered once, silence is a daemon that is still starting; afterwards it is one that hangs.
        let answered = DaemonState::parse(&self.state.borrow().daemon_state) != DaemonState::Initializing;
        match answer {
            Ok(state) => {
                let message = match state {
                    DaemonState::Ready => String::new(),
                    _ => format!("nvidia-imex says {state}"),
                };
                self.publish(|known| {
                    known.daemon_state = state.to_string();
                    known.message = message;
                });
            }
            Err(why) if !answered => {
                let lived = self.daemon.as_ref().map(|daemon| daemon.started.elapsed()).unwrap_or_default();
                if lived > self.timing().answer_limit {
                    self.publish(|known| {
                        known.message = format!("nvidia-imex has been started and has not answered yet: {why}");
                    });
                }
            }
            Err(why) => self.publish(|known| {
                known.daemon_state = DaemonState::Unavailable.to_string();
                known.message = format!("nvidia-imex runs and does not answer: {why}");
            }),
        }
    }

    /// A line in the log often is a change of state: ask soon, but not once for every line.
    pub(super) fn read_clues(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let (index, events) = (daemon.log.clues.index, daemon.log.clues.events);
        self.peers.hear(events, &self.settings.timing);
        if self.state.borrow().daemon_index != index {
            self.publish(|state| state.daemon_index = index);
            self.record();
        }
        if !self.is_ready()
            && let Some(at) = &mut self.ask_at
        {
            *at = (*at).min(Instant::now() + Duration::from_millis(10));
        }
    }
}
