use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Since the machine was started, with the time in which it was suspended: a lease does not outlive a closed lid.
pub(super) fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or_default())
}
