//! The actor that reads the library and listens to it.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use heddle_actors::gpu_inventory::{GpuInventory, Message, Settings};
use heddle_actors::nvml::Sysfs;
use heddle_actors::nvml::devices::Devices;
use heddle_actors::runtime::{Addr, Runtime, Scope, Spec, block_on};
use heddle_core::inventory::{Access, Fabric, Inventory, Notice};
use heddle_fake_nvml::{Event, Scenario, install};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::own_process::in_own_process;
use super::tray;

const XID: u64 = 0x8;
const RECOVERY_ACTION: u64 = 0x8000;

/// One life of the actor, and what it tells. It polls at our word alone: whatever else it tells comes from events.
struct Life {
    scope: Scope,
    actor: Addr<Message>,
    inventories: UnboundedReceiver<Inventory>,
    notices: UnboundedReceiver<Notice>,
}

impl Life {
    fn new(runtime: &Runtime, root: &Path) -> Self {
        let (tell, inventories) = unbounded_channel();
        let (tell_notice, notices) = unbounded_channel();
        let settings = Settings {
            driver_root: root.to_owned(),
            devices: Devices::new(root.join("proc")),
            sysfs: Sysfs::new(root.join("sys")),
            poll: Duration::from_secs(100_000),
            access: Access::default(),
            ignored_xids: [94].into(),
            record: root.join("xids.json"),
            inventory: Rc::new(move |inventory| drop(tell.send(inventory))),
            notices: Rc::new(move |notice| drop(tell_notice.send(notice))),
        };
        let scope = runtime.root().child("inventory");
        let actor = scope.supervise(Spec::default(), move || Ok(GpuInventory::new(settings.clone())));
        Self { scope, actor, inventories, notices }
    }

    async fn inventory(&mut self) -> Inventory {
        self.inventories.recv().await.unwrap()
    }

    async fn inventory_where(&mut self, holds: impl Fn(&Inventory) -> bool) -> Inventory {
        loop {
            let inventory = self.inventory().await;
            if holds(&inventory) {
                return inventory;
            }
        }
    }

    async fn notice(&mut self) -> Notice {
        self.notices.recv().await.unwrap()
    }

    async fn end(self) {
        self.scope.stop();
        while !self.actor.is_stopped() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn on_a_node(test: &str, body: impl AsyncFnOnce(&Runtime, PathBuf, PathBuf)) {
    in_own_process(test, |root, scenario| {
        boot(root, "boot-1", 234, 2048);
        tray().write(scenario).unwrap();
        let (root, scenario) = (root.to_owned(), scenario.to_owned());
        block_on(async {
            let runtime = Runtime::new();
            let done = tokio::time::timeout(Duration::from_secs(60), body(&runtime, root, scenario)).await;
            done.expect("the test hangs");
            runtime.root().stop();
        });
    });
}

fn boot(root: &Path, id: &str, major: u32, count: u32) {
    for folder in ["proc/sys/kernel/random", "proc/driver/nvidia"] {
        std::fs::create_dir_all(root.join(folder)).unwrap();
    }
    std::fs::write(root.join("proc/sys/kernel/random/boot_id"), format!("{id}\n")).unwrap();
    std::fs::write(root.join("proc/devices"), format!("Character devices:\n{major} nvidia-caps-imex-channels\n"))
        .unwrap();
    std::fs::write(root.join("proc/driver/nvidia/params"), format!("ImexChannelCount: {count}\n")).unwrap();
}

/// Puts events there until `holds`: a set that is being made hears of none before it.
async fn happen(scenario: &Path, state: &mut Scenario, event: Event, life: &mut Life) -> Inventory {
    loop {
        let sequence = state.events.len() as u64 + 1;
        state.events.push(Event { sequence, ..event.clone() });
        state.write(scenario).unwrap();
        tokio::select! {
            inventory = life.inventory() => return inventory,
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
    }
}

fn healthy(inventory: &Inventory) -> Vec<bool> {
    inventory.gpus.iter().map(|gpu| gpu.trouble().is_none()).collect()
}

#[test]
fn it_tells_what_has_changed() {
    on_a_node("actor::it_tells_what_has_changed", async |runtime, root, scenario| {
        let mut life = Life::new(runtime, &root);
        let without_driver = life.inventory().await;
        // Whether there is a fabric is not known: nobody may go without a channel for that.
        assert!(matches!(without_driver.fabric, Fabric::Pending(_)), "{without_driver:?}");
        assert!(without_driver.gpus.is_empty());

        // The driver is installed.
        install(&root).unwrap();
        life.actor.tell(Message::Poll);
        let first = life.inventory().await;
        assert_eq!((first.gpus.len(), first.channels.major, first.channels.count), (4, Some(234), Some(2048)));

        // Nothing changes, then a GPU does.
        life.actor.tell(Message::Poll);
        let mut broken = tray();
        broken.gpus[0].fabric.health_summary = 2;
        broken.write(&scenario).unwrap();
        life.actor.tell(Message::Poll);
        assert!(matches!(life.inventory().await.fabric, Fabric::Unhealthy(_)));
        assert_eq!(life.notice().await.reason, "FabricUnhealthy");

        // A driver that goes away leaves GPUs that must not be used, and the next one finds them anew.
        let mut gone = tray();
        gone.fail.insert("nvmlDeviceGetCount_v2".into(), 9);
        gone.write(&scenario).unwrap();
        life.actor.tell(Message::Poll);
        let third = life.inventory().await;
        assert_eq!(healthy(&third), [false; 4]);
        assert!(matches!(&third.fabric, Fabric::Unhealthy(why) if why.contains("cannot count")));
        boot(&root, "boot-1", 235, 2048);
        Scenario { driver_version: "600.10".into(), ..tray() }.write(&scenario).unwrap();
        life.actor.tell(Message::Poll);
        let fourth = life.inventory().await;
        assert_eq!((healthy(&fourth), fourth.driver_version.as_str()), (vec![true; 4], "600.10"));
        assert_eq!(fourth.channels.major, Some(235), "a driver that is loaded anew may have another major");
    });
}

#[test]
fn a_major_that_changed_between_two_readings_is_told() {
    on_a_node("actor::a_major_that_changed_between_two_readings_is_told", async |runtime, root, _| {
        install(&root).unwrap();
        let mut life = Life::new(runtime, &root);
        assert_eq!(life.inventory().await.channels.major, Some(234));
        boot(&root, "boot-1", 511, 0);
        life.actor.tell(Message::Poll);
        let reloaded = life.inventory().await;
        assert_eq!((reloaded.channels.major, reloaded.channels.count), (Some(511), Some(0)));
        assert!(reloaded.channels_usable().unwrap_err().contains("NVreg_ImexChannelCount"));
        assert_eq!(life.notice().await.reason, "NoImexChannels");
    });
}

#[test]
fn an_xid_is_told_at_once_and_outlives_the_agent_but_not_the_boot() {
    let test = "actor::an_xid_is_told_at_once_and_outlives_the_agent_but_not_the_boot";
    on_a_node(test, async |runtime, root, scenario| {
        install(&root).unwrap();
        let mut life = Life::new(runtime, &root);
        assert_eq!(healthy(&life.inventory().await), [true; 4]);
        let mut state = tray();
        let event = Event { gpu: 2, kind: XID, data: 79, ..Event::default() };
        let found = happen(&scenario, &mut state, event, &mut life).await;
        assert_eq!(healthy(&found), [true, true, false, true]);
        let notice = life.notice().await;
        assert!(notice.warning && notice.note.contains("XID 79 (GPU has fallen off the bus)"), "{notice:?}");
        assert!(notice.note.contains(&state.gpus[2].uuid), "{notice:?}");
        life.end().await;

        let mut next = Life::new(runtime, &root);
        assert_eq!(healthy(&next.inventory().await), [true, true, false, true], "the next agent knows of it");
        next.end().await;
        boot(&root, "boot-2", 234, 2048);
        let mut rebooted = Life::new(runtime, &root);
        assert_eq!(healthy(&rebooted.inventory().await), [true; 4]);
    });
}

#[test]
fn an_applications_xid_is_said_and_makes_no_gpu_unhealthy() {
    let test = "actor::an_applications_xid_is_said_and_makes_no_gpu_unhealthy";
    on_a_node(test, async |runtime, root, scenario| {
        install(&root).unwrap();
        let mut life = Life::new(runtime, &root);
        life.inventory().await;
        let mut state = tray();
        for xid in [31, 94] {
            // Until one is heard of: the event set may still be in the making.
            let notice = loop {
                let sequence = state.events.len() as u64 + 1;
                state.events.push(Event { sequence, gpu: 1, kind: XID, data: xid });
                state.write(&scenario).unwrap();
                tokio::select! {
                    notice = life.notice() => if notice.note.contains(&format!("XID {xid} ")) { break notice },
                    () = tokio::time::sleep(Duration::from_millis(50)) => {}
                }
            };
            assert!(!notice.warning, "{notice:?}");
        }
        life.actor.tell(Message::Poll);
        state.gpus[0].recovery_action = 1;
        state.write(&scenario).unwrap();
        life.actor.tell(Message::Poll);
        assert_eq!(healthy(&life.inventory().await), [false, true, true, true], "and GPU 1 is not among them");
    });
}

#[test]
fn a_recovery_action_is_told_at_once_and_gone_when_it_is_done() {
    let test = "actor::a_recovery_action_is_told_at_once_and_gone_when_it_is_done";
    on_a_node(test, async |runtime, root, scenario| {
        install(&root).unwrap();
        let mut life = Life::new(runtime, &root);
        assert_eq!(life.inventory().await.recovery_action, None);
        let mut state = tray();
        state.gpus[3].recovery_action = 4;
        let event = Event { gpu: 3, kind: RECOVERY_ACTION, ..Event::default() };
        let found = happen(&scenario, &mut state, event.clone(), &mut life).await;
        assert_eq!(found.recovery_action.as_deref(), Some("GPU 3: drain and reset the GPU"));
        assert_eq!(healthy(&found), [true, true, true, false]);
        assert_eq!(life.notice().await.reason, "GpuUnhealthy");
        state.gpus[3].recovery_action = 0;
        let found = happen(&scenario, &mut state, event, &mut life).await;
        assert_eq!((found.recovery_action.clone(), healthy(&found)), (None, vec![true; 4]));
        assert_eq!(life.notice().await.reason, "GpuHealthy");
    });
}

#[test]
fn a_gpu_that_is_lost_and_a_listener_that_ends_are_lived_through() {
    let test = "actor::a_gpu_that_is_lost_and_a_listener_that_ends_are_lived_through";
    on_a_node(test, async |runtime, root, scenario| {
        install(&root).unwrap();
        let mut life = Life::new(runtime, &root);
        life.inventory().await;
        let mut lost = tray();
        lost.gpus[1].fail.insert("nvmlDeviceGetUUID".into(), 15);
        lost.fail.insert("nvmlEventSetWait_v2".into(), 15);
        lost.write(&scenario).unwrap();
        life.actor.tell(Message::Poll);
        let found = life.inventory_where(|inventory| !healthy(inventory).iter().all(|healthy| *healthy)).await;
        assert_eq!((found.gpus.len(), healthy(&found)), (4, vec![true, false, true, true]), "it stays in the list");
        // It is repaired, and events are heard of again.
        let mut state = tray();
        state.write(&scenario).unwrap();
        life.actor.tell(Message::Poll);
        assert_eq!(healthy(&life.inventory_where(|inventory| inventory.recovery_action.is_none()).await), [true; 4]);
        loop {
            state.events.push(Event { sequence: state.events.len() as u64 + 1, gpu: 0, kind: XID, data: 48 });
            state.write(&scenario).unwrap();
            // The listener begins anew with a reading.
            life.actor.tell(Message::Poll);
            tokio::select! {
                found = life.inventory() => {
                    assert_eq!(healthy(&found), [false, true, true, true]);
                    break;
                }
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
    });
}
