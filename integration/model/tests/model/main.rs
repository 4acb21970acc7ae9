//! Small instances of the channel protocol, each explored to the end, with the number of states that they have: a
//! change of it is a change of what can happen, and asks for a look.
//!
//! `cargo test -p heddle-model --test model -- --nocapture` tells what each took.

mod bugs;
mod channels;
mod check;
mod moves;
mod simulation;
