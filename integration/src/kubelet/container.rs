//! A running container, as far as device nodes go.

use std::collections::BTreeMap;

use rustix::io::Errno;

/// Where IMEX channels stand.
const CHANNELS: &str = "/dev/nvidia-caps-imex-channels/";

/// A device node inside a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path inside the container.
    pub path: String,
    /// `c` or `b`.
    pub kind: char,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// What the device cgroup allows, of `rwm`.
    pub permissions: String,
}

/// A running container.
#[derive(Clone, Debug)]
pub struct Container {
    /// Its pod's namespace.
    pub namespace: String,
    /// Its pod's name.
    pub pod: String,
    /// Its pod's UID.
    pub pod_uid: String,
    /// Its name in the pod.
    pub name: String,
    /// Whether it is one of the pod's init containers.
    pub init: bool,
    /// Its device nodes. Those that every container has (`/dev/null` and so on) are left out.
    pub devices: Vec<DeviceNode>,
    /// Its environment.
    pub env: BTreeMap<String, String>,
}

impl Container {
    /// Opens a device node for reading and writing: `ENOENT` unless it was injected, `EPERM` if injected for less.
    pub fn open(&self, path: &str) -> Result<DeviceNode, Errno> {
        let node = self.devices.iter().find(|node| node.path == path).ok_or(Errno::NOENT)?;
        if "rw".chars().all(|access| node.permissions.contains(access)) { Ok(node.clone()) } else { Err(Errno::PERM) }
    }

    /// Makes a character device node inside the container and opens it. Containers have CAP_MKNOD, so making it
    /// works; opening it is up to the device cgroup, which knows the numbers of the injected nodes only.
    pub fn open_made_node(&self, major: u32, minor: u32) -> Result<DeviceNode, Errno> {
        self.devices
            .iter()
            .find(|node| (node.kind, node.major, node.minor) == ('c', major, minor) && node.permissions.contains("rw"))
            .cloned()
            .ok_or(Errno::PERM)
    }

    /// The IMEX channels that it can open.
    pub fn channels(&self) -> Vec<DeviceNode> {
        self.devices
            .iter()
            .filter(|node| node.path.starts_with(CHANNELS))
            .filter_map(|node| self.open(&node.path).ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_injected_nodes_open() {
        let node = |minor: u32, permissions: &str| DeviceNode {
            path: format!("{CHANNELS}channel{minor}"),
            kind: 'c',
            major: 505,
            minor,
            permissions: permissions.into(),
        };
        let container = Container {
            namespace: "default".into(),
            pod: "p".into(),
            pod_uid: "u".into(),
            name: "c".into(),
            init: false,
            devices: vec![node(7, "rw"), node(8, "r")],
            env: BTreeMap::new(),
        };
        assert_eq!(container.open("/dev/nvidia-caps-imex-channels/channel7").unwrap().minor, 7);
        assert_eq!(container.open("/dev/nvidia-caps-imex-channels/channel9"), Err(Errno::NOENT));
        assert_eq!(container.open("/dev/nvidia-caps-imex-channels/channel8"), Err(Errno::PERM));
        assert_eq!(container.open_made_node(505, 7).unwrap().minor, 7);
        assert_eq!(container.open_made_node(505, 9), Err(Errno::PERM));
        assert_eq!(container.channels().len(), 1);
    }
}
