//! Who leads: a candidate's next step with a Lease (`coordination.k8s.io`), by its own clock alone.
//!
//! The times in a Lease are other machines' wall clocks and are for people. A candidate notes when *it* saw the Lease
//! change last, and takes it over when the holder's duration has passed since. A leader counts its lease from the moment
//! at which it *began* the write that was accepted, which is before anybody can have seen it. So its lease is over by its
//! own clock before anybody else's patience is, however the wall clocks differ, as long as clocks run at about the same
//! rate: [`Terms::margin`] covers what they do not.

use std::time::Duration;

/// How a lease is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long others wait after the last renewal that they saw.
    pub duration: Duration,
    /// How long after a renewal the holder makes the next.
    pub renew: Duration,
    /// Pause before a renewal that had no answer is made again, and between the looks of those who wait.
    pub retry: Duration,
}

impl Terms {
    /// Seconds, as flags have them.
    ///
    /// # Errors
    /// What does not go together, in words.
    pub fn new(duration: u32, renew: u32) -> Result<Self, String> {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        if renew == 0 || renew.saturating_mul(2) > duration || duration > LONGEST {
            return Err(format!(
                "a lease of {duration} s cannot be renewed every {renew} s: renew at least once a lease with room for one \
                 that fails, so at most every {} s",
                duration / 2
            ));
        }
        Ok(Self { duration: seconds(duration), renew: seconds(renew), retry: RETRY })
    }

    /// By how much a holder stops earlier than it must: for clocks that run at different rates, and for a request that
    /// waits in this process before it is sent.
    pub fn margin(&self) -> Duration {
        self.duration / 8
    }
}

/// The longest lease, in seconds. Nobody who follows these rules has a longer one.
const LONGEST: u32 = 3600;

/// A second is soon for whoever waits for an orderly hand-over, and one small read.
const RETRY: Duration = Duration::from_secs(1);

/// What a Lease says of its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; empty after an orderly end.
    pub holder: String,
    /// For how long after a renewal, in seconds.
    pub duration_seconds: i32,
    /// When it was taken, as the holder has written it. Compared, never read.
    pub acquired: String,
    /// When it was renewed last, likewise.
    pub renewed: String,
    /// How often it has changed hands.
    pub transitions: i32,
}

/// A record, and when by the own clock it was first seen like this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// What the Lease said.
    pub record: Record,
    /// When that was seen first.
    pub since: Duration,
}

impl Record {
    /// For how long others wait after a renewal that they saw. It is the holder's own word, as after a change of the setting
    /// the two may differ; but a word that no controller gives keeps none of them waiting for years.
    pub fn patience(&self) -> Duration {
        let promised = u32::try_from(self.duration_seconds).unwrap_or(0);
        Duration::from_secs(promised.clamp(1, LONGEST).into())
    }
}

impl Observed {
    /// What is known after another look, that ended at `now`: a record that has not changed is as old as before.
    pub fn next(before: Option<Self>, record: Record, now: Duration) -> Self {
        match before {
            Some(before) if before.record == record => before,
            _ => Self { record, since: now },
        }
    }
}

/// What a candidate does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It leads, and has nothing to do before this time.
    Hold(Duration),
    /// It holds the lease: renew it.
    Renew,
    /// Nobody holds it any more: take it.
    Take,
    /// Somebody else holds it: look again at this time.
    Wait(Duration),
}

/// The next step at `now` of the candidate `me`, who has seen the Lease as `observed` (`None`: there is none) and began
/// its last accepted write at `renewed`. All times are of one clock, which only runs forward.
pub fn decide(now: Duration, observed: Option<&Observed>, me: &str, renewed: Option<Duration>, terms: &Terms) -> Step {
    let Some(Observed { record, since }) = observed else { return Step::Take };
    if record.holder == me {
        return match renewed {
            Some(renewed) if now < renewed + terms.renew => Step::Hold(renewed + terms.renew),
            // Late, or its answer was lost: while the Lease says so nobody else has taken it.
            _ => Step::Renew,
        };
    }
    if record.holder.is_empty() {
        return Step::Take;
    }
    let over = *since + record.patience();
    if now >= over { Step::Take } else { Step::Wait(over.min(now + terms.retry)) }
}

/// Until when a candidate that holds the lease may write.
pub fn until(renewed: Duration, terms: &Terms) -> Duration {
    renewed + terms.duration - terms.margin()
}

/// The record that takes the lease or renews it. `now` is the wall clock's, for people.
pub fn held(before: Option<&Record>, me: &str, now: &str, terms: &Terms) -> Record {
    let duration_seconds = i32::try_from(terms.duration.as_secs()).unwrap_or(i32::MAX);
    match before {
        Some(before) if before.holder == me => Record { duration_seconds, renewed: now.into(), ..before.clone() },
        _ => Record {
            holder: me.into(),
            duration_seconds,
            acquired: now.into(),
            renewed: now.into(),
            transitions: before.map_or(0, |before| before.transitions.saturating_add(1)),
        },
    }
}

/// The record that gives the lease back.
pub fn released(before: &Record, now: &str) -> Record {
    Record { holder: String::new(), duration_seconds: 1, renewed: now.into(), ..before.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn terms() -> Terms {
        Terms::new(8, 3).unwrap()
    }

    fn record(holder: &str, renewed: &str) -> Record {
        Record {
            holder: holder.into(),
            duration_seconds: 8,
            acquired: "then".into(),
            renewed: renewed.into(),
            transitions: 4,
        }
    }

    fn seen(holder: &str, since: Duration) -> Observed {
        Observed { record: record(holder, "then"), since }
    }

    #[test]
    fn the_holder_renews_in_time_and_others_wait() {
        let mine = seen("me", s(100));
        assert_eq!(decide(s(101), Some(&mine), "me", Some(s(100)), &terms()), Step::Hold(s(103)));
        assert_eq!(decide(s(103), Some(&mine), "me", Some(s(100)), &terms()), Step::Renew);
        let theirs = seen("other", s(100));
        assert_eq!(decide(s(101), Some(&theirs), "me", None, &terms()), Step::Wait(s(102)));
        assert_eq!(decide(Duration::from_millis(107_500), Some(&theirs), "me", None, &terms()), Step::Wait(s(108)));
        assert_eq!(decide(s(108), Some(&theirs), "me", None, &terms()), Step::Take);
    }

    #[test]
    fn nobody_s_lease_is_taken_at_once() {
        assert_eq!(decide(s(1), None, "me", None, &terms()), Step::Take);
        assert_eq!(decide(s(1), Some(&seen("", s(1))), "me", None, &terms()), Step::Take);
    }

    #[test]
    fn a_lease_whose_answer_was_lost_is_renewed_before_it_counts() {
        assert_eq!(decide(s(101), Some(&seen("me", s(100))), "me", None, &terms()), Step::Renew);
        assert_eq!(decide(s(500), Some(&seen("me", s(100))), "me", Some(s(100)), &terms()), Step::Renew);
    }

    #[test]
    fn a_lease_that_was_lost_is_not_taken_back_before_its_new_holder_s_time() {
        let theirs = seen("other", s(120));
        assert_eq!(decide(s(121), Some(&theirs), "me", Some(s(120)), &terms()), Step::Wait(s(122)));
    }

    #[test]
    fn a_holder_s_own_word_counts_also_when_it_is_odd() {
        for (promised, over) in
            [(30, 130), (1, 101), (0, 101), (-5, 101), (i32::MIN, 101), (3600, 3700), (i32::MAX, 3700)]
        {
            let mut theirs = seen("other", s(100));
            theirs.record.duration_seconds = promised;
            assert_ne!(decide(s(over) - s(1), Some(&theirs), "me", None, &terms()), Step::Take, "{promised}");
            assert_eq!(decide(s(over), Some(&theirs), "me", None, &terms()), Step::Take, "{promised}");
        }
    }

    #[test]
    fn only_a_change_makes_a_record_young() {
        let first = Observed::next(None, record("other", "2026-01-01"), s(5));
        // Whatever it says about time: a year in the future, or long past.
        let same = Observed::next(Some(first.clone()), record("other", "2026-01-01"), s(9));
        assert_eq!(same, first);
        let renewed = Observed::next(Some(same), record("other", "1970-01-01"), s(9));
        assert_eq!(renewed.since, s(9));
    }

    #[test]
    fn a_record_tells_who_and_how_often() {
        let taken = held(None, "a", "t1", &terms());
        assert_eq!((taken.holder.as_str(), taken.transitions, taken.duration_seconds), ("a", 0, 8));
        let renewed = held(Some(&taken), "a", "t2", &terms());
        assert_eq!((renewed.acquired.as_str(), renewed.renewed.as_str(), renewed.transitions), ("t1", "t2", 0));
        let given_back = released(&renewed, "t3");
        assert_eq!((given_back.holder.as_str(), given_back.transitions), ("", 0));
        let next = held(Some(&given_back), "b", "t4", &terms());
        assert_eq!((next.acquired.as_str(), next.transitions), ("t4", 1));
    }

    #[test]
    fn terms_leave_room_for_a_renewal_that_fails() {
        assert!(Terms::new(8, 3).is_ok());
        assert!(Terms::new(2, 1).is_ok());
        for (duration, renew) in [(8, 5), (8, 0), (0, 0), (1, 1), (u32::MAX, 1)] {
            assert!(Terms::new(duration, renew).is_err(), "{duration} {renew}");
        }
    }

    /// One candidate in a world of clocks that begin anywhere.
    struct Candidate {
        name: String,
        offset: Duration,
        observed: Option<Observed>,
        renewed: Option<Duration>,
        /// A write on its way: on which version it was decided, on what, and when it began.
        sent: Option<(u32, Option<Record>, Duration)>,
    }

    proptest! {
        /// Known failure 851. Requests take any time, answers get lost, candidates sleep: whoever may write by its own
        /// clock is the one that the Lease names, at every moment.
        #[test]
        fn no_two_lead_at_a_time(
            offsets in prop::collection::vec(0u64..100_000, 3),
            turns in prop::collection::vec((0usize..3, 0u64..4000, 0u8..10), 1..200),
        ) {
            let terms = terms();
            let mut lease: Option<Record> = None;
            let mut version = 0u32;
            let mut all: Vec<Candidate> = offsets.iter().enumerate().map(|(n, offset)| Candidate {
                name: n.to_string(),
                offset: Duration::from_millis(*offset),
                observed: None,
                renewed: None,
                sent: None,
            }).collect();
            let mut time = Duration::ZERO;
            for (who, pause, luck) in turns {
                time += Duration::from_millis(pause);
                let me = &mut all[who];
                let now = time + me.offset;
                if let Some((seen, before, began)) = me.sent.take() {
                    if luck > 1 && seen == version {
                        version += 1;
                        let record = held(before.as_ref(), &me.name, &version.to_string(), &terms);
                        lease = Some(record.clone());
                        if luck > 3 {
                            me.observed = Some(Observed { record, since: now });
                            me.renewed = Some(began);
                        }
                    }
                } else {
                    me.observed = lease.clone().map(|record| Observed::next(me.observed.take(), record, now));
                    let step = decide(now, me.observed.as_ref(), &me.name, me.renewed, &terms);
                    me.sent = matches!(step, Step::Renew | Step::Take).then(|| (version, lease.clone(), now));
                }
                let leads = |candidate: &&Candidate| candidate.renewed.is_some_and(|renewed| {
                    time + candidate.offset < until(renewed, &terms)
                });
                let leaders: Vec<_> = all.iter().filter(leads).map(|candidate| candidate.name.clone()).collect();
                prop_assert!(leaders.len() <= 1, "{leaders:?} at {time:?}");
                if let Some(leader) = leaders.first() {
                    prop_assert_eq!(&lease.as_ref().unwrap().holder, leader);
                }
            }
        }
    }
}
