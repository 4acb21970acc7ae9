//! The channel protocol and the moves of nodes as a model that is checked over all interleavings of small instances and
//! over random ones of larger.
//!
//! Everything that decides is production code: the functions of `heddle_core`, on the types of the API. What is here is
//! what surrounds them: an API server that compares versions, watches that are late, writes that are on their way or
//! lost, processes that die, people and pods that come and go. `docs/protocol.md` says what is and what is not covered.

mod action;
mod agent;
mod controller;
mod held;
mod memo;
mod model;
pub mod properties;
mod rest;
mod settings;
mod simulation;
mod state;

pub use action::{Act, Action, Kind};
pub use held::Held;
pub use model::Model;
pub use rest::Rest;
pub use settings::{Bug, Faults, Names, Plan, Settings};
pub use simulation::{Run, simulate};
pub use state::{Agent, Belief, Leader, Life, Order, OwnWrite, Seen, Sent, State};
