//! The actor runtime: its actors are killed, panicked, stalled and flooded. Time is paused wherever nothing but timers is
//! waited for, so no test sleeps.

mod effects;
mod mailbox;
mod probe;
mod process;
mod readiness;
mod scopes;
mod supervision;
