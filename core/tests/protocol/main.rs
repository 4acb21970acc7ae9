//! The channel protocol and the moves of nodes under random interleavings: agents and two controllers that decide on
//! old copies, writes that arrive late or never, crashes, lost nodes, nodes that go out to exclusive domains and come
//! back. Everything that decides is production code; the store, the order of things and the seeded bugs are here.

mod agent;
mod cluster;
mod controller;
mod store;

use cluster::{Bug, Cluster};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

/// What happens next: which kind of thing, and to which node, ComputeDomain or write.
type Step = (u8, u8, u8);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(any::<Step>(), 100..500)
}

fn play(steps: &[Step], bug: Bug) -> Result<(), TestCaseError> {
    let mut cluster = Cluster::new(bug);
    for (at, step) in steps.iter().enumerate() {
        let told = cluster.step(*step);
        if !cluster.changed() {
            continue;
        }
        let report = cluster.report();
        prop_assert!(
            report.holds(),
            "after step {at} ({told}): {}",
            report.all().map(|v| format!("{v}\n")).collect::<String>()
        );
    }
    if bug == Bug::None {
        prop_assert!(cluster.uncertified.is_empty(), "moved without a certificate: {:?}", cluster.uncertified);
        prop_assert!(cluster.come_to_rest(), "the cluster does not come to rest");
        let report = cluster.report();
        prop_assert!(report.holds(), "at rest: {report:?}");
        let left = cluster.leftovers();
        prop_assert!(left.is_empty(), "at rest: {left:?}");
    }
    Ok(())
}

/// The same cases in every run. A fault of ours is worth shrinking, a seeded one is not.
fn runner(cases: u32, bug: Bug) -> TestRunner {
    let max_shrink_iters = if bug == Bug::None { 4096 } else { 0 };
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn run(cases: u32, bug: Bug) -> Result<(), TestError<Vec<Step>>> {
    runner(cases, bug).run(&steps(), |steps| play(&steps, bug))
}

/// `PROTOCOL_CASES=20000 cargo test --release -p heddle-core --test protocol` looks longer.
fn cases() -> u32 {
    std::env::var("PROTOCOL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)
}

#[test]
fn no_interleaving_breaks_an_invariant_and_every_unused_number_comes_back() {
    if let Err(error) = run(cases(), Bug::None) {
        if let TestError::Fail(_, steps) = &error {
            let mut cluster = Cluster::new(Bug::None);
            for step in steps {
                eprintln!("{}", cluster.step(*step));
            }
        }
        panic!("{error}");
    }
}

fn is_found(bug: Bug, invariant: &str) {
    match run(600, bug) {
        Err(TestError::Fail(reason, _)) => {
            let text = reason.message().to_string();
            assert!(text.contains(invariant), "{bug:?} should break {invariant}, got: {text}");
        }
        other => panic!("{bug:?} was not found: {other:?}"),
    }
}

#[test]
fn freeing_without_a_fence_is_found() {
    is_found(Bug::FreeWithoutFence, "S3");
}

#[test]
fn freeing_without_draining_is_found() {
    is_found(Bug::FreeWithoutDraining, "S3");
}

#[test]
fn entering_without_a_resource_version_is_found() {
    is_found(Bug::EnterUnguarded, "S");
}

#[test]
fn moving_a_node_that_lists_a_channel_is_found() {
    is_found(Bug::MoveWhileListed, "S2");
}

#[test]
fn an_entry_is_trusted_only_when_no_earlier_leave_can_arrive() {
    // Random play hits this order once in thousands of runs.
    let mut cluster = Cluster::new(Bug::None);
    assert!(cluster.a_leave_outlives_its_agent(), "and then it is prepared");
    assert!(cluster.report().holds());
    let mut cluster = Cluster::new(Bug::TrustOldEntry);
    cluster.a_leave_outlives_its_agent();
    let text = cluster.report().all().map(|v| format!("{v}\n")).collect::<String>();
    assert!(text.contains("S3"), "trusting it at once should break S3: {text}");
}

#[test]
fn an_unused_number_goes_to_who_waits_for_one_but_never_from_under_an_enter() {
    let mut cluster = Cluster::new(Bug::None);
    let have = cluster.the_unused_makes_room();
    assert!(have.len() == 1 && have[0].starts_with("cd1"), "{have:?}");
    assert!((cluster.seen.reclaimed, cluster.seen.revived) == (1, 0) && cluster.report().holds());

    let mut cluster = Cluster::new(Bug::None);
    let have = cluster.a_reclaim_meets_an_enter();
    assert!(have.len() == 1 && have[0].starts_with("cd0"), "{have:?}");
    assert!((cluster.seen.reclaimed, cluster.seen.revived) == (1, 1), "{:?}", cluster.seen);
    assert_eq!(cluster.leftovers(), Vec::<String>::new());
}

#[test]
fn the_runs_are_not_vacuous() {
    let seen = std::cell::RefCell::new(cluster::Seen::default());
    runner(60, Bug::None)
        .run(&steps(), |steps| {
            let mut cluster = Cluster::new(Bug::None);
            for step in steps {
                cluster.step(step);
            }
            assert!(cluster.come_to_rest());
            seen.borrow_mut().add(&cluster.seen);
            Ok(())
        })
        .unwrap();
    let seen = seen.into_inner();
    for (what, times) in seen.table() {
        assert!(times > 0, "{what} happened {times} times only: {seen:?}");
    }
}
