//! Object types. The CRDs that a cluster serves are generated from these (`heddle crds`).

// The lint takes two printer columns of one type for a mistake.
#![allow(clippy::duplicated_attributes)]

mod compute_domain;
mod config;
mod crds;
mod imex_domain;
mod imex_node;

pub use compute_domain::*;
pub use config::*;
pub use crds::*;
pub use imex_domain::*;
pub use imex_node::*;
