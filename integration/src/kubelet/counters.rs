//! What a kubelet double has done, for tests and reports. Counts go on over restarts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a kubelet double has done so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        /// The running counts.
        #[derive(Debug, Default)]
        pub(super) struct Counters { $(pub(super) $name: Counter),* }

        impl Counters {
            pub(super) fn get(&self) -> Counts {
                Counts { $($name: self.$name.0.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters! {
    /// `GetInfo` calls.
    get_info_calls,
    /// Plugins registered.
    registrations,
    /// Plugins that were told that they are not registered.
    refusals,
    /// Connections made to DRA endpoints.
    connections,
    /// `NodePrepareResources` calls.
    prepare_calls,
    /// Claims in them.
    prepare_claims,
    /// `NodeUnprepareResources` calls.
    unprepare_calls,
    /// Claims in them.
    unprepare_claims,
    /// Containers started.
    container_starts,
    /// Container starts that failed for want of a CDI device.
    container_refusals,
    /// Times that ResourceSlices were deleted.
    wipes,
}

/// One count.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn one(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Ordering::Relaxed);
    }
}
