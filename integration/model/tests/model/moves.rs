//! A node between its shared IMEX domain and an exclusive one.

use heddle_model::properties::{back_home, move_stops_an_enter, prepared_exclusively};
use heddle_model::{Faults, Model, Plan, Settings};

use crate::check::explore;

/// A claim comes, and goes; or seems to.
fn turning(turns: u8, settings: Settings) -> Settings {
    Settings { faults: Faults { turns, ..Faults::default() }, ..settings }
}

#[test]
fn an_exclusive_compute_domain_alone() {
    let model = Model::new(turning(2, Settings::quiet(1, &[Plan::EXCLUSIVE], 1)))
        .sometimes("a claim is prepared in a domain of its own", prepared_exclusively)
        .sometimes("a node is home again", back_home);
    explore("an exclusive ComputeDomain on 1 node", model, 29_516);
}

#[test]
fn a_node_goes_out_from_under_a_shared_one() {
    let model = Model::new(turning(1, Settings::quiet(1, &[Plan::SHARED, Plan::EXCLUSIVE], 1)))
        .sometimes("a claim is prepared in a domain of its own", prepared_exclusively)
        .sometimes("an enter fails by a move", move_stops_an_enter);
    explore("a shared and an exclusive ComputeDomain on 1 node", model, 442_098);
}
