//! `heddle fake hardware`: what stands for the hardware of one node of a real cluster.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use heddle_core::clique::CliqueId;

use crate::demo::provision::{self, Binary};
use crate::node::NodePaths;

/// Makes a folder with the driver root `driver/`, the kernel's files `os/`, `nvml.json` for the fake NVML, and the container
/// toolkit's CDI file of the GPUs, `cdi-etc/nvidia.json`. Each time is a boot: the boot ID is new.
///
/// # Errors
/// When a file cannot be written.
pub fn make(
    folder: &Path,
    name: &str,
    address: IpAddr,
    clique: Option<&CliqueId>,
    (gpus, major, channels): (u32, u32, u32),
) -> Result<()> {
    let binary = Binary::own(Vec::new())?;
    let paths = NodePaths::new(folder);
    fs::create_dir_all(folder).with_context(|| format!("{} could not be made", folder.display()))?;
    let hardware = provision::Hardware { name, address, clique, gpus, major, channels };
    provision::provision_hardware(&paths, &hardware, &binary)?;
    // Containers see the driver root at another place, and nothing of where the library was built.
    let library = paths.driver_root().join("usr/lib64/libnvidia-ml.so.1");
    fs::remove_file(&library)?;
    fs::copy(&binary.nvml, &library).with_context(|| format!("{} could not be made", library.display()))?;
    Ok(())
}
