//! Leadership: one of several processes writes, by a Lease, and nothing that another sends after its time is written.

mod clock;
mod election;
mod gate;
mod leadership;
mod metrics;
mod object;

pub use election::{Election, Settings};
pub use gate::NotLeading;
pub use leadership::Leadership;
pub use metrics::LeaseMetrics;

/// A name for this life of a process in a Lease. A pod keeps its name when its container is restarted, and what it held
/// before is not its own any more.
pub fn identity(pod: &str) -> String {
    format!("{pod}_{:08x}", fastrand::u32(..))
}
