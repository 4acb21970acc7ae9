//! The real binding against the fake library, opened by the real dynamic linker.

mod actor;
mod old;
#[path = "../own_process/mod.rs"]
mod own_process;

use std::path::Path;

use heddle_actors::nvml::{Failure, Library};
use heddle_core::inventory::{Access, Fabric, Inventory, inventory};
use heddle_fake_nvml::{Scenario, install};
use own_process::in_own_process;

const CLUSTER: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";

fn tray() -> Scenario {
    Scenario::gb200("node-1", 4, Some((CLUSTER, 7)))
}

fn read(root: &Path) -> Inventory {
    inventory(&Library::open(root).unwrap().read().unwrap(), Access::default())
}

fn refused(root: &Path) -> Failure {
    Library::open(root).and_then(|library| library.read()).unwrap_err()
}

#[test]
fn a_scenario_becomes_an_inventory() {
    in_own_process("a_scenario_becomes_an_inventory", |root, scenario| {
        install(root).unwrap();
        tray().write(scenario).unwrap();
        let found = read(root);
        assert_eq!(found.gpus.len(), 4);
        assert_eq!(found.fabric, Fabric::Ready(format!("{CLUSTER}.7").parse().unwrap()));
        assert_eq!((found.driver_version.as_str(), found.cuda_driver_version.as_str()), ("595.71.05", "13.0.0"));
        let gpu = &found.gpus[3];
        assert_eq!(gpu.uuid, tray().gpus[3].uuid);
        assert_eq!(gpu.pci_bus_id, "00000019:01:00.0");
        assert_eq!((gpu.architecture.as_str(), gpu.brand.as_str()), ("Blackwell", "Nvidia"));
        assert_eq!((gpu.compute_capability.as_str(), gpu.module_id), ("10.0.0", Some(4)));
        assert_eq!(gpu.memory_bytes, tray().gpus[3].memory_bytes);
        assert_eq!(found.recovery_action, None);

        // Older drivers know older layouts.
        for fabric_info in [3, 2, 1] {
            Scenario { fabric_info, ..tray() }.write(scenario).unwrap();
            assert_eq!(read(root).fabric, found.fabric, "layout {fabric_info}");
        }
        Scenario::gb200("node-1", 4, None).write(scenario).unwrap();
        assert_eq!(read(root).fabric, Fabric::None);

        let mut lost = tray();
        lost.gpus[2].fail.insert("nvmlDeviceGetUUID".into(), 15);
        lost.gpus[1].recovery_action = 5;
        lost.write(scenario).unwrap();
        let found = read(root);
        assert_eq!(found.gpus.len(), 3);
        assert!(matches!(&found.fabric, Fabric::Unhealthy(why) if why.contains("GPU 2")), "{:?}", found.fabric);
        assert!(found.recovery_action.unwrap().starts_with("GPU 1: recover the IMEX domain"));
    });
}

#[test]
fn the_fourth_layout_gives_a_clique_for_each_kind_of_access() {
    in_own_process("the_fourth_layout_gives_a_clique_for_each_kind_of_access", |root, scenario| {
        install(root).unwrap();
        let mut tray = tray();
        for gpu in &mut tray.gpus {
            gpu.fabric.more_cliques = vec![(2, 11), (1, 9)];
        }
        tray.write(scenario).unwrap();
        let reading = Library::open(root).unwrap().read().unwrap();
        let clique = |id: u32| format!("{CLUSTER}.{id}").parse().unwrap();
        let found = inventory(&reading, Access::UnicastPointer);
        assert_eq!(found.fabric, Fabric::Ready(clique(7)));
        let others = [(Access::MulticastPointer, clique(9)), (Access::UnicastLogicalEndpoint, clique(11))];
        assert_eq!(found.gpus[0].other_cliques, others.into());
        assert_eq!(inventory(&reading, Access::MulticastPointer).fabric, Fabric::Ready(clique(9)));
        // An error of the newest call is an answer, and no reason to ask an older one.
        tray.gpus[0].fail.insert("nvmlDeviceGetGpuFabricInfo_v4".into(), 999);
        tray.write(scenario).unwrap();
        assert!(matches!(&read(root).fabric, Fabric::Unhealthy(why) if why.contains("GPU 0")));
    });
}

#[test]
fn issue_276_1247_the_clique_is_nvmls_and_read_anew() {
    in_own_process("issue_276_1247_the_clique_is_nvmls_and_read_anew", |root, scenario| {
        install(root).unwrap();
        tray().write(scenario).unwrap();
        let library = Library::open(root).unwrap();
        let clique = |id: u32| Fabric::Ready(format!("{CLUSTER}.{id}").parse().unwrap());
        let now = || inventory(&library.read().unwrap(), Access::default()).fabric;
        assert_eq!(now(), clique(7));
        Scenario::gb200("node-1", 4, Some((CLUSTER, 8))).write(scenario).unwrap();
        assert_eq!(now(), clique(8));
    });
}

#[test]
fn issue_294_gpus_without_multi_node_nvlink_have_no_fabric() {
    in_own_process("issue_294_gpus_without_multi_node_nvlink_have_no_fabric", |root, scenario| {
        install(root).unwrap();
        // H100 in one host: the registration completes and names no cluster.
        let mut host = Scenario::gb200("node-1", 8, None);
        for gpu in &mut host.gpus {
            gpu.fabric.state = 3;
        }
        host.write(scenario).unwrap();
        assert_eq!(read(root).fabric, Fabric::None);
        // GPUs that know no fabric at all.
        for gpu in &mut host.gpus {
            for call in ["nvmlDeviceGetGpuFabricInfo_v4", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo"] {
                gpu.fail.insert(call.into(), 3);
            }
        }
        host.write(scenario).unwrap();
        assert_eq!(read(root).fabric, Fabric::None);
        // No GPU.
        Scenario { gpus: Vec::new(), ..tray() }.write(scenario).unwrap();
        assert_eq!((read(root).fabric, read(root).gpus.len()), (Fabric::None, 0));
    });
}

#[test]
fn a_registration_is_awaited_and_a_failed_one_said() {
    in_own_process("a_registration_is_awaited_and_a_failed_one_said", |root, scenario| {
        install(root).unwrap();
        let mut tray = tray();
        for (state, status, says) in [(1, 0, "has not begun"), (2, 0, "is registering"), (3, 999, "NVML error 999")] {
            tray.gpus[1].fabric.state = state;
            tray.gpus[1].fabric.status = status;
            tray.write(scenario).unwrap();
            match read(root).fabric {
                Fabric::Pending(what) if state < 3 => assert!(what.contains(says), "{what}"),
                Fabric::Unhealthy(why) if state == 3 => assert!(why.contains(says), "{why}"),
                other => panic!("state {state}: {other:?}"),
            }
        }
    });
}

#[test]
fn a_gpu_with_mig_is_no_whole_gpu() {
    in_own_process("a_gpu_with_mig_is_no_whole_gpu", |root, scenario| {
        install(root).unwrap();
        let mut tray = tray();
        tray.gpus[1].mig = Some(true);
        tray.gpus[2].mig = None;
        tray.gpus[3].minor = Some(7);
        tray.write(scenario).unwrap();
        let offered = heddle_core::slices::gpus(&read(root));
        let names: Vec<&str> = offered.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["gpu-0", "gpu-2", "gpu-7"]);
    });
}

#[test]
fn every_refusal_of_the_library_says_what_to_do() {
    in_own_process("every_refusal_of_the_library_says_what_to_do", |root, scenario| {
        let missing = refused(root);
        assert!(missing.to_string().contains("install the NVIDIA driver") && !missing.driver_gone, "{missing}");
        install(root).unwrap();
        for (code, says, gone) in [
            (9, "load the driver's kernel modules", true),
            (12, "install it again", false),
            (18, "finish the driver's update, or reboot", true),
            (4, "run it privileged", false),
            (17, "run it privileged", false),
            (999, "internal driver error", false),
        ] {
            for call in ["nvmlInit_v2", "nvmlDeviceGetCount_v2"] {
                let mut refusing = tray();
                refusing.fail.insert(call.into(), code);
                refusing.write(scenario).unwrap();
                let failure = refused(root);
                assert!(failure.to_string().contains(says), "{call} {code}: {failure}");
                assert_eq!(failure.driver_gone, gone, "{call} {code}");
            }
        }
        // The driver goes away between counting and reading.
        let mut going = tray();
        going.gpus[2].fail.insert("nvmlDeviceGetUUID".into(), 9);
        going.write(scenario).unwrap();
        assert!(refused(root).driver_gone);
    });
}
