//! What the kernel and the kubelet say, changed at random: bounded here, and without end by
//! `cargo bolero test -p heddle-actors NAME`.

mod front;
mod proc_files;
