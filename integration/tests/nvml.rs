//! The real binding against the fake library, opened by the real dynamic linker.

mod own_process;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use heddle_actors::gpu_inventory::{GpuInventory, Listener, Message};
use heddle_actors::nvml::Library;
use heddle_actors::runtime::{Runtime, Spec, block_on};
use heddle_core::inventory::{Fabric, Inventory, inventory};
use heddle_fake_nvml::{Scenario, install};
use own_process::in_own_process;
use tokio::sync::mpsc;

const CLUSTER: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";

fn tray() -> Scenario {
    Scenario::gb200("node-1", 4, Some((CLUSTER, 7)))
}

fn read(root: &Path) -> Inventory {
    inventory(&Library::open(root).unwrap().read().unwrap())
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
        for fabric_info in [2, 1] {
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
fn a_driver_that_is_not_loaded_is_a_fault() {
    in_own_process("a_driver_that_is_not_loaded_is_a_fault", |root, scenario| {
        install(root).unwrap();
        let mut unloaded = tray();
        unloaded.fail.insert("nvmlInit_v2".into(), 9);
        unloaded.write(scenario).unwrap();
        let fault = Library::open(root).unwrap_err();
        assert!(fault.message.contains("driver is not loaded"), "{fault}");
    });
}

#[test]
fn the_actor_tells_what_has_changed() {
    in_own_process("the_actor_tells_what_has_changed", |root, scenario| {
        tray().write(scenario).unwrap();
        block_on(async {
            let runtime = Runtime::new();
            let (told, mut heard) = mpsc::unbounded_channel();
            let listener: Listener = Rc::new(move |inventory| drop(told.send(inventory)));
            let driver_root = root.to_owned();
            // It polls at our word alone.
            let never = Duration::from_secs(100_000);
            let factory = move || Ok(GpuInventory::new(driver_root.clone(), never, vec![listener.clone()]));
            let actor = runtime.root().supervise(Spec::default(), factory);
            let without_driver = heard.recv().await.unwrap();
            // Whether there is a fabric is not known: nobody may go without a channel for that.
            assert!(matches!(without_driver.fabric, Fabric::Pending(_)), "{without_driver:?}");
            assert!(without_driver.gpus.is_empty());

            // The driver is installed.
            install(root).unwrap();
            actor.tell(Message::Poll);
            let first = heard.recv().await.unwrap();
            assert_eq!(first.gpus.len(), 4);

            // Nothing changes, then a GPU does.
            actor.tell(Message::Poll);
            let mut broken = tray();
            broken.gpus[0].fabric.health_summary = 2;
            broken.write(scenario).unwrap();
            actor.tell(Message::Poll);
            let second = heard.recv().await.unwrap();
            assert!(matches!(second.fabric, Fabric::Unhealthy(_)));

            // A driver that goes away leaves GPUs that must not be used.
            let mut gone = tray();
            gone.fail.insert("nvmlDeviceGetCount_v2".into(), 9);
            gone.write(scenario).unwrap();
            actor.tell(Message::Poll);
            let third = heard.recv().await.unwrap();
            assert_eq!(third.gpus.len(), 4);
            assert!(matches!(&third.fabric, Fabric::Unhealthy(why) if why.contains("cannot count")));
            runtime.root().stop();
        });
    });
}
