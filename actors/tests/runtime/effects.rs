//! Effects belong to the incarnation that began them.

use std::time::Duration;

use heddle_actors::runtime::{Spec, progress};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::probe::{Log, act, add, alone, count, panics, paused, series, start};

const STALLS: &str = "heddle_actor_restarts_total{actor=\"Probe\",cause=\"stall\"}";

#[test]
fn an_outcome_comes_back_as_a_message() {
    paused(async {
        let (_runtime, probe, _) = alone();
        let answer = probe.ask(|reply| {
            act(move |_, cx| {
                let work = async {
                    sleep(Duration::from_secs(5)).await;
                    7
                };
                cx.spawn_then("work", work, |seven| {
                    act(move |probe, _| {
                        probe.count += seven;
                        reply.send(probe.count);
                    })
                });
            })
        });
        assert_eq!(answer.await, Ok(7));
    });
}

#[test]
fn effects_die_with_their_incarnation_and_before_the_next_is_built() {
    paused(async {
        let (_runtime, probe, log) = alone();
        struct Last(Log);
        impl Drop for Last {
            fn drop(&mut self) {
                self.0.add("effect dropped");
            }
        }
        probe.tell(act(|probe, cx| {
            let last = Last(probe.log.clone());
            cx.spawn("hold", async move {
                let _last = last;
                std::future::pending().await
            });
            cx.spawn_then("late", sleep(Duration::from_secs(60)), |()| add(1));
            cx.after(Duration::from_secs(60), add(1));
        }));
        probe.tell(panics());
        assert_eq!(probe.ask(count).await, Ok(0));
        assert_eq!(log.lines(), ["probe started", "probe dropped", "effect dropped", "probe started"]);
        sleep(Duration::from_secs(120)).await;
        assert_eq!(probe.ask(count).await, Ok(0), "an effect of the old incarnation told the new one");
    });
}

#[test]
fn a_timer_fires_once_unless_it_is_cancelled() {
    paused(async {
        let (_runtime, probe, _) = alone();
        probe.tell(act(|_, cx| {
            cx.after(Duration::from_secs(1), add(1));
            cx.after(Duration::from_secs(1), add(10)).cancel();
        }));
        sleep(Duration::from_secs(10)).await;
        assert_eq!(probe.ask(count).await, Ok(1));
    });
}

#[test]
fn an_effect_that_exceeds_its_limit_is_a_stall() {
    paused(async {
        let (runtime, probe, log) = alone();
        probe.tell(act(|_, cx| {
            cx.spawn_limited("fetch", std::future::pending(), Duration::from_secs(3));
        }));
        sleep(Duration::from_millis(2900)).await;
        assert_eq!(series(&runtime, STALLS), Some(0.0));
        sleep(Duration::from_millis(300)).await;
        assert_eq!(series(&runtime, STALLS), Some(1.0));
        assert_eq!(probe.ask(count).await, Ok(0));
        assert_eq!(log.lines(), ["probe started", "probe dropped", "probe started"]);
    });
}

#[test]
fn an_effect_that_gets_on_may_take_as_long_as_it_likes() {
    paused(async {
        let (runtime, probe, _) = alone();
        let begin = Instant::now();
        let (done, finished) = oneshot::channel();
        probe.tell(act(|_, cx| {
            let work = async {
                for _ in 0..10 {
                    sleep(Duration::from_secs(2)).await;
                    progress();
                }
                let _ = done.send(());
                Ok(())
            };
            cx.spawn_limited("copy", work, Duration::from_secs(3));
        }));
        finished.await.unwrap();
        assert!(begin.elapsed() >= Duration::from_secs(20));
        assert_eq!(series(&runtime, STALLS), Some(0.0));
    });
}

#[test]
fn a_full_mailbox_still_takes_what_the_actor_itself_began() {
    paused(async {
        let (runtime, _, log) = alone();
        let probe = start(&runtime.root(), "small", &log, Spec { mailbox: 1, ..Spec::default() });
        let address = probe.clone();
        probe.tell(act(move |_, cx| {
            let work = async move {
                // The actor sleeps, so nothing drains between the filling and the outcome.
                address.send(add(10)).unwrap();
                assert!(address.send(add(100)).is_err(), "the mailbox is full");
            };
            cx.spawn_then("work", work, |()| add(1));
        }));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(probe.ask(count).await, Ok(11));
    });
}
