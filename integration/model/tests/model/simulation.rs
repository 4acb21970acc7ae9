//! Random runs of a larger cluster. `HEDDLE_SEED=n` plays one again, `HEDDLE_SEEDS=n` plays so many.

use heddle_model::properties::{fenced, prepared, prepared_exclusively, quarantined, reclaimed, revived};
use heddle_model::{Faults, Model, Plan, Settings, State, simulate};

/// Five nodes in two cliques, ten ComputeDomains of which four live at a time, three numbers, two controllers.
fn cluster() -> Settings {
    let next = |plan: Plan, before: usize| Plan { there: false, after: Some(before), ..plan };
    let (shared, exclusive) = (Plan::SHARED, Plan::EXCLUSIVE);
    let first = [shared, shared, shared, exclusive];
    let second = [next(shared, 0), next(shared, 1), next(exclusive, 3)];
    Settings {
        cliques: 2,
        leaders: 2,
        sent: 4,
        detailed: true,
        together: true,
        certificates: true,
        faults: Faults { crashes: 6, unanswered: 6, lost: 1, releases: 1, ..Faults::default() },
        ..Settings::quiet(5, &[&first[..], &second[..]].concat(), 3)
    }
}

/// One number for three ComputeDomains at a time, on two nodes: it is taken back from whoever does not use it.
fn scarce() -> Settings {
    let faults = Faults { crashes: 4, unanswered: 4, ..Faults::default() };
    let next = |before| Plan { there: false, after: Some(before), ..Plan::SHARED };
    let cds: Vec<Plan> = [Plan::SHARED; 3].into_iter().chain((0..6).map(next)).collect();
    Settings { leaders: 2, sent: 3, detailed: true, together: true, faults, ..Settings::quiet(2, &cds, 1) }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn random_runs_hold_and_come_to_rest() {
    let conditions: [(&str, Condition); 4] = [
        ("prepared", |model, _, state| prepared(model, state)),
        ("prepared exclusively", |model, _, state| prepared_exclusively(model, state)),
        ("quarantined", |model, _, state| quarantined(model, state)),
        ("fenced", |model, _, state| fenced(model, state)),
    ];
    play(cluster, conditions);
}

#[test]
fn a_number_is_taken_back_and_opened_again() {
    let conditions: [(&str, Condition); 3] = [
        ("prepared", |model, _, state| prepared(model, state)),
        ("taken back", |model, _, state| reclaimed(model, state)),
        ("opened again", revived),
    ];
    play(scarce, conditions);
}

/// Of the model, the state before, and the state.
type Condition = fn(&Model, &State, &State) -> bool;

/// Plays random runs, in some of which each of these must happen.
fn play<const N: usize>(settings: fn() -> Settings, conditions: [(&str, Condition); N]) {
    let seeds = match number("HEDDLE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEDDLE_SEEDS").unwrap_or(24),
    };
    let mut seen = conditions.map(|(what, _)| (what, 0));
    for seed in seeds.clone() {
        let model = Model::new(settings());
        let mut happened = [false; N];
        let mut before = model.at_work();
        let run = simulate(&model, seed, 3000, |state| {
            for (happened, (_, condition)) in happened.iter_mut().zip(&conditions) {
                *happened |= condition(&model, &before, state);
            }
            before = state.clone();
        });
        seen.iter_mut().zip(happened).for_each(|((_, count), happened)| *count += u32::from(happened));
        if let Some(wrong) = run.wrong {
            run.steps.iter().for_each(|step| eprintln!("  {step}"));
            panic!("HEDDLE_SEED={seed} breaks it after {} steps: {wrong}\n{:#?}", run.steps.len(), run.state);
        }
    }
    println!("{seen:?}");
    if seeds.end - seeds.start > 1 {
        assert!(seen.iter().all(|(_, count)| *count > 0), "the runs are vacuous: {seen:?}");
    }
}
