//! One shared IMEX domain.

use heddle_model::properties::{
    alarmed, fence_stops_an_enter, fenced, freed_by_release, given_again, prepared, put_back, quarantined,
};
use heddle_model::{Faults, Model, Plan, Settings};

use crate::check::explore;

/// The instance of the design: every delay, every order, nothing lost.
#[test]
fn two_nodes_and_two_compute_domains_for_one_number() {
    let model = Model::new(Settings::quiet(2, &[Plan::SHARED; 2], 1))
        .sometimes("a claim is prepared", prepared)
        .sometimes("a freed number is given again", given_again)
        .sometimes("a node is fenced", fenced)
        .sometimes("an enter fails by a fence", fence_stops_an_enter);
    explore("2 nodes, 2 ComputeDomains, 1 number", model, 1_618_622);
}

#[test]
fn an_agent_dies() {
    let faults = Faults { crashes: 2, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(1, &[Plan::SHARED; 2], 1) };
    let model = Model::new(settings).sometimes("a freed number is given again", given_again);
    explore("an agent dies twice", model, 101_276);
}

#[test]
fn two_agents_of_which_one_dies() {
    let faults = Faults { crashes: 1, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(2, &[Plan::SHARED], 1) };
    let model = Model::new(settings).sometimes("an enter fails by a fence", fence_stops_an_enter);
    explore("one of two agents dies", model, 723_349);
}

#[test]
fn answers_are_lost() {
    let faults = Faults { unanswered: 2, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(1, &[Plan::SHARED; 2], 1) };
    let model = Model::new(settings).sometimes("a freed number is given again", given_again);
    explore("two answers to an agent are lost", model, 57_239);
}

#[test]
fn an_agent_dies_without_its_answer() {
    let faults = Faults { unanswered: 1, crashes: 1, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(1, &[Plan::SHARED; 2], 1) };
    let model = Model::new(settings).sometimes("a claim is prepared", prepared);
    explore("an agent gets no answer and dies", model, 123_721);
}

#[test]
fn a_node_is_lost() {
    let faults = Faults { lost: 1, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(2, &[Plan::SHARED], 1) };
    let model = Model::new(settings)
        .sometimes("a number is quarantined", quarantined)
        .sometimes("an enter fails by a fence", fence_stops_an_enter);
    explore("one of two nodes is lost", model, 193_735);
}

/// The person is right: the node is off. A write of its agent may yet arrive, and so may the release, late or never.
#[test]
fn a_lost_node_is_released() {
    let faults = Faults { lost: 1, releases: 1, unanswered: 1, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(1, &[Plan::SHARED; 2], 1) };
    let model = Model::new(settings)
        .sometimes("a number is quarantined", quarantined)
        .sometimes("a release frees it", freed_by_release);
    explore("a lost node is released", model, 79_446);
    let faults = Faults { lost: 1, releases: 1, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(2, &[Plan::SHARED], 1) };
    let model = Model::new(settings).sometimes("a release frees it", freed_by_release);
    explore("one of two nodes is lost and released", model, 337_237);
}

#[test]
fn a_compute_domain_comes_again_under_its_name() {
    let again = |after| Plan { there: false, after: Some(after), ..Plan::SHARED };
    let model = Model::new(Settings::quiet(1, &[Plan::SHARED, again(0), again(1)], 1))
        .sometimes("a freed number is given again", given_again);
    explore("a ComputeDomain comes again", model, 15_980);
}

/// A deposed controller and its successor, whatever each knows, with two writes on their way.
#[test]
fn two_controllers_act() {
    let settings = Settings { leaders: 2, sent: 2, ..Settings::quiet(1, &[Plan::SHARED; 2], 1) };
    let model = Model::new(settings).sometimes("a freed number is given again", given_again);
    explore("two controllers", model, 349_808);
}

#[test]
fn a_backup_is_restored() {
    let faults = Faults { restores: 1, ..Faults::default() };
    let settings = Settings { faults, ..Settings::quiet(1, &[Plan::SHARED; 2], 1) };
    let model =
        Model::new(settings).sometimes("an alarm is raised", alarmed).sometimes("what was lost is put back", put_back);
    explore("a backup is restored", model, 692_243);
}
