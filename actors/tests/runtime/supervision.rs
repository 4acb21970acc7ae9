//! Failures are told apart, and answered by a new value behind the same address.

use std::time::Duration;

use heddle_actors::runtime::{AskError, Backoff, Cx, Restart, Runtime, SendError, Spec};
use heddle_core::fault::{Class, Fault, reason};
use tokio::time::Instant;

use crate::probe::{Log, Probe, act, add, alone, attempt, broken, count, fails, panics, paused, series, start};

fn restarts(runtime: &Runtime) -> [u32; 4] {
    ["panic", "error", "stall", "effect"].map(|cause| {
        let name = format!("heddle_actor_restarts_total{{actor=\"Probe\",cause=\"{cause}\"}}");
        series(runtime, &name).unwrap_or_else(|| panic!("no series {name}")) as u32
    })
}

#[test]
fn linkerd_15506_an_address_survives_a_panic_and_so_do_the_messages_behind_it() {
    paused(async {
        let (runtime, probe, log) = alone();
        assert_eq!(restarts(&runtime), [0, 0, 0, 0]);
        probe.tell(add(1));
        probe.tell(panics());
        probe.tell(add(2));
        assert_eq!(probe.ask(count).await, Ok(2), "a new value, which has seen what was queued behind the panic");
        assert_eq!(log.lines(), ["probe started", "probe dropped", "probe started"]);
        assert_eq!(restarts(&runtime), [1, 0, 0, 0]);
    });
}

#[test]
fn an_error_and_a_failing_effect_are_counted_apart_from_panics() {
    paused(async {
        let (runtime, probe, _) = alone();
        probe.tell(fails());
        probe.ask(count).await.unwrap();
        assert_eq!(restarts(&runtime), [0, 1, 0, 0]);
        probe.tell(act(|_, cx| {
            // What fails is the effect, after its message was handled.
            cx.spawn("break", async { Err(broken()) });
        }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(restarts(&runtime), [0, 1, 0, 1]);
        probe.tell(act(|_, cx| {
            cx.spawn("fall", async { panic!("told to") });
        }));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(restarts(&runtime), [0, 1, 0, 2]);
        assert_eq!(probe.ask(count).await, Ok(0));
    });
}

#[test]
fn the_asker_of_the_message_in_hand_is_told_that_it_was_dropped() {
    paused(async {
        let (_runtime, probe, _) = alone();
        let lost: Result<u32, _> = probe
            .ask(|reply| {
                act(move |_, _| {
                    let _reply = reply;
                    panic!("told to")
                })
            })
            .await;
        let error = lost.unwrap_err();
        assert_eq!(error, AskError::Dropped("Probe"));
        assert_eq!(Fault::from(error).class, Class::Retryable);
    });
}

#[test]
fn an_actor_that_stops_is_not_restarted_and_its_address_says_so() {
    paused(async {
        let (runtime, probe, log) = alone();
        probe.tell(act(|_, cx| cx.stop()));
        probe.tell(add(1));
        assert_eq!(probe.ask(count).await, Err(AskError::Dropped("Probe")), "it waited behind the stop");
        assert!(probe.is_stopped());
        assert_eq!(probe.ask(count).await, Err(AskError::Stopped("Probe")));
        assert!(matches!(probe.send(add(1)), Err(SendError::Stopped(_))));
        assert_eq!(log.lines(), ["probe started", "probe dropped"]);
        assert_eq!(restarts(&runtime), [0, 0, 0, 0]);
    });
}

#[test]
fn a_factory_may_fail_too() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let mut built = 0;
        let probe = runtime.root().supervise(Spec::default(), move || {
            built += 1;
            match built {
                1 => Err(broken()),
                2 => panic!("told to"),
                _ => Ok(Probe::new("probe", &log)),
            }
        });
        assert_eq!(probe.ask(count).await, Ok(0), "asked before there was an actor");
        assert_eq!(restarts(&runtime), [1, 1, 0, 0]);
    });
}

#[test]
fn the_pause_before_a_restart_doubles_up_to_its_bound() {
    paused(async {
        let runtime = Runtime::new();
        let restart = Restart {
            max: 6,
            within: Duration::from_secs(60),
            backoff: Backoff { min: Duration::from_millis(100), max: Duration::from_secs(1) },
        };
        let begin = Instant::now();
        let log = Log::default();
        let starts = log.clone();
        let _probe = runtime.root().supervise(Spec { restart, ..Spec::default() }, move || -> Result<Probe, Fault> {
            starts.add(begin.elapsed().as_millis().to_string());
            Err(broken())
        });
        let end = runtime.run(std::future::pending()).await.unwrap_err();
        assert_eq!(end.class, Class::Fatal);
        assert_eq!(end.reason, reason::NODE_IO);
        assert_eq!(end.message, "Probe failed more than 6 times within 60s, last: the thing is broken");
        let at: Vec<u64> = log.lines().iter().map(|at| at.parse().unwrap()).collect();
        let pauses: Vec<u64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (pause, full) in std::iter::zip(&pauses, [100, 200, 400, 800, 1000, 1000]) {
            // The timer's millisecond on top of the jitter's half.
            assert!((full / 2..=full + 2).contains(pause), "{pauses:?}");
        }
        assert_eq!(pauses.len(), 6);
    });
}

#[test]
fn failures_outside_of_the_window_are_forgotten() {
    paused(async {
        let runtime = Runtime::new();
        let restart = Restart { max: 1, within: Duration::from_secs(10), backoff: Backoff::default() };
        let log = Log::default();
        let probe = start(&runtime.root(), "probe", &log, Spec { restart, ..Spec::default() });
        for _ in 0..5 {
            probe.tell(fails());
            assert_eq!(probe.ask(count).await, Ok(0));
            tokio::time::sleep(Duration::from_secs(11)).await;
        }
        assert_eq!(restarts(&runtime), [0, 5, 0, 0]);
    });
}

#[test]
fn a_fatal_fault_ends_the_process_at_once() {
    paused(async {
        let (runtime, _, log) = alone();
        let deep = runtime.root().child("a").child("b");
        let probe = start(&deep, "deep", &log, Spec::default());
        probe.tell(attempt(|_, _| Err(Fault::fatal(reason::SETTINGS, "the disk is on fire; replace it"))));
        let end = runtime.run(std::future::pending()).await.unwrap_err();
        assert_eq!((end.class, end.message.as_str()), (Class::Fatal, "the disk is on fire; replace it"));
        let lines = log.lines();
        assert!(lines.contains(&"probe dropped".into()), "everybody is gone before the process is: {lines:?}");
        assert!(!lines.contains(&"probe stopping".into()), "a kill is no graceful end");
    });
}

#[test]
fn an_actor_that_never_rests_leaves_others_their_turn() {
    paused(async {
        let (runtime, busy, _) = alone();
        let log = Log::default();
        let other = start(&runtime.root(), "other", &log, Spec::default());
        fn again(probe: &mut Probe, cx: &mut Cx<'_, Probe>) {
            probe.count += 1;
            cx.address().tell(act(again));
        }
        for _ in 0..100 {
            busy.tell(act(again));
        }
        for _ in 0..10 {
            assert_eq!(other.ask(count).await, Ok(0));
        }
        assert!(busy.ask(count).await.unwrap() > 100);
    });
}

#[test]
fn messages_come_from_any_thread() {
    paused(async {
        let (_runtime, probe, _) = alone();
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let probe = probe.clone();
                std::thread::spawn(move || (0..50).for_each(|_| probe.tell(add(1))))
            })
            .collect();
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(probe.ask(count).await, Ok(200));
    });
}
