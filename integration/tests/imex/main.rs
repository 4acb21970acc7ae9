//! Daemons as processes on nodes of their own.

mod conformance;
mod host;
mod links;
mod members;
mod own_certificates;
mod rack;
mod recovery;
mod runner;
mod scenario;
mod start;
mod tls;
mod tool;
