//! XIDs: the driver's numbered reports of what went wrong on a GPU.
//!
//! Numbers and meanings are those of NVIDIA's "XID Errors" (<https://docs.nvidia.com/deploy/xid-errors/>). Which of them are
//! an application's own fault is the list that NVIDIA's device plugin and the existing DRA driver go by too, so that a node
//! is judged alike by all of them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// XIDs after which the GPU is as good as before: the application that caused them has ended, or will.
const OF_APPLICATIONS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// "GPU recovery action changed": what to do is read from the GPU itself.
const RECOVERY_ACTION_CHANGED: u64 = 154;

/// XIDs that are remembered of one GPU: a GPU that fails repeats itself.
const REMEMBERED: usize = 8;

/// What an XID says of its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The GPU must not be given to anybody until it has been seen to.
    Unhealthy,
    /// An application did something wrong, or a setting says that it does not matter.
    Harmless,
    /// Nothing by itself: the GPU's recovery action tells.
    AskTheGpu,
}

/// Judges an XID; those in `ignored` are harmless by a person's word.
pub fn verdict(xid: u64, ignored: &BTreeSet<u64>) -> Verdict {
    match xid {
        RECOVERY_ACTION_CHANGED => Verdict::AskTheGpu,
        _ if OF_APPLICATIONS.contains(&xid) || ignored.contains(&xid) => Verdict::Harmless,
        _ => Verdict::Unhealthy,
    }
}

/// `XID 79 (GPU has fallen off the bus)`.
pub fn name(xid: u64) -> String {
    let what = match xid {
        13 => "graphics engine exception",
        31 => "GPU memory page fault",
        43 => "GPU stopped processing",
        45 => "preemptive cleanup after earlier errors",
        46 => "GPU stopped processing",
        48 => "double-bit ECC error",
        61 | 62 => "internal micro-controller halt",
        63 => "row remapping or page retirement recorded",
        64 => "row remapping or page retirement failed",
        68 => "video processor exception",
        74 => "NVLink error",
        79 => "GPU has fallen off the bus",
        92 => "high rate of single-bit ECC errors",
        94 => "contained memory error",
        95 => "uncontained memory error",
        109 => "context switch time-out",
        110 => "security fault",
        119 => "GSP does not answer",
        120 => "GSP error",
        140 => "unrecovered ECC error",
        143 => "GPU initialisation error",
        144..=150 => "NVLink error",
        154 => "GPU recovery action changed",
        _ => return format!("XID {xid}"),
    };
    format!("XID {xid} ({what})")
}

/// The XIDs that made GPUs unhealthy. NVML tells of each once, so this is kept on disk over restarts of the agent.
///
/// A GPU is healthy again once it was seen to: its recovery action was set and is none again, the driver was unloaded or is
/// another one, or the node has rebooted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct XidRecord {
    /// The boot that all this happened in.
    #[serde(rename = "bootID")]
    boot_id: String,
    /// The driver that reported it.
    driver_version: String,
    /// By UUID of the GPU.
    gpus: BTreeMap<String, Struck>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Struck {
    xids: BTreeSet<u64>,
    /// Its recovery action has been other than none since.
    action_seen: bool,
}

impl XidRecord {
    /// What was kept, unless it is of another boot.
    pub fn in_boot(self, boot_id: &str) -> Self {
        if self.boot_id == boot_id { self } else { Self { boot_id: boot_id.to_owned(), ..Self::default() } }
    }

    /// The GPU is unhealthy by this XID.
    pub fn strike(&mut self, uuid: &str, xid: u64) {
        let struck = self.gpus.entry(uuid.to_owned()).or_default();
        if struck.xids.len() < REMEMBERED {
            struck.xids.insert(xid);
        }
        // An action before this XID was another's.
        struck.action_seen = false;
    }

    /// What the GPU suffers from.
    pub fn of(&self, uuid: &str) -> Option<&BTreeSet<u64>> {
        self.gpus.get(uuid).map(|struck| &struck.xids)
    }

    /// The GPU was read: `action` is its recovery action, 0 for none.
    pub fn see_action(&mut self, uuid: &str, action: u32) {
        let Some(struck) = self.gpus.get_mut(uuid) else { return };
        match action {
            0 if struck.action_seen => drop(self.gpus.remove(uuid)),
            0 => {}
            _ => struck.action_seen = true,
        }
    }

    /// The driver is this one.
    pub fn see_driver(&mut self, version: &str) {
        if self.driver_version != version {
            if !self.driver_version.is_empty() {
                self.gpus.clear();
            }
            version.clone_into(&mut self.driver_version);
        }
    }

    /// The driver is not loaded: the next one finds the GPUs anew.
    pub fn driver_gone(&mut self) {
        self.gpus.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck() -> XidRecord {
        let mut record = XidRecord::default().in_boot("b1");
        record.see_driver("595.71.05");
        record.strike("GPU-1", 79);
        record
    }

    #[test]
    fn an_applications_fault_is_not_the_gpus() {
        let none = BTreeSet::new();
        for xid in [13, 31, 43, 45, 68, 109] {
            assert_eq!(verdict(xid, &none), Verdict::Harmless, "{xid}");
        }
        for xid in [48, 62, 64, 74, 79, 95, 119, 999, 100_000] {
            assert_eq!(verdict(xid, &none), Verdict::Unhealthy, "{xid}");
        }
        assert_eq!(verdict(154, &none), Verdict::AskTheGpu);
        assert_eq!(verdict(94, &[94].into()), Verdict::Harmless);
        assert_eq!((name(79).as_str(), name(7).as_str()), ("XID 79 (GPU has fallen off the bus)", "XID 7"));
    }

    #[test]
    fn a_gpu_is_healthy_again_when_its_recovery_action_came_and_went() {
        let mut record = struck();
        record.see_action("GPU-1", 0);
        assert!(record.of("GPU-1").is_some(), "the driver has not said yet what to do");
        record.see_action("GPU-1", 1);
        record.see_action("GPU-2", 0);
        assert!(record.of("GPU-1").is_some());
        record.see_action("GPU-1", 0);
        assert_eq!(record.of("GPU-1"), None);
    }

    #[test]
    fn an_xid_after_the_action_needs_an_action_of_its_own() {
        let mut record = struck();
        record.see_action("GPU-1", 1);
        record.strike("GPU-1", 48);
        record.see_action("GPU-1", 0);
        assert_eq!(record.of("GPU-1"), Some(&[48, 79].into()));
    }

    #[test]
    fn another_driver_and_another_boot_begin_anew() {
        assert_eq!(struck().in_boot("b1").of("GPU-1"), Some(&[79].into()));
        assert_eq!(struck().in_boot("b2").of("GPU-1"), None);
        let mut record = struck();
        record.see_driver("595.71.05");
        assert!(record.of("GPU-1").is_some());
        record.see_driver("600.1");
        assert_eq!(record.of("GPU-1"), None);
        let mut record = struck();
        record.driver_gone();
        assert_eq!(record.of("GPU-1"), None);
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let text = serde_json::to_string(&struck()).unwrap();
        assert_eq!(serde_json::from_str::<XidRecord>(&text).unwrap(), struck());
    }
}
