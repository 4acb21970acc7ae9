//! The search for devices: claim after claim, request after request, with a way back when a choice leads nowhere.

use std::collections::BTreeMap;

use super::super::device_selector::Selectors;
use super::pools::{State, Visible};
use super::request::{Alternative, Amount, Plan};
use super::{MAX_RESULTS, Missing, Refusal, full_name};

/// Choices tried before the search is given up. The devices of one request are tried in ascending order only, so
/// that equal choices are not repeated; what needs more than this is a claim that no person wrote.
const MAX_STEPS: u32 = 100_000;

/// A device that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Its place in [`Visible::devices`].
    pub device: usize,
    /// The request it serves.
    pub request: usize,
    /// The alternative of the request.
    pub alternative: usize,
}

/// Where the search stands.
#[derive(Clone, Copy)]
struct At {
    claim: usize,
    request: usize,
}

enum Stop {
    /// A claim would hold more devices than it may: choose something smaller earlier.
    TooMany,
    Refused(Refusal),
}

/// One search on one node.
pub struct Search<'a> {
    visible: &'a Visible<'a>,
    plans: &'a [Plan<'a>],
    selectors: &'a mut Selectors,
    picks: Vec<Vec<Pick>>,
    /// Which of the claims have each device now.
    holders: Vec<Vec<usize>>,
    /// Which devices match which alternatives, as far as it was asked: claim, request, alternative, device.
    matching: BTreeMap<(usize, usize, usize, usize), bool>,
    steps: u32,
    /// The request farthest along that was ever reached: the one to name when there is no solution.
    farthest: (usize, usize),
    too_many: bool,
}

impl<'a> Search<'a> {
    /// Prepares a search.
    pub fn new(visible: &'a Visible<'a>, plans: &'a [Plan<'a>], selectors: &'a mut Selectors) -> Self {
        Self {
            visible,
            plans,
            selectors,
            picks: vec![Vec::new(); plans.len()],
            holders: vec![Vec::new(); visible.devices.len()],
            matching: BTreeMap::new(),
            steps: 0,
            farthest: (0, 0),
            too_many: false,
        }
    }

    /// The picks of each claim.
    ///
    /// # Errors
    /// Why there is no solution.
    pub fn run(mut self) -> Result<Vec<Vec<Pick>>, Refusal> {
        match self.request(At { claim: 0, request: 0 }) {
            Ok(true) => Ok(self.picks),
            Ok(false) | Err(Stop::TooMany) => Err(self.explain()),
            Err(Stop::Refused(refusal)) => Err(refusal),
        }
    }

    fn request(&mut self, at: At) -> Result<bool, Stop> {
        let plans = self.plans;
        let Some(plan) = plans.get(at.claim) else { return Ok(true) };
        let Some(request) = plan.requests.get(at.request) else {
            return match self.request(At { claim: at.claim + 1, request: 0 }) {
                // Another choice for this claim may make the next one smaller or not: go on trying.
                Err(Stop::TooMany) => Ok(false),
                other => other,
            };
        };
        self.farthest = self.farthest.max((at.claim, at.request));
        let mut only_too_many = true;
        for alternative in 0..request.alternatives.len() {
            match self.alternative(at, alternative) {
                Ok(true) => return Ok(true),
                Ok(false) => only_too_many = false,
                Err(Stop::TooMany) => {}
                Err(refused) => return Err(refused),
            }
        }
        if only_too_many { Err(Stop::TooMany) } else { Ok(false) }
    }

    fn alternative(&mut self, at: At, alternative: usize) -> Result<bool, Stop> {
        let plans = self.plans;
        let asked = &plans[at.claim].requests[at.request].alternatives[alternative];
        match asked.amount {
            Amount::Exactly(count) => {
                self.room_for(at, count)?;
                self.some(at, alternative, count, 0)
            }
            Amount::All => {
                let all = self.all(at, alternative)?;
                if all.is_empty() {
                    return Ok(false);
                }
                self.room_for(at, all.len())?;
                self.every(at, alternative, &all)
            }
        }
    }

    fn room_for(&mut self, at: At, count: usize) -> Result<(), Stop> {
        if self.picks[at.claim].len() + count > MAX_RESULTS {
            self.too_many = true;
            return Err(Stop::TooMany);
        }
        Ok(())
    }

    /// Picks `count` more devices, from the one at `from` on.
    fn some(&mut self, at: At, alternative: usize, count: usize, from: usize) -> Result<bool, Stop> {
        if count == 0 {
            return self.request(At { claim: at.claim, request: at.request + 1 });
        }
        let plans = self.plans;
        let asked = &plans[at.claim].requests[at.request].alternatives[alternative];
        for device in from..self.visible.devices.len() {
            self.step(at)?;
            if self.in_use(at, asked, device) || !self.matches(at, alternative, device)? {
                continue;
            }
            if !self.take(at, alternative, device) {
                continue;
            }
            let done = self.some(at, alternative, count - 1, device + 1);
            if matches!(done, Ok(true)) {
                return done;
            }
            self.give_back(at, device);
            done?;
        }
        Ok(false)
    }

    /// Picks exactly `devices`.
    fn every(&mut self, at: At, alternative: usize, devices: &[usize]) -> Result<bool, Stop> {
        let plans = self.plans;
        let plan = &plans[at.claim];
        let asked = &plan.requests[at.request].alternatives[alternative];
        for (i, &device) in devices.iter().enumerate() {
            self.step(at)?;
            let usable = !self.in_use(at, asked, device)
                && asked.hindering_taint(self.visible.devices[device].device.taints.as_ref()).is_none();
            if usable && !self.take(at, alternative, device) {
                return Err(Stop::Refused(Refusal::Claim(format!(
                    "claim {}, request {}: cannot add device {} because a claim constraint would not be satisfied",
                    full_name(plan.claim),
                    asked.name,
                    self.visible.devices[device].id
                ))));
            }
            if !usable {
                devices[..i].iter().for_each(|&device| self.give_back(at, device));
                return Ok(false);
            }
        }
        let done = self.request(At { claim: at.claim, request: at.request + 1 });
        if !matches!(done, Ok(true)) {
            devices.iter().for_each(|&device| self.give_back(at, device));
        }
        done
    }

    /// Every matching device. A pool that may hold more of them than it shows must not be guessed about.
    fn all(&mut self, at: At, alternative: usize) -> Result<Vec<usize>, Stop> {
        if let Some((pool, state)) = self.visible.broken.first() {
            let state = match state {
                State::Invalid => "invalid",
                State::Incomplete | State::Whole => "being updated",
            };
            return Err(Stop::Refused(Refusal::Node(format!(
                "claim {}, request {}: asks for all devices, but resource pool {pool} is currently {state}",
                full_name(self.plans[at.claim].claim),
                self.plans[at.claim].requests[at.request].alternatives[alternative].name
            ))));
        }
        let mut all = Vec::new();
        for device in 0..self.visible.devices.len() {
            if self.matches(at, alternative, device)? {
                all.push(device);
            }
        }
        Ok(all)
    }

    fn step(&mut self, at: At) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(Stop::Refused(Refusal::Node(format!(
                "claim {}: no solution among the first {MAX_STEPS} choices of devices",
                full_name(self.plans[at.claim].claim)
            ))));
        }
        Ok(())
    }

    fn in_use(&self, at: At, asked: &Alternative<'_>, device: usize) -> bool {
        let holders = &self.holders[device];
        if asked.admin {
            holders.contains(&at.claim)
        } else {
            self.visible.devices[device].taken || !holders.is_empty()
        }
    }

    fn matches(&mut self, at: At, alternative: usize, device: usize) -> Result<bool, Stop> {
        let key = (at.claim, at.request, alternative, device);
        if let Some(&answer) = self.matching.get(&key) {
            return Ok(answer);
        }
        let asked = &self.plans[at.claim].requests[at.request].alternatives[alternative];
        let answer = self.evaluate(at, asked, device)?;
        self.matching.insert(key, answer);
        Ok(answer)
    }

    fn evaluate(&mut self, at: At, asked: &Alternative<'_>, device: usize) -> Result<bool, Stop> {
        let visible = &self.visible.devices[device];
        // Devices that draw on shared counters, or that bind only after a condition, need features that are off by
        // default in the release whose API this cluster serves.
        let counters = visible.device.consumes_counters.iter().flatten().next();
        let conditions = visible.device.binding_conditions.iter().flatten().next();
        if counters.is_some() || conditions.is_some() {
            return Ok(false);
        }
        for (expression, place) in asked.expressions() {
            let version = visible.version.clone();
            match self.selectors.matches(expression, &visible.id.driver, visible.device, version) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    return Err(Stop::Refused(Refusal::Claim(format!(
                        "claim {}: {place} on device {}: {error}",
                        full_name(self.plans[at.claim].claim),
                        visible.id
                    ))));
                }
            }
        }
        Ok(true)
    }

    /// Picks a device if taints and constraints allow it.
    fn take(&mut self, at: At, alternative: usize, device: usize) -> bool {
        let plans = self.plans;
        let plan = &plans[at.claim];
        let request = &plan.requests[at.request];
        let asked = &request.alternatives[alternative];
        let visible = &self.visible.devices[device];
        if asked.hindering_taint(visible.device.taints.as_ref()).is_some() {
            return false;
        }
        for constraint in plan.constraints.iter().filter(|c| c.covers(request.name, &asked.name)) {
            let first = self.picks[at.claim].iter().find(|pick| {
                let request = &plan.requests[pick.request];
                constraint.covers(request.name, &request.alternatives[pick.alternative].name)
            });
            let first = first.map(|pick| &self.visible.devices[pick.device]);
            let first = first.map(|first| (first.id.driver.as_str(), first.device));
            if !constraint.allows(&visible.id.driver, visible.device, first) {
                return false;
            }
        }
        self.picks[at.claim].push(Pick { device, request: at.request, alternative });
        self.holders[device].push(at.claim);
        true
    }

    fn give_back(&mut self, at: At, device: usize) {
        self.picks[at.claim].retain(|pick| pick.device != device);
        self.holders[device].retain(|&claim| claim != at.claim);
    }

    fn explain(&mut self) -> Refusal {
        let (claim, request) = self.farthest;
        let plans = self.plans;
        let (Some(plan), Some(asked)) =
            (plans.get(claim), plans.get(claim).and_then(|plan| plan.requests.get(request)))
        else {
            return Refusal::Node("no devices were found".into());
        };
        let why: Vec<String> =
            (0..asked.alternatives.len()).map(|alternative| self.why_not(At { claim, request }, alternative)).collect();
        Refusal::Unfit(Missing {
            claim: plan.claim.metadata.name.clone().unwrap_or_default(),
            request: asked.name.to_owned(),
            why: why.join("; or "),
        })
    }

    fn why_not(&mut self, at: At, alternative: usize) -> String {
        let plans = self.plans;
        let asked = &plans[at.claim].requests[at.request].alternatives[alternative];
        let class = asked.class.metadata.name.as_deref().unwrap_or_default();
        let matching: Vec<usize> = (0..self.visible.devices.len())
            .filter(|&device| matches!(self.matches(at, alternative, device), Ok(true)))
            .collect();
        let devices = &self.visible.devices;
        let taken = matching.iter().filter(|&&device| !asked.admin && devices[device].taken).count();
        let taint = matching.iter().find_map(|&device| asked.hindering_taint(devices[device].device.taints.as_ref()));
        let total = matching.len();
        if total == 0 {
            return format!("no matching device of class {class}");
        }
        match asked.amount {
            _ if self.too_many => {
                format!("{total} devices of class {class}, a claim holds at most {MAX_RESULTS} in all")
            }
            Amount::All if taken > 0 => format!("needs all {total} devices of class {class}, {taken} are taken"),
            Amount::Exactly(count) if total - taken < count => {
                format!("needs {count} of class {class}, {} of {total} free", total - taken)
            }
            _ => match taint {
                Some(taint) => format!("devices of class {class} have untolerated taint {{{}}}", taint.key),
                None => format!("no combination of devices of class {class} satisfies all requests and constraints"),
            },
        }
    }
}
