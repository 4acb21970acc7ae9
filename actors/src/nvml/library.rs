//! `libnvidia-ml.so.1`, opened below the driver root and read as it is; what it means is decided in
//! [`heddle_core::inventory`].

// The module id is not wrapped by nvml-wrapper.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use heddle_core::fault::{Fault, reason};
use heddle_core::inventory::{GpuReading, Reading, Unreadable};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};

use nvml_wrapper_sys::bindings::NvmlLib;

use super::fabric;

/// Where drivers and distributions put it, below the driver root.
const FOLDERS: [&str; 8] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "usr/local/lib",
];

const FILE: &str = "libnvidia-ml.so.1";

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: FieldId = FieldId(230);

/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ON: u32 = 1;

/// `NVML_SUCCESS`.
pub(super) const SUCCESS: u32 = 0;

/// NVML could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What happened, and what to do.
    message: String,
    /// The kernel module is not loaded, or is another one than the library's: whatever it knew of the GPUs is gone.
    pub driver_gone: bool,
}

impl Failure {
    pub(super) fn new(message: String, error: Option<&NvmlError>) -> Self {
        let driver_gone = matches!(error, Some(NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch));
        Self { message, driver_gone }
    }

    /// The thread that read NVML has panicked.
    pub(crate) fn of_panic(panic: &tokio::task::JoinError) -> Self {
        Self::new(format!("reading NVML failed: {panic}"), None)
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::retryable(reason::NVML, failure)
    }
}

/// The open and initialised library. Its calls may take long, or never come back from a GPU that hangs: make them on a
/// thread that may block.
#[derive(Debug)]
pub struct Library {
    pub(super) nvml: Nvml,
}

impl Library {
    /// Opens it below this root.
    ///
    /// # Errors
    /// There is none, it is none, or it finds no driver.
    pub fn open(driver_root: &Path) -> Result<Self, Failure> {
        // A relative name would be looked for in the folders of the dynamic linker instead.
        let root = std::path::absolute(driver_root).map_err(|error| Failure::new(error.to_string(), None))?;
        let found: Vec<PathBuf> =
            FOLDERS.iter().map(|folder| root.join(folder).join(FILE)).filter(|path| path.is_file()).collect();
        if found.is_empty() {
            let message = format!(
                "no {FILE} in the library folders of {}: install the NVIDIA driver, or set the driver root to where \
                 it is",
                root.display()
            );
            return Err(Failure::new(message, None));
        }
        let mut failed = Vec::new();
        let mut driver_gone = false;
        for path in found {
            let error = match open_at(&path) {
                Ok(nvml) => return Ok(Self { nvml }),
                Err(error) => error,
            };
            let failure = Failure::new(format!("{}: {error}{}", path.display(), advice(&error)), Some(&error));
            driver_gone |= failure.driver_gone;
            failed.push(failure.message);
        }
        let message = format!("cannot use the NVIDIA management library: {}", failed.join("; "));
        Err(Failure { message, driver_gone })
    }

    /// Reads all GPUs. One that cannot be read is named in the result.
    ///
    /// # Errors
    /// NVML does not even count them.
    pub fn read(&self) -> Result<Reading, Failure> {
        let count = self.nvml.device_count().map_err(|error| {
            Failure::new(format!("NVML cannot count the GPUs: {error}{}", advice(&error)), Some(&error))
        })?;
        let mut reading = Reading {
            driver_version: self.nvml.sys_driver_version().unwrap_or_default(),
            cuda_driver_version: self.nvml.sys_cuda_driver_version().unwrap_or_default(),
            ..Reading::default()
        };
        for index in 0..count {
            match self.nvml.device_by_index(index).and_then(|device| self.read_gpu(index, &device)) {
                Ok(gpu) => reading.gpus.push(gpu),
                // The driver has gone away between two calls.
                Err(
                    error @ (NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch | NvmlError::Uninitialized),
                ) => {
                    let message = format!("NVML cannot read GPU {index}: {error}{}", advice(&error));
                    return Err(Failure::new(message, Some(&error)));
                }
                Err(error) => reading.unreadable.push(Unreadable {
                    index,
                    lost: matches!(error, NvmlError::GpuLost),
                    why: error.to_string(),
                }),
            }
        }
        Ok(reading)
    }

    /// What a GPU must say to be used is an error when absent; what some products or drivers do not know is left out.
    fn read_gpu(&self, index: u32, device: &Device<'_>) -> Result<GpuReading, NvmlError> {
        let capability = device.cuda_compute_capability().ok();
        Ok(GpuReading {
            index,
            minor: device.minor_number().ok(),
            uuid: device.uuid()?,
            name: device.name()?,
            brand: number(device.brand().map(|brand| brand.as_c())),
            architecture: number(device.architecture().map(|architecture| architecture.as_c())),
            compute_capability: capability.map_or((0, 0), |capability| (capability.major, capability.minor)),
            pci_bus_id: device.pci_info()?.bus_id,
            memory_bytes: device.memory_info().map_or(0, |memory| memory.total),
            module_id: self.module_id(device),
            fabric: fabric::read(&self.nvml, device),
            recovery_action: recovery_action(device),
            // Most GPUs know no MIG, and then it is off.
            mig: device.mig_mode().is_ok_and(|mode| mode.current == MIG_ON),
            numa_node: None,
            pcie_root: None,
        })
    }

    fn module_id(&self, device: &Device<'_>) -> Option<u32> {
        let call = self.nvml.lib().nvmlDeviceGetModuleId.as_ref().ok()?;
        let mut id = 0;
        // SAFETY: the symbol has this signature in every NVML; the handle is of a device of this initialised library,
        // and `id` outlives the call.
        let code = unsafe { call(device.handle(), &mut id) };
        (code == SUCCESS).then_some(id)
    }
}

/// Opens and initialises the library at this path.
fn open_at(path: &Path) -> Result<Nvml, NvmlError> {
    // SAFETY: looking symbols up runs the library's own initialisers and nothing else; it is the driver's, below a root
    // that only the node's administrators write.
    let lib = unsafe { NvmlLib::new(path) }?;
    // The wrapper ends with nvmlShutdown and panics where there is none, so such a library is not begun with.
    if let Some(error) = lib.nvmlShutdown.as_ref().err() {
        return Err(NvmlError::FailedToLoadSymbol(error.to_string()));
    }
    drop(lib);
    Nvml::builder().lib_path(path.as_os_str()).init()
}

/// What a person can do about an answer that is not a GPU's.
fn advice(error: &NvmlError) -> &'static str {
    match error {
        NvmlError::DriverNotLoaded => {
            "; load the driver's kernel modules (dmesg says why they are not), or wait for its installer"
        }
        NvmlError::LibRmVersionMismatch => {
            "; the library and the loaded kernel module are of different versions: finish the driver's update, or reboot the node"
        }
        NvmlError::LibraryNotFound => {
            "; the driver's installation below the driver root is not whole: install it again"
        }
        NvmlError::NoPermission | NvmlError::OperatingSystem => {
            "; the agent must be allowed to open /dev/nvidiactl and /dev/nvidia*: run it privileged"
        }
        NvmlError::FailedToLoadSymbol(_) => {
            "; this is no NVML, or one that is much too old: install a driver of R570 or newer"
        }
        _ => "",
    }
}

/// The number behind an enumeration, also one that the wrapper does not know yet.
fn number(answer: Result<u32, NvmlError>) -> u32 {
    match answer {
        Ok(number) | Err(NvmlError::UnexpectedVariant(number)) => number,
        Err(_) => 0,
    }
}

fn recovery_action(device: &Device<'_>) -> u32 {
    let values = device.field_values_for(&[RECOVERY_ACTION]).unwrap_or_default();
    match values.into_iter().next().and_then(Result::ok).and_then(|sample| sample.value.ok()) {
        Some(SampleValue::U32(action)) => action,
        Some(SampleValue::U64(action)) => u32::try_from(action).unwrap_or(u32::MAX),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_driver_is_said_with_the_place() {
        let root = tempfile::tempdir().unwrap();
        let fault = Fault::from(Library::open(root.path()).unwrap_err());
        assert_eq!(fault.reason, reason::NVML);
        assert!(fault.message.contains(&root.path().display().to_string()), "{fault}");
    }

    #[test]
    fn a_library_that_is_none_is_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("usr/lib64")).unwrap();
        std::fs::write(root.path().join("usr/lib64").join(FILE), "no library").unwrap();
        let fault = Fault::from(Library::open(root.path()).unwrap_err());
        assert!(fault.message.contains("usr/lib64/libnvidia-ml.so.1"), "{fault}");
    }
}
