use heddle_model::{Action, Model, State};
use stateright::{Checker, HasDiscoveries, Model as _, Path};

/// Explores everything. All that must hold always does, all that must happen sometimes happens, and there are exactly so
/// many states.
pub fn explore(what: &str, model: Model, states: usize) {
    let begin = std::time::Instant::now();
    let properties = model.properties();
    let checker = model.checker().threads(2).spawn_bfs().join();
    let found = checker.discoveries();
    let (unique, all, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    println!("{what}: {unique} states, {all} steps, {depth} deep, in {:.1} s", begin.elapsed().as_secs_f64());
    for property in properties {
        match (property.expectation, found.get(property.name)) {
            (stateright::Expectation::Sometimes, None) => panic!("{what}: {} never happens", property.name),
            (stateright::Expectation::Sometimes, Some(_)) | (_, None) => {}
            (_, Some(path)) => panic!("{what}: {} does not hold: {}", property.name, tell(checker.model(), path)),
        }
    }
    assert_eq!(unique, states, "{what} has another number of states than it had");
}

/// How the shortest run that breaks something breaks what.
pub fn breaks(model: Model) -> (&'static str, Vec<Action>) {
    let checker = model.checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries().into_iter().min_by_key(|(_, path)| path.clone().into_actions().len());
    let (name, path) = found.expect("the bug is found");
    println!("{name} is broken: {}", tell(checker.model(), &path));
    (name, path.into_actions())
}

fn tell(model: &Model, path: &Path<State, Action>) -> String {
    let last = path.last_state();
    let steps: Vec<_> = path.clone().into_actions().iter().map(|action| format!("  {action:?}")).collect();
    format!("after\n{}\n{last:#?}\n{:?}, then {:?}", steps.join("\n"), model.report(last), model.rest(last))
}
