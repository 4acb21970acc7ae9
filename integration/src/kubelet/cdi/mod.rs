//! Container Device Interface: from device ids to what a container gets, as containerd does it.
//!
//! Pure except for [`Catalog::read`] and the look at host nodes that a spec does not describe by number.

mod catalog;
mod edits;
mod spec;

pub use catalog::{Catalog, Unresolvable};
pub use edits::{Edits, InjectError};
