//! Daemons as processes on nodes of their own.

mod members;
mod rack;
mod tls;
