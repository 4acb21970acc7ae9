//! Random runs of a larger cluster. `HEDDLE_SEED=n` plays one again, `HEDDLE_SEEDS=n` plays so many.

use heddle_model::{Faults, Model, Plan, Settings, simulate};

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
        faults: Faults { crashes: 6, unanswered: 6, lost: 1, ..Faults::default() },
        ..Settings::quiet(5, &[&first[..], &second[..]].concat(), 3)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn random_runs_hold_and_come_to_rest() {
    let seeds = match number("HEDDLE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEDDLE_SEEDS").unwrap_or(24),
    };
    let mut seen = [("prepared", 0), ("prepared exclusively", 0), ("quarantined", 0), ("fenced", 0)];
    for seed in seeds.clone() {
        let model = Model::new(cluster());
        let mut happened = [false; 4];
        let run = simulate(&model, seed, 3000, |state| {
            use heddle_model::properties::{fenced, prepared, prepared_exclusively, quarantined};
            for (happened, condition) in happened.iter_mut().zip([prepared, prepared_exclusively, quarantined, fenced])
            {
                *happened |= condition(&model, state);
            }
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
