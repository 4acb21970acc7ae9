//! Nodes of a clique with the real controller, their agents' IMEX side, real runners and fake daemons.

mod addresses;
mod bed;
mod faults;
mod links;
mod netns;
