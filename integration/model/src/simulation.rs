use stateright::Model as _;

use crate::action::{Act, Action};
use crate::model::Model;
use crate::rest::Rest;
use crate::state::State;

/// How a random run went.
pub struct Run {
    /// Every step, in words.
    pub steps: Vec<String>,
    /// The state at its end.
    pub state: State,
    /// What was wrong after the last step.
    pub wrong: Option<String>,
}

/// Tries `steps` random steps, and stops at the first that leaves something wrong. The same seed is the same run.
pub fn simulate(model: &Model, seed: u64, steps: usize, mut seen: impl FnMut(&State)) -> Run {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut run = Run { steps: Vec::new(), state: model.at_work(), wrong: None };
    let mut actions = Vec::new();
    for _ in 0..steps {
        if run.wrong.is_some() {
            break;
        }
        actions.clear();
        model.happenings(&run.state, &mut actions);
        let leaders = DECIDES * run.state.leaders.len() as u32;
        let happen: u32 = actions.iter().map(weight).sum();
        let mut at = random.u32(0..happen + leaders);
        if at < leaders {
            actions.clear();
            actions.extend(model.decisions(&run.state, (at / DECIDES) as usize));
            at = random.u32(0..(DECIDES * actions.len() as u32).max(1));
        } else {
            at -= leaders;
        }
        let chosen = actions.iter().find(|action| {
            let here = at < weight(action);
            at = at.saturating_sub(weight(action));
            here
        });
        let Some(action) = chosen else { continue };
        let Some(next) = model.next_state(&run.state, *action) else { continue };
        run.steps.push(format!("{action:?}"));
        run.state = next;
        seen(&run.state);
        let report = model.report(&run.state);
        if !report.holds() {
            run.wrong = Some(report.all().map(ToString::to_string).collect::<Vec<_>>().join("; "));
        }
    }
    if run.wrong.is_none() {
        let rest = model.rest(&run.state);
        run.wrong = (rest != Rest::Well).then(|| format!("at rest: {rest:?}"));
    }
    run
}

/// How much a controller is at work.
const DECIDES: u32 = 96;

/// Much of what can happen is people and faults. Most of what does happen is work.
fn weight(action: &Action) -> u32 {
    match action {
        Action::Create(_) | Action::Release(_) => 4,
        Action::Delete(_) | Action::Backup | Action::Restore | Action::Believe(..) => 1,
        Action::Drop(_) | Action::EndClaim(..) => 3,
        Action::Schedule(..) => 8,
        Action::Arrive(_) => 80,
        Action::See(..) => 32,
        Action::Decide(..) => DECIDES,
        Action::Agent(_, act) => match act {
            Act::Crash | Act::Lose | Act::NoAnswer | Act::GiveUp(_) => 1,
            Act::Answer | Act::Obey => 80,
            Act::Ghost => 8,
            _ => 32,
        },
    }
}
