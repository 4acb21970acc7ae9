//! The fake IMEX daemon, its control tool, and what CUDA asks of the kernel.
