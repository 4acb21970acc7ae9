//! The calls, each under the name that NVIDIA's library exports.

use std::ffi::{CStr, c_char};

use crate::abi::{
    ARGUMENT_VERSION_MISMATCH, Clique, Code, FUNCTION_NOT_FOUND, FabricV1, FabricV2, FabricV3, FabricV4, FieldValue,
    Handle, INVALID_ARGUMENT, MAX_CLIQUES, Memory, MemoryV2, NOT_FOUND, NOT_SUPPORTED, Out, PciInfo, SUCCESS, Text,
    tag,
};
use crate::library::{call, call_on, initialise, shut_down};
use crate::scenario::{FabricInfo, Gpu};

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const FIELD_RECOVERY_ACTION: u32 = 230;

/// Value type "unsigned int" of a field.
const UNSIGNED: u32 = 1;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    initialise("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> Code {
    initialise("nvmlInitWithFlags")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    shut_down()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    let text: &'static CStr = match code {
        SUCCESS => c"Success",
        1 => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_SUPPORTED => c"Not Supported",
        4 => c"Insufficient Permissions",
        NOT_FOUND => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        12 => c"NVML Shared Library Not Found",
        FUNCTION_NOT_FOUND => c"Function Not Found",
        15 => c"GPU is lost",
        18 => c"Driver/library version mismatch",
        ARGUMENT_VERSION_MISMATCH => c"Argument version mismatch",
        27 => c"Not Ready",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: u32) -> Code {
    call("nvmlSystemGetDriverVersion", |scenario| version.put_text(length, &scenario.driver_version))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) -> Code {
    call("nvmlSystemGetCudaDriverVersion_v2", |scenario| version.put(scenario.cuda_driver_version))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<u32>) -> Code {
    call("nvmlDeviceGetCount_v2", |scenario| count.put(scenario.gpus.len() as u32))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Handle>) -> Code {
    call("nvmlDeviceGetHandleByIndex_v2", |scenario| {
        if index as usize >= scenario.gpus.len() {
            return Err(INVALID_ARGUMENT);
        }
        device.put(Handle::of(index as usize))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) -> Code {
    call("nvmlDeviceGetHandleByUUID", |scenario| {
        let uuid = uuid.get()?;
        let index = scenario.gpus.iter().position(|gpu| gpu.uuid == uuid).ok_or(NOT_FOUND)?;
        device.put(Handle::of(index))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: Handle, uuid: Out<c_char>, length: u32) -> Code {
    call_on("nvmlDeviceGetUUID", device, |_, gpu, _| uuid.put_text(length, &gpu.uuid))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(device: Handle, name: Out<c_char>, length: u32) -> Code {
    call_on("nvmlDeviceGetName", device, |_, gpu, _| name.put_text(length, &gpu.name))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetBrand(device: Handle, brand: Out<u32>) -> Code {
    call_on("nvmlDeviceGetBrand", device, |_, gpu, _| brand.put(gpu.brand))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetArchitecture(device: Handle, architecture: Out<u32>) -> Code {
    call_on("nvmlDeviceGetArchitecture", device, |_, gpu, _| architecture.put(gpu.architecture))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<i32>, minor: Out<i32>) -> Code {
    call_on("nvmlDeviceGetCudaComputeCapability", device, |_, gpu, _| {
        major.put(gpu.compute_capability.0)?;
        minor.put(gpu.compute_capability.1)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(device: Handle, index: Out<u32>) -> Code {
    call_on("nvmlDeviceGetIndex", device, |_, _, number| index.put(number))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(device: Handle, minor: Out<u32>) -> Code {
    call_on("nvmlDeviceGetMinorNumber", device, |_, gpu, index| minor.put(gpu.minor.unwrap_or(index)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetModuleId(device: Handle, module: Out<u32>) -> Code {
    call_on("nvmlDeviceGetModuleId", device, |_, gpu, _| module.put(gpu.module_id))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(device: Handle, current: Out<u32>, pending: Out<u32>) -> Code {
    call_on("nvmlDeviceGetMigMode", device, |_, gpu, _| {
        let mode = u32::from(gpu.mig.ok_or(NOT_SUPPORTED)?);
        current.put(mode)?;
        pending.put(mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<Memory>) -> Code {
    call_on("nvmlDeviceGetMemoryInfo", device, |_, gpu, _| {
        memory.put(Memory { total: gpu.memory_bytes, free: gpu.memory_bytes, used: 0 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<MemoryV2>) -> Code {
    call_on("nvmlDeviceGetMemoryInfo_v2", device, |_, gpu, _| {
        let version = memory.cast::<u32>().get()?;
        if version != tag::<MemoryV2>(2) {
            return Err(ARGUMENT_VERSION_MISMATCH);
        }
        memory.put(MemoryV2 { version, total: gpu.memory_bytes, reserved: 0, free: gpu.memory_bytes, used: 0 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(device: Handle, info: Out<PciInfo>) -> Code {
    call_on("nvmlDeviceGetPciInfo_v3", device, |_, gpu, _| info.put(pci_info(gpu)))
}

fn pci_info(gpu: &Gpu) -> PciInfo {
    let (domain, bus, device) = (gpu.pci_domain, gpu.pci_bus, gpu.pci_device);
    PciInfo {
        bus_id_legacy: text(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pci_device_id: gpu.pci_device_id,
        pci_subsystem_id: gpu.pci_device_id,
        bus_id: text(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    }
}

/// Cut so that the last byte stays NUL.
fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes[..N - 1].iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    bytes
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfo(device: Handle, info: Out<FabricV1>) -> Code {
    call_on("nvmlDeviceGetGpuFabricInfo", device, |_, gpu, _| {
        let FabricInfo { state, status, clique_id, .. } = gpu.fabric;
        info.put(FabricV1 { cluster_uuid: cluster(&gpu.fabric)?, status, clique_id, state })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfoV(device: Handle, info: Out<FabricV3>) -> Code {
    call_on("nvmlDeviceGetGpuFabricInfoV", device, |scenario, gpu, _| {
        if scenario.fabric_info < 2 {
            return Err(FUNCTION_NOT_FOUND);
        }
        let FabricInfo { state, status, clique_id, health_mask, health_summary, .. } = gpu.fabric;
        let cluster_uuid = cluster(&gpu.fabric)?;
        let version = info.cast::<u32>().get()?;
        // The caller's structure is as large as its version says, and not a byte larger.
        if version == tag::<FabricV2>(2) {
            info.cast().put(FabricV2 { version, cluster_uuid, status, clique_id, state, health_mask })
        } else if version == tag::<FabricV3>(3) && scenario.fabric_info >= 3 {
            info.put(FabricV3 { version, cluster_uuid, status, clique_id, state, health_mask, health_summary })
        } else {
            Err(ARGUMENT_VERSION_MISMATCH)
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuFabricInfo_v4(device: Handle, info: Out<FabricV4>) -> Code {
    call_on("nvmlDeviceGetGpuFabricInfo_v4", device, |scenario, gpu, _| {
        // A symbol that an older library lacks cannot be taken out of this one; its callers are answered alike.
        if scenario.fabric_info < 4 {
            return Err(FUNCTION_NOT_FOUND);
        }
        let FabricInfo { state, status, clique_id, health_mask, health_summary, .. } = gpu.fabric;
        let mut all = vec![(0, clique_id)];
        all.extend(&gpu.fabric.more_cliques);
        all.sort_unstable();
        all.truncate(MAX_CLIQUES);
        let mut cliques = [Clique::default(); MAX_CLIQUES];
        for (to, (kind, id)) in cliques.iter_mut().zip(&all) {
            *to = Clique { kind: *kind, id: *id };
        }
        let (cluster_uuid, num_cliques) = (cluster(&gpu.fabric)?, all.len() as u32);
        info.put(FabricV4 { cluster_uuid, status, cliques, num_cliques, state, health_mask, health_summary })
    })
}

fn cluster(fabric: &FabricInfo) -> Result<[u8; 16], Code> {
    let digits: String = fabric.cluster_uuid.chars().filter(|char| *char != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    number.map(u128::to_be_bytes).ok_or(crate::abi::UNKNOWN)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(device: Handle, count: i32, values: Out<FieldValue>) -> Code {
    call_on("nvmlDeviceGetFieldValues", device, |_, gpu, _| {
        let count = usize::try_from(count).map_err(|_| INVALID_ARGUMENT)?;
        for value in (0..count).map(|index| values.nth(index)) {
            let asked = value.get()?;
            value.put(match asked.field_id {
                FIELD_RECOVERY_ACTION => FieldValue {
                    value_type: UNSIGNED,
                    code: SUCCESS,
                    // A union of numbers that all begin at its first byte.
                    value: u64::from_ne_bytes({
                        let mut bytes = [0; 8];
                        bytes[..4].copy_from_slice(&gpu.recovery_action.to_ne_bytes());
                        bytes
                    }),
                    ..asked
                },
                _ => FieldValue { code: NOT_SUPPORTED, ..asked },
            })?;
        }
        Ok(())
    })
}
