//! Faults that are built into what surrounds the decisions. A checker that finds none of them proves nothing.

use heddle_model::{Act, Action, Bug, Faults, Model, Plan, Settings};

use crate::check::breaks;

fn with(bug: Bug, settings: Settings) -> Model {
    Model::new(Settings { bug: Some(bug), ..settings })
}

/// It is found, by one of these, in a run that a person can read.
fn is_found(model: Model, invariants: &[&str], steps: usize) -> Vec<Action> {
    let (name, actions) = breaks(model);
    assert!(invariants.contains(&name), "it breaks {name}");
    assert!(actions.len() <= steps, "{} steps: {actions:?}", actions.len());
    actions
}

fn moving() -> Settings {
    let faults = Faults { turns: 1, ..Faults::default() };
    Settings { faults, ..Settings::quiet(1, &[Plan::SHARED, Plan::EXCLUSIVE], 1) }
}

#[test]
fn freeing_without_a_fence() {
    let model = with(Bug::FreeWithoutFence, Settings::quiet(2, &[Plan::SHARED; 2], 1));
    is_found(model, &["S1", "S3"], 14);
}

#[test]
fn entering_without_a_resource_version() {
    let model = with(Bug::EnterUnguarded, Settings::quiet(2, &[Plan::SHARED; 2], 1));
    is_found(model, &["S1", "S3"], 18);
}

#[test]
fn freeing_without_draining() {
    let model = with(Bug::FreeWithoutDraining, Settings::quiet(2, &[Plan::SHARED; 2], 1));
    is_found(model, &["S1", "S3"], 10);
}

#[test]
fn moving_while_a_channel_is_listed() {
    let model = with(Bug::MoveWhileListed, moving());
    is_found(model, &["S2"], 30);
}

#[test]
fn trusting_an_entry_that_a_leave_may_still_take_away() {
    let faults = Faults { crashes: 1, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(1, &[Plan::SHARED], 1) };
    let actions = is_found(with(Bug::TrustOldEntry, settings), &["S3"], 14);
    assert!(actions.contains(&Action::Agent(0, Act::Ghost)));
}

#[test]
fn ending_a_daemon_under_claims() {
    let model = with(Bug::SwitchUnderClaims, moving());
    is_found(model, &["S2", "S4"], 30);
}
