//! The files of a simulated node: what the kernel, the driver and the container toolkit would have put there.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Context;
use heddle_core::clique::CliqueId;
use heddle_core::names;
use heddle_fake_nvml::Scenario;
use serde_json::json;
use uuid::Uuid;

use crate::driver_root;
use crate::node::NodePaths;

/// containerd with NVIDIA's runtime beside its own, and CDI on, as it is by default since 2.0.
const CONTAINERD: &str = "version = 3
[plugins.'io.containerd.cri.v1.runtime']
cdi_spec_dirs = CDI_DIRS
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
BinaryName = '/usr/bin/nvidia-container-runtime'
";

/// The capability that opens the kernel's IMEX session, as the driver numbers it since 595.
const CAPABILITY: &str = "DeviceFileMinor: 4323
DeviceFileMode: 256
DeviceFileModify: 1
";

/// That runtime's configuration, with its own door to IMEX channels shut.
const TOOLKIT: &str = "[features]
ignore-imex-channel-requests = true
";

/// One simulated node.
#[derive(Clone, Debug)]
pub struct Node {
    /// `node-1`, …
    pub name: String,
    /// A loopback address of its own.
    pub address: Ipv4Addr,
    /// Its NVLink partition.
    pub clique: CliqueId,
    /// Where its files are.
    pub paths: NodePaths,
}

/// How a simulated node can start this very binary.
#[derive(Clone, Debug)]
pub struct Binary {
    /// Words before the path, where it cannot be started directly.
    pub launcher: Vec<String>,
    /// Its path.
    pub path: PathBuf,
    /// The fake NVML library.
    pub nvml: PathBuf,
}

impl Binary {
    /// This process's own binary, and the fake NVML library that was built with it.
    ///
    /// # Errors
    /// When either cannot be found.
    pub fn own(launcher: Vec<String>) -> anyhow::Result<Self> {
        let path = std::env::current_exe().context("the path of this binary is not known")?;
        let nvml = heddle_fake_nvml::built_library()?;
        Ok(Self { launcher, path, nvml })
    }

    /// Whether a daemon can be given a root of its own here, or else why not.
    ///
    /// # Errors
    /// The reason.
    pub fn may_isolate(&self) -> Result<(), String> {
        match self.launcher.is_empty() {
            true => driver_root::may_isolate(&self.path),
            false => Err("this binary is started by a launcher".into()),
        }
    }

    /// The command line for one of its subcommands.
    pub fn command(&self, arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        let launcher = self.launcher.iter().map(OsString::from);
        launcher.chain([self.path.clone().into_os_string()]).chain(arguments).collect()
    }
}

/// Writes all files of a node.
///
/// # Errors
/// When a file cannot be written.
pub fn provision(node: &Node, gpus: u32, major: u32, binary: &Binary) -> anyhow::Result<()> {
    let hardware = Hardware {
        name: &node.name,
        address: node.address.into(),
        clique: Some(&node.clique),
        gpus,
        major,
        channels: names::DEFAULT_CHANNEL_COUNT,
    };
    provision_hardware(&node.paths, &hardware, binary)
}

/// What a node is made of.
#[derive(Clone, Copy, Debug)]
pub struct Hardware<'a> {
    /// The node's name; its GPUs' UUIDs follow from it.
    pub name: &'a str,
    /// Address of its interface.
    pub address: IpAddr,
    /// Its NVLink partition; without one there is no multi-node NVLink.
    pub clique: Option<&'a CliqueId>,
    /// Number of GPUs.
    pub gpus: u32,
    /// Major number of its IMEX channels.
    pub major: u32,
    /// How many of them its kernel module has, with number 0.
    pub channels: u32,
}

/// Writes all files of a node's hardware.
///
/// # Errors
/// When a file cannot be written.
pub fn provision_hardware(paths: &NodePaths, hardware: &Hardware<'_>, binary: &Binary) -> anyhow::Result<()> {
    let Hardware { name, address, clique, gpus, major, channels } = *hardware;
    let os = paths.os();
    for folder in [
        paths.plugins(),
        paths.registry(),
        paths.cdi(),
        paths.cdi_static(),
        paths.state(),
        paths.imex(),
        os.join("etc/containerd"),
        os.join("etc/nvidia-container-runtime"),
        os.join("net"),
        os.join("run"),
        os.join("proc/driver/nvidia/capabilities"),
        os.join("proc/sys/kernel/random"),
    ] {
        std::fs::create_dir_all(&folder).with_context(|| format!("{} could not be made", folder.display()))?;
    }
    let write = |path: PathBuf, text: String| {
        std::fs::write(&path, text).with_context(|| format!("{} could not be written", path.display()))
    };
    write(
        os.join("proc/devices"),
        format!(
            "Character devices:\n  1 mem\n  5 /dev/tty\n{major} {}\n{} nvidia-caps\n\nBlock devices:\n  7 loop\n",
            names::CHANNEL_MAJOR_NAME,
            major + 1
        ),
    )?;
    write(
        os.join("proc/driver/nvidia/params"),
        format!("ModifyDeviceFiles: 1\nImexChannelCount: {channels}\nCreateImexChannel0: 0\n"),
    )?;
    write(
        os.join("proc/sys/kernel/random/boot_id"),
        format!("{}\n", Uuid::from_u128(fastrand::u128(..)).hyphenated()),
    )?;
    write(os.join("proc/driver/nvidia/capabilities/fabric-imex-mgmt"), CAPABILITY.into())?;
    let cdi = [paths.cdi_static(), paths.cdi()].map(|folder| folder.display().to_string());
    write(os.join("etc/containerd/config.toml"), CONTAINERD.replace("CDI_DIRS", &format!("{cdi:?}")))?;
    write(os.join("etc/nvidia-container-runtime/config.toml"), TOOLKIT.into())?;
    write(os.join("net/addresses"), format!("{address}\n"))?;

    let clique = clique.map(|clique| (clique.cluster.to_string(), clique.id));
    let scenario = Scenario::gb200(name, gpus, clique.as_ref().map(|(cluster, id)| (cluster.as_str(), *id)));
    write(paths.nvml_scenario(), serde_json::to_string_pretty(&scenario)?)?;
    place_driver(paths, binary).context("the driver root could not be made")?;
    symlink(&binary.nvml, paths.driver_root().join("usr/lib64/libnvidia-ml.so.1"))?;
    let uuids: Vec<_> = scenario.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    write(paths.cdi_static().join("nvidia.json"), toolkit_spec(&uuids).to_string())?;
    Ok(())
}

/// The driver root with the fake tools. Where a daemon can have a root of its own, it has a system of its own.
fn place_driver(paths: &NodePaths, binary: &Binary) -> anyhow::Result<()> {
    let (root, os) = (paths.driver_root(), paths.os());
    if binary.may_isolate().is_err() {
        for folder in ["usr/bin", "usr/lib64"] {
            std::fs::create_dir_all(root.join(folder))?;
        }
        for tool in ["nvidia-imex", "nvidia-imex-ctl"] {
            place_tool(binary, tool, &root.join("usr/bin").join(tool))?;
        }
        return Ok(std::fs::write(os.join("etc/hosts"), "127.0.0.1 localhost\n")?);
    }
    let first = paths.root.with_file_name("driver-root");
    if !first.exists() {
        driver_root::make(&binary.path, &first)?;
    }
    driver_root::share(&first, &root)?;
    // What its hardware takes for `/` has the daemon's own names and state, which are the runner's.
    symlink("/etc/hosts", os.join("etc/hosts"))?;
    Ok(symlink("/run/nvidia-imex", os.join("run/nvidia-imex"))?)
}

/// Puts a fake tool into the driver root: this binary under another name, or a script that starts it through the
/// launcher.
fn place_tool(binary: &Binary, tool: &str, place: &Path) -> anyhow::Result<()> {
    if binary.launcher.is_empty() {
        return symlink(&binary.path, place).with_context(|| format!("{} could not be made", place.display()));
    }
    let words = binary.launcher.iter().map(String::as_str).chain(binary.path.to_str());
    let quoted: Vec<_> = words.map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    std::fs::write(place, format!("#!/bin/sh\nexec {} fake {tool} \"$@\"\n", quoted.join(" ")))?;
    std::fs::set_permissions(place, PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// The CDI spec that the container toolkit makes of a node's GPUs.
fn toolkit_spec(uuids: &[String]) -> serde_json::Value {
    // 195 is the registered major of /dev/nvidia*.
    let devices: Vec<_> = (uuids.iter().enumerate())
        .map(|(index, uuid)| {
            let path = format!("/dev/nvidia{index}");
            json!({"name": uuid, "containerEdits": {"deviceNodes": [{"path": path, "type": "c", "major": 195, "minor": index}]}})
        })
        .collect();
    json!({
        "cdiVersion": "0.5.0",
        "kind": names::TOOLKIT_GPU_CDI_KIND,
        "devices": devices,
        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}]},
    })
}
