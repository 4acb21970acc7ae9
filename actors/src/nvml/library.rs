//! `libnvidia-ml.so.1`, opened below the driver root and read as it is; what it means is decided in
//! [`heddle_core::inventory`].

// Three calls are not wrapped by nvml-wrapper and are made here by their raw symbols.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use heddle_core::fault::{Fault, reason};
use heddle_core::inventory::{FabricInfo, FabricReading, GpuReading, Reading};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlReturn_t,
};
use uuid::Uuid;

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

const SUCCESS: nvmlReturn_t = 0;
const NOT_SUPPORTED: nvmlReturn_t = 3;
const FUNCTION_NOT_FOUND: nvmlReturn_t = 13;
const ARGUMENT_VERSION_MISMATCH: nvmlReturn_t = 25;

/// The open and initialised library. Its calls may take long, or never come back from a GPU that hangs: make them on a
/// thread that may block.
#[derive(Debug)]
pub struct Library {
    nvml: Nvml,
}

impl Library {
    /// Opens it below this root.
    pub fn open(driver_root: &Path) -> Result<Self, Fault> {
        let unusable = |why: &dyn std::fmt::Display| Fault::retryable(reason::NVML, why);
        // A relative name would be looked for in the folders of the dynamic linker instead.
        let root = std::path::absolute(driver_root).map_err(|error| unusable(&error))?;
        let found: Vec<PathBuf> =
            FOLDERS.iter().map(|folder| root.join(folder).join(FILE)).filter(|path| path.exists()).collect();
        if found.is_empty() {
            return Err(unusable(&format_args!(
                "no {FILE} in the library folders of {}: install the NVIDIA driver, or set the driver root to where \
                 it is",
                root.display()
            )));
        }
        let mut failed = Vec::new();
        for path in found {
            match Nvml::builder().lib_path(path.as_os_str()).init() {
                Ok(nvml) => return Ok(Self { nvml }),
                Err(error) => failed.push(format!("{}: {error}", path.display())),
            }
        }
        Err(unusable(&format_args!("cannot use the NVIDIA management library: {}", failed.join("; "))))
    }

    /// Reads all GPUs. One that cannot be read is named in the result.
    pub fn read(&self) -> Result<Reading, Fault> {
        let failed = |what: &str, error: NvmlError| Fault::retryable(reason::NVML, format!("NVML {what}: {error}"));
        let count = self.nvml.device_count().map_err(|error| failed("cannot count the GPUs", error))?;
        let mut reading = Reading {
            driver_version: self.nvml.sys_driver_version().unwrap_or_default(),
            cuda_driver_version: self.nvml.sys_cuda_driver_version().unwrap_or_default(),
            ..Reading::default()
        };
        for index in 0..count {
            match self.nvml.device_by_index(index).and_then(|device| self.read_gpu(index, &device)) {
                Ok(gpu) => reading.gpus.push(gpu),
                Err(error) => reading.unreadable.push(format!("GPU {index} cannot be read: {error}")),
            }
        }
        Ok(reading)
    }

    /// What a GPU must say to be used is an error when absent; what some products or drivers do not know is left out.
    fn read_gpu(&self, index: u32, device: &Device<'_>) -> Result<GpuReading, NvmlError> {
        let capability = device.cuda_compute_capability().ok();
        Ok(GpuReading {
            index,
            uuid: device.uuid()?,
            name: device.name()?,
            brand: number(device.brand().map(|brand| brand.as_c())),
            architecture: number(device.architecture().map(|architecture| architecture.as_c())),
            compute_capability: capability.map_or((0, 0), |capability| (capability.major, capability.minor)),
            pci_bus_id: device.pci_info()?.bus_id,
            memory_bytes: device.memory_info().map_or(0, |memory| memory.total),
            module_id: self.module_id(device),
            fabric: self.fabric(device),
            recovery_action: recovery_action(device),
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

    /// Asks in the newest layout first: each driver knows those up to its own.
    fn fabric(&self, device: &Device<'_>) -> FabricReading {
        // SAFETY: the handle is only given to calls of the library that it came from, which `device` keeps borrowed.
        let handle = unsafe { device.handle() };
        let lib = self.nvml.lib();
        let mut code = FUNCTION_NOT_FOUND;
        for ask in [fabric_v3, fabric_v2, fabric_v1] {
            match ask(lib, handle) {
                Ok(info) => return FabricReading::Info(info),
                Err(refused) => code = refused,
            }
            if code != FUNCTION_NOT_FOUND && code != ARGUMENT_VERSION_MISMATCH {
                break;
            }
        }
        match code {
            NOT_SUPPORTED | FUNCTION_NOT_FOUND => FabricReading::Unsupported,
            _ => FabricReading::Failed(NvmlError::from(code).to_string()),
        }
    }
}

/// The tag of a versioned structure: `NVML_STRUCT_VERSION`.
const fn tag<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

type Fabric<T> = Result<T, nvmlReturn_t>;

/// The call that v2 and v3 share. The structure begins alike in both, and the driver writes only as much as the tag
/// says.
fn fabric_v(lib: &NvmlLib, device: nvmlDevice_t, tag: u32) -> Fabric<nvmlGpuFabricInfo_v3_t> {
    let call = lib.nvmlDeviceGetGpuFabricInfoV.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    let mut info = nvmlGpuFabricInfo_v3_t {
        version: tag,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: the symbol has this signature in every NVML that has it, `device` is a handle of this library, and `info`
    // has at least the size that its tag names.
    match unsafe { call(device, &mut info) } {
        SUCCESS => Ok(info),
        code => Err(code),
    }
}

fn fabric_v3(lib: &NvmlLib, device: nvmlDevice_t) -> Fabric<FabricInfo> {
    let info = fabric_v(lib, device, tag::<nvmlGpuFabricInfo_v3_t>(3))?;
    Ok(FabricInfo { health_summary: Some(info.healthSummary), ..from_v(&info) })
}

fn fabric_v2(lib: &NvmlLib, device: nvmlDevice_t) -> Fabric<FabricInfo> {
    fabric_v(lib, device, tag::<nvmlGpuFabricInfo_v2_t>(2)).map(|info| from_v(&info))
}

fn from_v(info: &nvmlGpuFabricInfo_v3_t) -> FabricInfo {
    FabricInfo {
        state: info.state,
        status: info.status,
        cluster: Uuid::from_bytes(info.clusterUuid),
        clique: info.cliqueId,
        health_mask: Some(info.healthMask),
        health_summary: None,
    }
}

fn fabric_v1(lib: &NvmlLib, device: nvmlDevice_t) -> Fabric<FabricInfo> {
    let call = lib.nvmlDeviceGetGpuFabricInfo.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    let mut info = nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    // SAFETY: as above; this structure has one layout only.
    match unsafe { call(device, &mut info) } {
        SUCCESS => Ok(FabricInfo {
            state: info.state,
            status: info.status,
            cluster: Uuid::from_bytes(info.clusterUuid),
            clique: info.cliqueId,
            health_mask: None,
            health_summary: None,
        }),
        code => Err(code),
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
    fn tags_are_those_of_the_c_macro() {
        assert_eq!(tag::<nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(tag::<nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
    }

    #[test]
    fn a_missing_driver_is_said_with_the_place() {
        let root = tempfile::tempdir().unwrap();
        let fault = Library::open(root.path()).unwrap_err();
        assert_eq!(fault.reason, reason::NVML);
        assert!(fault.message.contains(&root.path().display().to_string()), "{fault}");
    }

    #[test]
    fn a_library_that_is_none_is_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("usr/lib64")).unwrap();
        std::fs::write(root.path().join("usr/lib64").join(FILE), "no library").unwrap();
        let fault = Library::open(root.path()).unwrap_err();
        assert!(fault.message.contains("usr/lib64/libnvidia-ml.so.1"), "{fault}");
    }
}
