//! ResourceSlices of a node: slots and GPUs, pool generations.
