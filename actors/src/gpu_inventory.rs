//! gpu_inventory
