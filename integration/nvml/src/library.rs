//! The library's own state: whether it is initialised, and the scenario.

use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::abi::{Code, DRIVER_NOT_LOADED, GPU_IS_LOST, Handle, SUCCESS, UNINITIALIZED, UNKNOWN};
use crate::scenario::{Gpu, SCENARIO_ENV, Scenario};

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, read: None });

struct Library {
    /// Initialisations less shutdowns.
    users: u32,
    read: Option<Read>,
}

struct Read {
    path: PathBuf,
    /// A file put in its place shows by one of these.
    version: Option<(SystemTime, u64, u64)>,
    scenario: Result<Arc<Scenario>, Code>,
}

/// The scenario as it is now.
pub fn scenario() -> Result<Arc<Scenario>, Code> {
    let path = std::env::var_os(SCENARIO_ENV).map(PathBuf::from).ok_or(DRIVER_NOT_LOADED)?;
    let version = std::fs::metadata(&path).and_then(|meta| Ok((meta.modified()?, meta.ino(), meta.len()))).ok();
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(read) = &library.read
        && read.path == path
        && read.version == version
    {
        return read.scenario.clone();
    }
    let scenario = match Scenario::read(&path) {
        Ok(scenario) => Ok(Arc::new(scenario)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(DRIVER_NOT_LOADED),
        Err(error) => {
            eprintln!("fake NVML: {}: {error}", path.display());
            Err(UNKNOWN)
        }
    };
    library.read = Some(Read { path, version, scenario: scenario.clone() });
    scenario
}

/// Counts one more user.
pub fn initialise(name: &str) -> Code {
    let initialised = scenario().and_then(|scenario| forced(name, &scenario.fail));
    match initialised {
        Ok(()) => {
            LIBRARY.lock().unwrap_or_else(PoisonError::into_inner).users += 1;
            SUCCESS
        }
        Err(code) => code,
    }
}

/// Counts one user less.
pub fn shut_down() -> Code {
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    match library.users.checked_sub(1) {
        Some(users) => {
            library.users = users;
            SUCCESS
        }
        None => UNINITIALIZED,
    }
}

fn forced(name: &str, fail: &std::collections::BTreeMap<String, Code>) -> Result<(), Code> {
    match fail.get(name) {
        Some(code) => Err(*code),
        None => Ok(()),
    }
}

/// Answers a call by the scenario, or as the scenario forces it to. A panic must not reach the C side.
pub fn call(name: &str, answer: impl FnOnce(&Scenario) -> Result<(), Code>) -> Code {
    let answered = catch_unwind(AssertUnwindSafe(|| {
        if LIBRARY.lock().unwrap_or_else(PoisonError::into_inner).users == 0 {
            return Err(UNINITIALIZED);
        }
        let scenario = scenario()?;
        forced(name, &scenario.fail)?;
        answer(&scenario)
    }));
    match answered {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// The same for a call about one GPU.
pub fn call_on(name: &str, device: Handle, answer: impl FnOnce(&Scenario, &Gpu, u32) -> Result<(), Code>) -> Code {
    call(name, |scenario| {
        let index = device.number()?;
        // One that a changed scenario no longer has.
        let gpu = scenario.gpus.get(index).ok_or(GPU_IS_LOST)?;
        forced(name, &gpu.fail)?;
        answer(scenario, gpu, index as u32)
    })
}
