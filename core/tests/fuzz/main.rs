//! What others write, changed at random: bounded here, and without end by `cargo bolero test -p heddle-core NAME`.

mod bytes;
mod cdi;
mod checkpoint;
mod config;
