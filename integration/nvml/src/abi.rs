//! The C side of the calls: codes, pointers, and structures as NVML 13 lays them out.

use std::ffi::{c_char, c_void};

/// `nvmlReturn_t`.
pub type Code = u32;

pub const SUCCESS: Code = 0;
pub const UNINITIALIZED: Code = 1;
pub const INVALID_ARGUMENT: Code = 2;
pub const NOT_SUPPORTED: Code = 3;
pub const NOT_FOUND: Code = 6;
pub const INSUFFICIENT_SIZE: Code = 7;
pub const DRIVER_NOT_LOADED: Code = 9;
pub const TIMEOUT: Code = 10;
pub const FUNCTION_NOT_FOUND: Code = 13;
pub const GPU_IS_LOST: Code = 15;
pub const ARGUMENT_VERSION_MISMATCH: Code = 25;
pub const UNKNOWN: Code = 999;

/// Where a caller wants a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Gives the result.
    pub fn put(&self, value: T) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: by NVML's contract a result pointer that is not null points to memory for a T.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// The same memory as room for something else: versioned structures begin alike.
    pub fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// What the caller has put there: the version of a versioned structure, the id of a field.
    pub fn get(&self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: by NVML's contract the caller has filled in what these calls read, and a pointer that is not null
        // points to a T.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// The element of the array that begins here.
    pub fn nth(&self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }
}

impl Out<c_char> {
    /// Gives a text with its final NUL, if the room for `length` bytes suffices.
    pub fn put_text(&self, length: u32, text: &str) -> Result<(), Code> {
        if text.len() >= length as usize {
            return Err(INSUFFICIENT_SIZE);
        }
        let bytes = text.bytes().chain([0]);
        bytes.enumerate().try_for_each(|(index, byte)| self.nth(index).put(c_char::from_ne_bytes([byte])))
    }
}

/// A text that the caller gives.
#[repr(transparent)]
pub struct Text(*const c_char);

impl Text {
    /// The text, unless it is no text.
    pub fn get(&self) -> Result<&str, Code> {
        if self.0.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: by NVML's contract it points to a NUL-terminated text, which outlives the call.
        let text = unsafe { std::ffi::CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| INVALID_ARGUMENT)
    }
}

/// An opaque handle: a number in a pointer's clothes, never followed.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Handle(*mut c_void);

impl Handle {
    /// The handle of a thing with this number; 0 is not the null pointer.
    pub fn of(number: usize) -> Self {
        Self(std::ptr::without_provenance_mut(number + 1))
    }

    /// The number.
    pub fn number(self) -> Result<usize, Code> {
        self.0.addr().checked_sub(1).ok_or(INVALID_ARGUMENT)
    }
}

/// `nvmlPciInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PciInfo {
    pub bus_id_legacy: [c_char; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device_id: u32,
    pub pci_subsystem_id: u32,
    pub bus_id: [c_char; 32],
}

/// `nvmlMemory_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryV2 {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

/// `nvmlGpuFabricInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FabricV1 {
    pub cluster_uuid: [u8; 16],
    pub status: u32,
    pub clique_id: u32,
    pub state: u8,
}

/// `nvmlGpuFabricInfo_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FabricV2 {
    pub version: u32,
    pub cluster_uuid: [u8; 16],
    pub status: u32,
    pub clique_id: u32,
    pub state: u8,
    pub health_mask: u32,
}

/// `nvmlGpuFabricInfo_v3_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FabricV3 {
    pub version: u32,
    pub cluster_uuid: [u8; 16],
    pub status: u32,
    pub clique_id: u32,
    pub state: u8,
    pub health_mask: u32,
    pub health_summary: u8,
}

/// `nvmlGpuFabricClique_v1_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Clique {
    pub kind: u8,
    pub id: u32,
}

/// `NVML_GPU_FABRIC_CLIQUE_MAX`.
pub const MAX_CLIQUES: usize = 64;

/// `nvmlGpuFabricInfo_v4_t`, which has no version field.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FabricV4 {
    pub cluster_uuid: [u8; 16],
    pub status: u32,
    pub cliques: [Clique; MAX_CLIQUES],
    pub num_cliques: u32,
    pub state: u8,
    pub health_mask: u32,
    pub health_summary: u8,
}

/// `nvmlFieldValue_t`, with the value as an unsigned number.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FieldValue {
    pub field_id: u32,
    pub scope_id: u32,
    pub timestamp: i64,
    pub latency_usec: i64,
    pub value_type: u32,
    pub code: Code,
    pub value: u64,
}

/// `nvmlEventData_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct EventData {
    pub device: Handle,
    pub event_type: u64,
    pub event_data: u64,
    pub gpu_instance: u32,
    pub compute_instance: u32,
}

// As compiled from NVIDIA's header.
const _: () = {
    assert!(size_of::<PciInfo>() == 68);
    assert!(size_of::<Memory>() == 24);
    assert!(size_of::<MemoryV2>() == 40);
    assert!(size_of::<FabricV1>() == 28);
    assert!(size_of::<FabricV2>() == 36);
    assert!(size_of::<FabricV3>() == 40);
    assert!(size_of::<FabricV4>() == 548);
    assert!(size_of::<FieldValue>() == 40);
    assert!(size_of::<EventData>() == 32);
};

/// The tag that a caller puts into a versioned structure.
pub const fn tag<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}
