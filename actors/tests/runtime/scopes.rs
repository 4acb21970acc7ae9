//! Kill scopes: what ends together, and what does not.

use std::time::Duration;

use heddle_actors::runtime::{Backoff, Restart, Runtime, Spec};
use heddle_core::fault::Class;

use crate::probe::{Log, count, fails, paused, start};

#[test]
fn stopping_a_scope_ends_all_below_it_and_nothing_else() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let domain = runtime.root().child("domain");
        let claim = domain.child("claim");
        let top = start(&runtime.root(), "top", &log, Spec::default());
        let middle = start(&domain, "middle", &log, Spec::default());
        let low = start(&claim, "low", &log, Spec::default());
        assert_eq!(low.ask(count).await, Ok(0));
        domain.stop();
        while !(middle.is_stopped() && low.is_stopped()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(top.ask(count).await, Ok(0));
        assert!(claim.is_stopped() && domain.is_stopped() && !runtime.root().is_stopped());
        assert_eq!(claim.ended().await, None, "stopped on purpose");
        assert!(!log.lines().iter().any(|line| line.ends_with("stopping")), "a kill is no graceful end");
        assert!(domain.child("late").is_stopped());
        assert!(start(&domain, "late", &log, Spec::default()).is_stopped());
    });
}

#[test]
fn an_actor_that_fails_too_often_takes_its_scope_with_it_and_no_more() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let domain = runtime.root().child("domain");
        let below = domain.child("below");
        let restart = Restart { max: 2, within: Duration::from_secs(60), backoff: Backoff::default() };
        let weak = start(&domain, "weak", &log, Spec { name: "7".into(), restart, ..Spec::default() });
        let sibling = start(&domain, "sibling", &log, Spec::default());
        let nephew = start(&below, "nephew", &log, Spec::default());
        let cousin = start(&runtime.root().child("other"), "cousin", &log, Spec::default());
        for _ in 0..3 {
            weak.tell(fails());
        }
        let cause = domain.ended().await.expect("there was a cause");
        assert_eq!(cause.message, "Probe 7 failed more than 2 times within 60s, last: the thing is broken");
        assert_eq!(below.cause(), Some(cause.clone()), "the first cause is known all the way down");
        while !(weak.is_stopped() && sibling.is_stopped() && nephew.is_stopped()) {
            tokio::task::yield_now().await;
        }
        domain.stop();
        assert_eq!(domain.cause(), Some(cause), "the first cause stays");
        assert_eq!(cousin.ask(count).await, Ok(0));
        assert_eq!(runtime.run(std::future::ready(())).await, Ok(()), "the process is not concerned");
    });
}

#[test]
fn an_actor_of_the_root_that_fails_too_often_ends_the_process_with_an_error() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let restart = Restart { max: 0, within: Duration::from_secs(60), backoff: Backoff::default() };
        let weak = start(&runtime.root(), "weak", &log, Spec { restart, ..Spec::default() });
        let strong = start(&runtime.root(), "strong", &log, Spec::default());
        weak.tell(fails());
        let end = runtime.run(std::future::pending()).await.unwrap_err();
        assert_eq!(end.class, Class::Fatal);
        assert!(strong.is_stopped() && weak.is_stopped());
        assert!(log.lines().contains(&"strong dropped".into()));
    });
}

#[test]
fn a_graceful_end_comes_to_the_youngest_first() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let first = start(&runtime.root(), "first", &log, Spec::default());
        let second = start(&runtime.root().child("scope"), "second", &log, Spec::default());
        let third = start(&runtime.root(), "third", &log, Spec::default());
        assert_eq!(third.ask(count).await, Ok(0));
        let readiness = runtime.readiness();
        assert!(readiness.is_ready());
        runtime.run(std::future::ready(())).await.unwrap();
        assert_eq!(
            log.lines()[3..],
            ["third stopping", "third dropped", "second stopping", "second dropped", "first stopping", "first dropped"]
        );
        assert!(first.is_stopped() && second.is_stopped());
        assert!(!readiness.is_ready());
    });
}

#[test]
fn an_actor_between_two_incarnations_ends_without_waiting_for_the_next() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let backoff = Backoff { min: Duration::from_secs(3600), max: Duration::from_secs(3600) };
        let restart = Restart { max: 5, within: Duration::from_secs(60), backoff };
        let probe = start(&runtime.root(), "probe", &log, Spec { restart, ..Spec::default() });
        probe.tell(fails());
        while !log.lines().contains(&"probe dropped".into()) {
            tokio::task::yield_now().await;
        }
        let begin = tokio::time::Instant::now();
        runtime.run(std::future::ready(())).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::ZERO);
        assert!(probe.is_stopped());
    });
}
