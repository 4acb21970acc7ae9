//! What the controller decides: from a [`View`] of the cluster to [`Write`]s, without doing any of it.
//!
//! Decisions have three keys. A ComputeDomain ([`compute_domain`]): finalizer, template, status. A clique
//! ([`clique()`]): its IMEX domains, their members, moves of nodes, channels. A node ([`node`]): whether its IMEXNode
//! may go. The view says which of them a change concerns.

mod agreement;
mod claim;
mod clique;
mod compute_domain;
mod conditions;
mod dirty;
mod family;
mod health;
mod index;
mod lifecycle;
mod membership;
pub mod placement;
mod quarantine;
mod relations;
mod status;
mod taken_back;
mod template;
mod view;
mod write;

pub use agreement::DriverMatch;
pub use claim::LabelledClaim;
pub use clique::{CliquePlan, clique};
pub use compute_domain::{Cd, Origin};
pub use conditions::{CHANNEL_ASSIGNED, DEGRADED, ISOLATED, READY};
pub use dirty::{Dirty, Turn};
pub use lifecycle::{compute_domain, node, without_finalizer};
pub use membership::{Candidate, Membership, membership};
pub use template::{is_of as is_template_of, ours as is_our_template, wanted as wanted_template};
pub use view::{Kind, NodeState, TemplateKey, View, template_key, template_owner};
pub use write::{DomainWrite, Note, Write};

#[cfg(test)]
mod clique_tests;
#[cfg(test)]
mod crd_tests;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod status_tests;
#[cfg(test)]
mod view_tests;
