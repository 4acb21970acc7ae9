use std::fs;
use std::path::Path;
use std::process::Command;

use heddle_core::fault::Fault;
use heddle_core::names;
use heddle_core::preflight::{ChannelFacts, Folder, HostFacts, KubeletFacts, RivalFacts};
use rustix::fs::{Access, FlockOperation};

use super::Settings;
use crate::dra::sockets;
use crate::host_root::HostRoot;
use crate::nvml::devices::Devices;
use crate::small_file;

/// A pod UID, for the length of its sockets' paths.
const POD_UID: &str = "00000000-0000-0000-0000-000000000000";

/// What the kernel module says of channels.
pub(super) fn channels(settings: &Settings) -> ChannelFacts {
    let devices = Devices::new(&settings.proc_root);
    let told = |fault: Fault| fault.message;
    ChannelFacts {
        count: devices.channel_count().map_err(told),
        major: devices.channel_major().map_err(told),
        capability: devices.imex_capability().map_err(told),
        slots: settings.slots,
    }
}

/// Why no file can be made in a folder.
pub(super) fn unwritable(folder: &Path) -> Result<(), String> {
    match fs::metadata(folder) {
        Err(error) => return Err(error.to_string()),
        Ok(found) if !found.is_dir() => return Err("it is no folder".into()),
        Ok(_) => {}
    }
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| std::io::Error::from(error).to_string())
}

/// The kubelet's folders, and the sockets that an agent would make there.
pub(super) fn kubelet(settings: &Settings) -> KubeletFacts {
    let look = |folder: &Path| Folder { path: folder.display().to_string(), unusable: unwritable(folder).err() };
    let data = settings.plugins_dir.join(names::DRIVER);
    let pod_uid = settings.pod_uid.as_deref().unwrap_or(POD_UID);
    let made = [
        sockets::service_path(&data, names::DRIVER, pod_uid),
        sockets::registration_path(&settings.registry_dir, names::DRIVER, pod_uid),
    ];
    KubeletFacts {
        plugins: look(&settings.plugins_dir),
        registry: look(&settings.registry_dir),
        sockets: made.map(|path| path.display().to_string()).to_vec(),
    }
}

/// Other drivers of our name: sockets on which somebody listens, and devices that are none of ours.
pub(super) fn rivals(settings: &Settings, devices: Vec<String>) -> RivalFacts {
    let own =
        settings.pod_uid.as_deref().map(|uid| sockets::registration_path(&settings.registry_dir, names::DRIVER, uid));
    let entries = fs::read_dir(&settings.registry_dir).into_iter().flatten().flatten();
    // Not the shortest names: they have a hash in the driver's place.
    let named = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with(names::DRIVER) && name.ends_with("-reg.sock"))
    });
    let live = named.map(|entry| entry.path()).filter(|path| Some(path) != own.as_ref());
    let mut sockets: Vec<String> =
        live.filter(|path| sockets::somebody_listens(path)).map(|path| path.display().to_string()).collect();
    sockets.sort();
    // The agent that asks holds the lock itself, and its own socket is not among them.
    let agent_runs = own.is_none() && is_locked(&settings.state_dir.join("agent.lock"));
    RivalFacts { sockets, agent_runs, devices }
}

fn is_locked(lock: &Path) -> bool {
    let Ok(file) = small_file::open(lock) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
}

/// The node itself.
pub(super) fn host(settings: &Settings) -> HostFacts {
    let nearest = settings.state_dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    HostFacts {
        boot_id: Devices::new(&settings.proc_root).boot_id().map_err(|fault| fault.message),
        now: jiff::Timestamp::now().as_second(),
        state_dir: settings.state_dir.display().to_string(),
        state_file_system: file_system(nearest),
    }
}

/// The type of the file system at a folder (`linux/magic.h`).
fn file_system(folder: &Path) -> Result<String, String> {
    let found = rustix::fs::statfs(folder).map_err(|error| std::io::Error::from(error).to_string())?;
    // Its width differs by architecture.
    #[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast)]
    let magic = found.f_type as u32;
    Ok(match magic {
        0x0102_1994 => "tmpfs".into(),
        0x8584_58f6 => "ramfs".into(),
        0x794c_7630 => "overlay".into(),
        0xef53 => "ext4".into(),
        0x5846_5342 => "xfs".into(),
        0x9123_683e => "btrfs".into(),
        other => format!("a file system of type {other:#x}"),
    })
}

/// What the host's containerd says of itself. Only where the host is our own root: a program below another would need
/// the libraries of that one.
pub(super) fn containerd_version(host: &HostRoot) -> Option<String> {
    if !host.is_own() {
        return None;
    }
    let program =
        ["/usr/bin/containerd", "/usr/local/bin/containerd"].into_iter().find(|path| Path::new(path).is_file())?;
    let answer = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&answer.stdout).trim().to_owned()).filter(|said| !said.is_empty())
}
