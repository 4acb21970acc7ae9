//! The symbols as a C program calls them.

use std::ffi::{c_char, c_int, c_void};

use crate::{Event, HEALTHY_MASK, SCENARIO_ENV, Scenario};

type Device = *mut c_void;

// Declared anew and not by the library's own types, so that a test sees what a caller sees.
unsafe extern "C" {
    safe fn nvmlInit_v2() -> u32;
    safe fn nvmlShutdown() -> u32;
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32) -> u32;
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: *mut Device) -> u32;
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Device) -> u32;
    fn nvmlDeviceGetIndex(device: Device, index: *mut u32) -> u32;
    fn nvmlDeviceGetMigMode(device: Device, current: *mut u32, pending: *mut u32) -> u32;
    fn nvmlDeviceGetGpuFabricInfoV(device: Device, info: *mut u8) -> u32;
    fn nvmlDeviceGetGpuFabricInfo_v4(device: Device, info: *mut u8) -> u32;
    fn nvmlDeviceGetFieldValues(device: Device, count: c_int, values: *mut u8) -> u32;
    fn nvmlEventSetCreate(set: *mut *mut c_void) -> u32;
    fn nvmlDeviceRegisterEvents(device: Device, types: u64, set: *mut c_void) -> u32;
    fn nvmlEventSetWait_v2(set: *mut c_void, data: *mut u8, timeout: u32) -> u32;
    fn nvmlEventSetFree(set: *mut c_void) -> u32;
}

/// One test: the library and the environment are one a process.
#[test]
fn calls_answer_as_the_scenario_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nvml.json");
    assert_eq!(nvmlInit_v2(), 9, "without a scenario there is no driver");
    // SAFETY: no other thread of this process reads the environment: this is its only test that runs calls.
    unsafe { std::env::set_var(SCENARIO_ENV, &path) };
    let cluster = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";
    let mut scenario = Scenario::gb200("node", 2, Some((cluster, 7)));
    scenario.gpus[1].recovery_action = 5;
    scenario.gpus[1].mig = None;
    scenario.write(&path).unwrap();

    let mut device: Device = std::ptr::null_mut();
    let mut number = 0;
    // SAFETY: every pointer below is to a live local of the size that the call writes.
    unsafe {
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, &mut device), 1, "not initialised");
        assert_eq!(nvmlInit_v2(), 0);
        let mut short = [0; 4];
        assert_eq!(nvmlSystemGetDriverVersion(short.as_mut_ptr(), 4), 7);
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(2, &mut device), 2);
        let uuid = std::ffi::CString::new(scenario.gpus[1].uuid.clone()).unwrap();
        assert_eq!(nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &mut device), 0);
        assert_eq!((nvmlDeviceGetIndex(device, &mut number), number), (0, 1));
        assert_eq!(nvmlDeviceGetMigMode(device, &mut number, &mut { 0 }), 3);
        assert_eq!(nvmlDeviceGetIndex(std::ptr::null_mut(), &mut number), 2);

        // Fabric info: the tag decides how much is written.
        let mut info = [0xaa_u8; 48];
        assert_eq!(nvmlDeviceGetGpuFabricInfoV(device, info.as_mut_ptr()), 25);
        assert_eq!(info, [0xaa; 48]);
        info[..4].copy_from_slice(&0x0200_0024_u32.to_ne_bytes());
        assert_eq!(nvmlDeviceGetGpuFabricInfoV(device, info.as_mut_ptr()), 0);
        assert_eq!(info[32..36], HEALTHY_MASK.to_ne_bytes());
        assert_eq!(info[36..], [0xaa; 12]);
        info[..4].copy_from_slice(&0x0300_0028_u32.to_ne_bytes());
        assert_eq!(nvmlDeviceGetGpuFabricInfoV(device, info.as_mut_ptr()), 0);
        assert_eq!((info[4], info[24], info[28], info[36]), (0x0b, 7, 3, 1));
        assert_eq!(info[40..], [0xaa; 8]);

        // The fourth layout has no tag, and a list of cliques.
        scenario.gpus[1].fabric.more_cliques = vec![(2, 9), (1, 8)];
        scenario.write(&path).unwrap();
        let mut info = [0xaa_u8; 560];
        assert_eq!(nvmlDeviceGetGpuFabricInfo_v4(device, info.as_mut_ptr()), 0);
        let cliques = [(20, 0), (24, 7), (28, 1), (32, 8), (36, 2), (40, 9), (44, 0), (532, 3), (536, 3), (544, 1)];
        for (offset, value) in cliques {
            assert_eq!(info[offset], value, "at {offset}");
        }
        assert_eq!(info[548..], [0xaa; 12]);
        scenario.fabric_info = 3;
        scenario.write(&path).unwrap();
        assert_eq!(nvmlDeviceGetGpuFabricInfo_v4(device, info.as_mut_ptr()), 13);

        // A field that is known and one that is not.
        let mut values = [0_u8; 80];
        values[0] = 230;
        values[40] = 1;
        assert_eq!(nvmlDeviceGetFieldValues(device, 2, values.as_mut_ptr()), 0);
        assert_eq!((values[24], values[28], values[32]), (1, 0, 5));
        assert_eq!(values[68], 3);

        // Events: what was before the set is over, the rest comes once.
        scenario.events = vec![Event { sequence: 1, gpu: 1, kind: 8, data: 31 }];
        scenario.write(&path).unwrap();
        let mut set = std::ptr::null_mut();
        assert_eq!(nvmlEventSetCreate(&mut set), 0);
        assert_eq!(nvmlDeviceRegisterEvents(device, 0x8008, set), 0);
        let mut data = [0_u8; 32];
        assert_eq!(nvmlEventSetWait_v2(set, data.as_mut_ptr(), 0), 10);
        scenario.events.push(Event { sequence: 2, gpu: 0, kind: 8, data: 13 });
        scenario.events.push(Event { sequence: 3, gpu: 1, kind: 8, data: 79 });
        scenario.write(&path).unwrap();
        assert_eq!(nvmlEventSetWait_v2(set, data.as_mut_ptr(), 60_000), 0);
        assert_eq!((data[8], data[16], &data[24..]), (8, 79, &[0xff; 8][..]));
        assert_eq!(nvmlEventSetWait_v2(set, data.as_mut_ptr(), 0), 10);
        assert_eq!(nvmlEventSetFree(set), 0);
        assert_eq!(nvmlEventSetFree(set), 2);

        // Forced codes, and a GPU that has gone.
        scenario.fail.insert("nvmlSystemGetDriverVersion".into(), 999);
        scenario.gpus[0].fail.insert("nvmlDeviceGetIndex".into(), 15);
        scenario.gpus.pop();
        scenario.write(&path).unwrap();
        assert_eq!(nvmlSystemGetDriverVersion(short.as_mut_ptr(), 4), 999);
        assert_eq!(nvmlDeviceGetIndex(device, &mut number), 15);
        assert_eq!(nvmlDeviceGetHandleByIndex_v2(0, &mut device), 0);
        assert_eq!(nvmlDeviceGetIndex(device, &mut number), 15);
    }
    assert_eq!((nvmlShutdown(), nvmlShutdown()), (0, 1));
}
