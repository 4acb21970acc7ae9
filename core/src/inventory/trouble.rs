//! Why a GPU must not be given to anybody new.

use std::collections::BTreeSet;

use super::xid;

/// One reason. Claims that hold the GPU keep it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The driver has reported these.
    Xids(BTreeSet<u64>),
    /// NVML wants this done: `nvmlDeviceGpuRecoveryAction_t`.
    RecoveryAction(u32),
    /// It cannot be reached any more; the text says what NVML says.
    Lost(String),
    /// NVML does not answer, or the driver is away.
    Unreadable(String),
}

impl Trouble {
    /// What NVML's recovery action means for the GPU itself: none and "recover the IMEX domain" (5) leave it usable.
    pub(super) fn of_action(action: u32) -> Option<Self> {
        (!matches!(action, 0 | 5)).then_some(Self::RecoveryAction(action))
    }

    /// Key of the taint. Those for XIDs and lost GPUs are the existing driver's.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Xids(_) => "gpu.nvidia.com/xid",
            Self::RecoveryAction(_) => "gpu.nvidia.com/recovery-action",
            Self::Lost(_) => "gpu.nvidia.com/gpu-lost",
            Self::Unreadable(_) => "gpu.nvidia.com/unreadable",
        }
    }

    /// Value of the taint, if it has one: the newest-numbered XID, or the action's number.
    pub fn value(&self) -> Option<String> {
        match self {
            Self::Xids(xids) => xids.last().map(u64::to_string),
            Self::RecoveryAction(action) => Some(action.to_string()),
            Self::Lost(_) | Self::Unreadable(_) => None,
        }
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Xids(xids) => {
                let names: Vec<String> = xids.iter().map(|xid| xid::name(*xid)).collect();
                f.write_str(&names.join(", "))
            }
            Self::RecoveryAction(action) => write!(f, "to be done: {}", action_words(*action)),
            Self::Lost(why) => write!(f, "it is lost: {why}"),
            Self::Unreadable(why) => write!(f, "it cannot be read: {why}"),
        }
    }
}

/// What `nvmlDeviceGpuRecoveryAction_t` asks of people.
pub(super) fn action_words(action: u32) -> String {
    match action {
        0 => "nothing",
        1 => "reset the GPU",
        2 => "reboot the node",
        3 => "drain peer-to-peer traffic",
        4 => "drain and reset the GPU",
        5 => "recover the IMEX domain: end the jobs that hold imported memory",
        6 => "reset the bus",
        7 => "reboot the system",
        other => return format!("action {other}, which this version does not know"),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_makes_a_valid_taint() {
        for trouble in [
            Trouble::Xids([13, 79].into()),
            Trouble::RecoveryAction(1),
            Trouble::Lost("GPU is lost".into()),
            Trouble::Unreadable("timeout".into()),
        ] {
            assert!(trouble.key().starts_with("gpu.nvidia.com/"));
            let value = trouble.value().unwrap_or_default();
            assert!(value.len() <= 63 && value.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{trouble}");
            assert!(!trouble.to_string().is_empty());
        }
    }

    #[test]
    fn an_action_about_the_imex_domain_is_not_the_gpus_trouble() {
        assert_eq!(Trouble::of_action(0), None);
        assert_eq!(Trouble::of_action(5), None);
        for action in [1, 2, 3, 4, 6, 7, 8] {
            assert!(Trouble::of_action(action).unwrap().to_string().contains("to be done"));
        }
    }
}
