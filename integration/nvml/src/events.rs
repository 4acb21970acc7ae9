//! Event sets.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::{Code, EventData, GPU_IS_LOST, Handle, INVALID_ARGUMENT, NOT_SUPPORTED, Out, SUCCESS, TIMEOUT};
use crate::library::{call, call_on, scenario};
use crate::scenario::Scenario;

/// How often a waiting set looks whether the scenario has changed.
const INTERVAL: Duration = Duration::from_millis(10);

/// Event types that there are: XID 0x8, GPU unavailable 0x4000, recovery action changed 0x8000, and the older ones.
const KNOWN: u64 = 0xffff;

static SETS: Mutex<Sets> = Mutex::new(Sets { last: 0, sets: BTreeMap::new() });

struct Sets {
    last: usize,
    sets: BTreeMap<usize, EventSet>,
}

#[derive(Default)]
struct EventSet {
    /// Events up to this one are over.
    seen: u64,
    /// Masks by GPU.
    masks: BTreeMap<u32, u64>,
}

fn with_set<T>(set: Handle, act: impl FnOnce(&mut EventSet) -> T) -> Result<T, Code> {
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.sets.get_mut(&set.number()?).map(act).ok_or(INVALID_ARGUMENT)
}

impl EventSet {
    fn next(&mut self, scenario: &Scenario) -> Option<EventData> {
        let wanted = |kind, gpu| self.masks.get(&gpu).is_some_and(|mask| mask & kind != 0);
        let new = scenario.events.iter().filter(|event| event.sequence > self.seen && wanted(event.kind, event.gpu));
        let event = new.min_by_key(|event| event.sequence)?;
        self.seen = event.sequence;
        Some(EventData {
            device: Handle::of(event.gpu as usize),
            event_type: event.kind,
            event_data: event.data,
            gpu_instance: u32::MAX,
            compute_instance: u32::MAX,
        })
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(set: Out<Handle>) -> Code {
    call("nvmlEventSetCreate", |scenario| {
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = scenario.events.iter().map(|event| event.sequence).max().unwrap_or(0);
        sets.last += 1;
        let number = sets.last;
        sets.sets.insert(number, EventSet { seen, masks: BTreeMap::new() });
        set.put(Handle::of(number))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(set: Handle) -> Code {
    call("nvmlEventSetFree", |_| {
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.sets.remove(&set.number()?).map(drop).ok_or(INVALID_ARGUMENT)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(device: Handle, types: u64, set: Handle) -> Code {
    call_on("nvmlDeviceRegisterEvents", device, |_, _, index| {
        if types & !KNOWN != 0 {
            return Err(NOT_SUPPORTED);
        }
        with_set(set, |set| *set.masks.entry(index).or_default() |= types)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: Out<u64>) -> Code {
    call_on("nvmlDeviceGetSupportedEventTypes", device, |_, _, _| types.put(KNOWN))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(set: Handle, data: Out<EventData>, timeout_ms: u32) -> Code {
    let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
    loop {
        let mut found = false;
        let code = call("nvmlEventSetWait_v2", |scenario| {
            let Some(event) = with_set(set, |set| set.next(scenario))? else { return Ok(()) };
            found = true;
            data.put(event)
        });
        if found || code != SUCCESS {
            return code;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return if scenario().is_ok_and(|scenario| scenario.gpus.is_empty()) { GPU_IS_LOST } else { TIMEOUT };
        }
        std::thread::sleep(left.min(INTERVAL));
    }
}
