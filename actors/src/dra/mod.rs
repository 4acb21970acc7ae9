//! dra

pub mod front;
