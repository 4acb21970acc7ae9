//! Fabric info in its four layouts, by the raw symbols: none of them is wrapped by nvml-wrapper, and the newest one is
//! not known to its `-sys` crate either.

#![allow(unsafe_code)]

use heddle_core::inventory::{FabricInfo, FabricReading};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlReturn_t,
};
use uuid::Uuid;

use super::library::SUCCESS;

const NOT_SUPPORTED: nvmlReturn_t = 3;
const FUNCTION_NOT_FOUND: nvmlReturn_t = 13;
const ARGUMENT_VERSION_MISMATCH: nvmlReturn_t = 25;

/// `NVML_GPU_FABRIC_CLIQUE_MAX`.
const MAX_CLIQUES: usize = 64;

/// `nvmlGpuFabricClique_v1_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Clique {
    kind: u8,
    id: u32,
}

/// `nvmlGpuFabricInfo_v4_t`: the only one of the versioned layouts that begins without its version.
#[derive(Clone, Copy)]
#[repr(C)]
struct FabricV4 {
    cluster_uuid: [u8; 16],
    status: u32,
    cliques: [Clique; MAX_CLIQUES],
    count: u32,
    state: u8,
    health_mask: u32,
    health_summary: u8,
}

/// `nvmlDeviceGetGpuFabricInfo_v4`.
type AskV4 = unsafe extern "C" fn(nvmlDevice_t, *mut FabricV4) -> nvmlReturn_t;

type Answer<T> = Result<T, nvmlReturn_t>;

/// Asks in the newest layout first: each driver knows those up to its own.
pub(super) fn read(nvml: &Nvml, device: &Device<'_>) -> FabricReading {
    // SAFETY: the handle is only given to calls of the library that it came from, which `device` keeps borrowed.
    let handle = unsafe { device.handle() };
    let lib = nvml.lib();
    let mut code = FUNCTION_NOT_FOUND;
    for ask in [v4, v3, v2, v1] {
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

fn v4(lib: &NvmlLib, device: nvmlDevice_t) -> Answer<FabricInfo> {
    // SAFETY: the symbol has this signature in every NVML that has it (13.4 and later).
    let found = unsafe { lib.__library.get::<AskV4>(b"nvmlDeviceGetGpuFabricInfo_v4\0") };
    let ask = found.map_err(|_| FUNCTION_NOT_FOUND)?;
    let mut info = FabricV4 {
        cluster_uuid: [0; 16],
        status: 0,
        cliques: [Clique::default(); MAX_CLIQUES],
        count: 0,
        state: 0,
        health_mask: 0,
        health_summary: 0,
    };
    // SAFETY: `device` is a handle of this library, and `info` has the one size that this call knows.
    match unsafe { ask(device, &mut info) } {
        SUCCESS => Ok(from_v4(&info)),
        code => Err(code),
    }
}

fn from_v4(info: &FabricV4) -> FabricInfo {
    let count = usize::try_from(info.count).unwrap_or(MAX_CLIQUES).min(MAX_CLIQUES);
    FabricInfo {
        state: info.state,
        status: info.status,
        cluster: Uuid::from_bytes(info.cluster_uuid),
        cliques: info.cliques[..count].iter().map(|clique| (clique.kind, clique.id)).collect(),
        health_mask: Some(info.health_mask),
        health_summary: Some(info.health_summary),
    }
}

/// The tag of a versioned structure: `NVML_STRUCT_VERSION`.
const fn tag<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

/// The call that v2 and v3 share. The structure begins alike in both, and the driver writes only as much as the tag
/// says.
fn by_tag(lib: &NvmlLib, device: nvmlDevice_t, tag: u32) -> Answer<nvmlGpuFabricInfo_v3_t> {
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

fn v3(lib: &NvmlLib, device: nvmlDevice_t) -> Answer<FabricInfo> {
    let info = by_tag(lib, device, tag::<nvmlGpuFabricInfo_v3_t>(3))?;
    Ok(FabricInfo { health_summary: Some(info.healthSummary), ..from_tagged(&info) })
}

fn v2(lib: &NvmlLib, device: nvmlDevice_t) -> Answer<FabricInfo> {
    by_tag(lib, device, tag::<nvmlGpuFabricInfo_v2_t>(2)).map(|info| from_tagged(&info))
}

fn from_tagged(info: &nvmlGpuFabricInfo_v3_t) -> FabricInfo {
    FabricInfo {
        state: info.state,
        status: info.status,
        cluster: Uuid::from_bytes(info.clusterUuid),
        cliques: vec![(0, info.cliqueId)],
        health_mask: Some(info.healthMask),
        health_summary: None,
    }
}

fn v1(lib: &NvmlLib, device: nvmlDevice_t) -> Answer<FabricInfo> {
    let call = lib.nvmlDeviceGetGpuFabricInfo.as_ref().map_err(|_| FUNCTION_NOT_FOUND)?;
    let mut info = nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
    // SAFETY: as above; this structure has one layout only.
    match unsafe { call(device, &mut info) } {
        SUCCESS => Ok(FabricInfo {
            state: info.state,
            status: info.status,
            cluster: Uuid::from_bytes(info.clusterUuid),
            cliques: vec![(0, info.cliqueId)],
            health_mask: None,
            health_summary: None,
        }),
        code => Err(code),
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn tags_are_those_of_the_c_macro() {
        assert_eq!(tag::<nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(tag::<nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
    }

    /// The figures of `just nvml-header-check`, which compares them with NVIDIA's header.
    #[test]
    fn the_fourth_layout_is_the_headers() {
        assert_eq!((size_of::<Clique>(), size_of::<FabricV4>()), (8, 548));
        let offsets = [
            offset_of!(FabricV4, status),
            offset_of!(FabricV4, cliques),
            offset_of!(FabricV4, count),
            offset_of!(FabricV4, state),
            offset_of!(FabricV4, health_mask),
            offset_of!(FabricV4, health_summary),
        ];
        assert_eq!(offsets, [16, 20, 532, 536, 540, 544]);
    }

    #[test]
    fn a_count_beyond_the_array_is_cut() {
        let cliques = [Clique { kind: 1, id: 5 }; MAX_CLIQUES];
        let info = FabricV4 {
            cluster_uuid: [0; 16],
            status: 0,
            cliques,
            count: u32::MAX,
            state: 3,
            health_mask: 0,
            health_summary: 0,
        };
        assert_eq!(from_v4(&info).cliques.len(), MAX_CLIQUES);
        assert_eq!(from_v4(&FabricV4 { count: 1, ..info }).cliques, [(1, 5)]);
    }
}
