//! The channel protocol: how a ComputeDomain gets a number in an IMEX domain, and how the number comes back.
//!
//! | step | who | object written | what the write rests on |
//! |---|---|---|---|
//! | [`allocate()`] | agent | IMEXDomain | its resourceVersion |
//! | [`enter()`] | agent | own IMEXNode | its resourceVersion, and a view of the IMEXDomain not older than the node's marks |
//! | [`leave()`], [`observe()`] | agent | own IMEXNode | its resourceVersion |
//! | [`drain()`] | controller | IMEXDomain | its resourceVersion |
//! | [`reclaim()`], [`revive()`] | controller | IMEXDomain | its resourceVersion |
//! | [`fences()`] | controller | IMEXNode | its resourceVersion |
//! | [`restore()`] | controller | IMEXDomain | its resourceVersion, and copies of the IMEXNodes read after it |
//! | [`free()`] | controller | IMEXDomain | its resourceVersion, and copies of all IMEXNodes read after that of the IMEXDomain |
//! | [`release()`] | a person | IMEXNode of a lost node | its resourceVersion |
//! | move ([`crate::controller::placement`]) | controller | IMEXNode | its resourceVersion, and a copy of the IMEXDomain read after that of the IMEXNode |
//!
//! # Why no number is freed under a node
//!
//! A *mark* is a pair (domain, epoch) in an IMEXNode: `spec.fence` by the controller, `status.observed` by the
//! agent. [`enter()`] refuses a view of the domain that is older than a mark of that domain. Once a node carries a
//! mark at or above a drain's epoch, every later enter sees the drain; an enter that was decided before the mark
//! was written fails by its resourceVersion. [`free()`] asks for such a mark of every node that the domain's daemon
//! map names or that could be in it, so nobody needs to answer for a number to come back.
//!
//! A fence has room for one domain, that of `spec.domain`: the fence of another would take the node's own
//! protection away. A node in another domain needs none, for [`enter()`] compares `spec.domain` under the same
//! resourceVersion. It gets one when it is moved in: the move sets `spec.domain` and `spec.fence` in one write, with
//! the epoch of a copy of the IMEXDomain read *after* the copy of the IMEXNode that guards the write, and in which
//! the node is a member that is not `away`. Before that membership is in the IMEXDomain nobody may move the node;
//! once it is, [`free()`] waits for the move. Hence also a move that was sent long ago and arrives late either fails
//! or carries a mark that is new enough.

mod allocate;
mod drain;
mod enter;
mod fences;
mod free;
mod leave;
mod marks;
mod observe;
mod reclaim;
mod release;
mod restore;

pub use allocate::{Allocate, allocate, no_free};
pub use drain::drain;
pub use enter::{Enter, enter};
pub use fences::fences;
pub use free::{Holder, free, holders};
pub use leave::leave;
pub use marks::{lists, mark};
pub use observe::observe;
pub use reclaim::{exhausted, reclaim, revive};
pub use release::{LEASE_SECONDS, Life, Release, release};
pub use restore::{Restore, restore};

use kube::Resource;

/// An object's name, or nothing for one that has none yet.
pub(crate) fn name<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod samples;
