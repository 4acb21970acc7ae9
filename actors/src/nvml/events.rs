//! NVML's events, by its raw calls: nvml-wrapper drops those kinds that it has no name for, and ours are among them.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use heddle_core::inventory::{GpuEvent, Happening};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeGpuRecoveryAction,
    nvmlEventTypeGpuUnavailableError, nvmlEventTypeXidCriticalError, nvmlReturn_t,
};

use super::library::{Library, SUCCESS};

const TIMEOUT: nvmlReturn_t = 10;

const XID: u64 = nvmlEventTypeXidCriticalError as u64;
/// The kinds that are listened for.
const KINDS: u64 = XID | nvmlEventTypeGpuUnavailableError as u64 | nvmlEventTypeGpuRecoveryAction as u64;

/// How long a call may wait: so long it may take until a listener that is not wanted any more lets go of the library.
const WAIT_MS: u32 = 1000;

/// Listens on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Listener {
    stop: Arc<AtomicBool>,
}

impl Listener {
    /// Tells `heard` of every event. `ended` is called when NVML has no events, or none any more: it may have lost a GPU, or
    /// the driver.
    pub fn start(
        library: Arc<Library>,
        heard: impl Fn(GpuEvent) + Send + 'static,
        ended: impl FnOnce(String) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        // Not one of the pool's threads: it waits for ever, and a call to a GPU that hangs may never come back.
        let thread = std::thread::Builder::new().name("nvml-events".into()).spawn(move || {
            let why = listen(&library, &stopped, heard);
            drop(library);
            if !stopped.load(Ordering::Relaxed) {
                ended(why);
            }
        });
        if let Err(error) = thread {
            tracing::warn!("NVML's events are not listened to, no thread could be started: {error}");
        }
        Self { stop }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Listens until `stop`, or until NVML says something else than an event; says what.
fn listen(library: &Library, stop: &AtomicBool, heard: impl Fn(GpuEvent)) -> String {
    let lib = library.nvml.lib();
    let set = match Set::new(lib) {
        Ok(set) => set,
        Err(why) => return why,
    };
    let mut uuids = BTreeMap::new();
    for index in 0..library.nvml.device_count().unwrap_or(0) {
        let Ok(device) = library.nvml.device_by_index(index) else { continue };
        let Ok(uuid) = device.uuid() else { continue };
        // SAFETY: the handle is only given to calls of this library, which `library` keeps open.
        let handle = unsafe { device.handle() };
        if set.add(handle) {
            uuids.insert(handle.addr(), uuid);
        }
    }
    if uuids.is_empty() {
        return "no GPU of this node tells of events".into();
    }
    while !stop.load(Ordering::Relaxed) {
        match set.wait() {
            Ok(Some(data)) => {
                let happening =
                    if data.eventType & XID == 0 { Happening::Look } else { Happening::Xid(data.eventData) };
                if let Some(uuid) = uuids.get(&data.device.addr()) {
                    heard(GpuEvent { uuid: uuid.clone(), happening });
                }
            }
            Ok(None) => {}
            Err(code) => return format!("waiting for NVML's events ended with code {code}"),
        }
    }
    String::new()
}

/// An event set; freed in the end.
struct Set<'a> {
    lib: &'a NvmlLib,
    set: nvmlEventSet_t,
}

impl<'a> Set<'a> {
    fn new(lib: &'a NvmlLib) -> Result<Self, String> {
        let known = lib.nvmlEventSetCreate.as_ref().and_then(|create| {
            // One that cannot be waited for, or given back, is not begun with.
            lib.nvmlEventSetWait_v2.as_ref()?;
            lib.nvmlEventSetFree.as_ref()?;
            lib.nvmlDeviceRegisterEvents.as_ref()?;
            Ok(create)
        });
        let create = known.map_err(|error| format!("this NVML has no events: {error}"))?;
        let mut set = std::ptr::null_mut();
        // SAFETY: the symbol has this signature in every NVML, and `set` outlives the call.
        match unsafe { create(&mut set) } {
            SUCCESS => Ok(Self { lib, set }),
            code => Err(format!("NVML gives no event set, code {code}")),
        }
    }

    /// Listens to those of our kinds that the GPU has.
    fn add(&self, device: nvmlDevice_t) -> bool {
        let mut supported = 0;
        let kinds = match self.lib.nvmlDeviceGetSupportedEventTypes.as_ref() {
            // SAFETY: `device` is of this library, and `supported` outlives the call.
            Ok(ask) if unsafe { ask(device, &mut supported) } == SUCCESS => KINDS & supported,
            _ => XID,
        };
        let Ok(register) = self.lib.nvmlDeviceRegisterEvents.as_ref() else { return false };
        // SAFETY: `device` and `self.set` are of this library.
        kinds != 0 && unsafe { register(device, kinds, self.set) } == SUCCESS
    }

    /// The next event, if one comes in time.
    fn wait(&self) -> Result<Option<nvmlEventData_t>, nvmlReturn_t> {
        let Ok(wait) = self.lib.nvmlEventSetWait_v2.as_ref() else { return Ok(None) };
        let mut data = nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        // SAFETY: `self.set` is of this library, and `data` is of the one layout that this call knows.
        match unsafe { wait(self.set, &mut data, WAIT_MS) } {
            SUCCESS => Ok(Some(data)),
            TIMEOUT => Ok(None),
            code => Err(code),
        }
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        if let Ok(free) = self.lib.nvmlEventSetFree.as_ref() {
            // SAFETY: the set is of this library and is not used any more. There is nothing to be done about a refusal.
            unsafe { free(self.set) };
        }
    }
}
