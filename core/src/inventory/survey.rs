//! What a node's readings and events come to, one after the other.

use std::collections::BTreeSet;

use super::notice::{self, Notice};
use super::trouble::Trouble;
use super::xid::{self, Verdict, XidRecord};
use super::{Access, Fabric, Inventory, Reading, inventory};

/// What NVML tells of unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuEvent {
    /// UUID of the GPU.
    pub uuid: String,
    /// What happened.
    pub happening: Happening,
}

/// What happened to a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The driver has reported this XID.
    Xid(u64),
    /// Something else that a reading will show: its recovery action has changed, or it is unavailable.
    Look,
}

/// The memory between readings.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    access: Access,
    ignored: BTreeSet<u64>,
    record: XidRecord,
    last: Option<Inventory>,
}

impl Survey {
    /// Begins with what was kept on disk. XIDs in `ignored` are harmless by a person's word.
    pub fn new(access: Access, ignored: BTreeSet<u64>, record: XidRecord) -> Self {
        Self { access, ignored, record, last: None }
    }

    /// What is to be kept on disk.
    pub fn record(&self) -> &XidRecord {
        &self.record
    }

    /// What was found last.
    pub fn last(&self) -> Option<&Inventory> {
        self.last.as_ref()
    }

    /// A reading succeeded. What has become different comes as notices.
    pub fn see(&mut self, reading: &Reading) -> Vec<Notice> {
        self.record.see_driver(&reading.driver_version);
        for gpu in &reading.gpus {
            self.record.see_action(&gpu.uuid, gpu.recovery_action);
        }
        let mut found = inventory(reading, self.access);
        self.keep_unreadable(reading, &mut found);
        self.add_xids(&mut found);
        self.settle(found)
    }

    /// NVML could not be read. A driver that was there may be under update: its GPUs are not gone, but not usable. One
    /// that has not come yet says nothing about the fabric: claims wait for it, rather than go without a channel.
    pub fn fail(&mut self, why: &str, driver_gone: bool) -> Vec<Notice> {
        if driver_gone {
            self.record.driver_gone();
        }
        let found = match &self.last {
            Some(last) if !last.gpus.is_empty() => {
                let mut found = Inventory { fabric: Fabric::Unhealthy(why.to_owned()), ..last.clone() };
                for gpu in &mut found.gpus {
                    gpu.troubles = vec![Trouble::Unreadable(why.to_owned())];
                }
                self.add_xids(&mut found);
                found
            }
            _ => Inventory { fabric: Fabric::Pending(why.to_owned()), ..Inventory::default() },
        };
        self.settle(found)
    }

    /// NVML tells of something. True if a reading is worth its time now.
    pub fn hear(&mut self, event: &GpuEvent) -> (Vec<Notice>, bool) {
        let Happening::Xid(xid) = event.happening else { return (Vec::new(), true) };
        match xid::verdict(xid, &self.ignored) {
            Verdict::AskTheGpu => (Vec::new(), true),
            Verdict::Harmless => (vec![notice::harmless_xid(&self.name(&event.uuid), xid)], false),
            Verdict::Unhealthy => {
                self.record.strike(&event.uuid, xid);
                let Some(mut found) = self.last.clone() else { return (Vec::new(), true) };
                for gpu in &mut found.gpus {
                    gpu.troubles.retain(|trouble| !matches!(trouble, Trouble::Xids(_)));
                }
                self.add_xids(&mut found);
                (self.settle(found), true)
            }
        }
    }

    fn name(&self, uuid: &str) -> String {
        let gpus = self.last.iter().flat_map(|last| &last.gpus);
        match gpus.into_iter().find(|gpu| gpu.uuid == uuid) {
            Some(gpu) => notice::name(gpu),
            None => format!("GPU {uuid}"),
        }
    }

    /// A GPU that cannot be read now is the one that was read before; one that never was is known to nobody.
    fn keep_unreadable(&self, reading: &Reading, found: &mut Inventory) {
        for unreadable in &reading.unreadable {
            let before = self.last.iter().flat_map(|last| &last.gpus).find(|gpu| gpu.index == unreadable.index);
            let Some(before) = before.filter(|before| found.gpus.iter().all(|gpu| gpu.uuid != before.uuid)) else {
                continue;
            };
            let mut gpu = before.clone();
            let trouble = if unreadable.lost { Trouble::Lost } else { Trouble::Unreadable };
            gpu.troubles = vec![trouble(unreadable.why.clone())];
            gpu.fabric = Fabric::Unhealthy(unreadable.why.clone());
            found.gpus.push(gpu);
        }
        found.gpus.sort_by_key(|gpu| gpu.index);
    }

    fn add_xids(&self, found: &mut Inventory) {
        for gpu in &mut found.gpus {
            if let Some(xids) = self.record.of(&gpu.uuid) {
                gpu.troubles.push(Trouble::Xids(xids.clone()));
                gpu.troubles.sort();
            }
        }
    }

    fn settle(&mut self, found: Inventory) -> Vec<Notice> {
        let notices = notice::between(self.last.as_ref(), &found);
        self.last = Some(found);
        notices
    }
}

#[cfg(test)]
#[path = "survey_tests.rs"]
mod tests;
