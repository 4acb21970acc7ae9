//! Daemons as processes on nodes of their own.

mod conformance;
mod links;
mod members;
mod rack;
mod recovery;
mod runner;
mod scenario;
mod start;
mod tls;
mod tool;
