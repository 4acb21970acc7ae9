//! What a container gets by its CDI devices.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

use super::{
    catalog::{Catalog, Unresolvable},
    spec::{Mount, SpecDeviceNode},
};
use crate::kubelet::container::DeviceNode;

/// What a container gets by its CDI devices.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    /// Device nodes, one a path.
    pub devices: Vec<DeviceNode>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
}

/// Why a container could not get its CDI devices.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// No spec defines them.
    #[error(transparent)]
    Unresolvable(#[from] Unresolvable),
    /// A spec names a host node that does not do.
    #[error("failed to stat CDI host device {path:?}: {why}")]
    Host {
        /// Path on the host.
        path: String,
        /// What is wrong with it.
        why: String,
    },
}

impl Edits {
    /// Resolves `ids`. `host` is what the node takes for `/`.
    pub fn inject(catalog: &Catalog, ids: &[String], host: &Path) -> Result<Self, InjectError> {
        let mut result = Self::default();
        for edits in catalog.edits(ids)? {
            for entry in &edits.env {
                if let Some((name, value)) = entry.split_once('=') {
                    result.env.insert(name.to_owned(), value.to_owned());
                }
            }
            for node in &edits.device_nodes {
                let node = resolve(node, host)?;
                result.devices.retain(|other| other.path != node.path);
                result.devices.push(node);
            }
            for mount in &edits.mounts {
                result.mounts.retain(|other| other.container_path != mount.container_path);
                result.mounts.push(mount.clone());
            }
        }
        Ok(result)
    }
}

/// A node with a type and a major needs nothing on the host: the runtime makes it from the numbers. Any other is
/// looked up there.
fn resolve(node: &SpecDeviceNode, host: &Path) -> Result<DeviceNode, InjectError> {
    let permissions = if node.permissions.is_empty() { "rwm" } else { &node.permissions };
    let complete = !node.kind.is_empty() && (node.major != 0 || node.kind == "p");
    let (kind, major, minor) = if complete {
        (node.kind.chars().next().unwrap_or('c'), node.major as u32, node.minor as u32)
    } else {
        let path = if node.host_path.is_empty() { &node.path } else { &node.host_path };
        let at = host.join(path.trim_start_matches('/'));
        let (kind, major, minor) = host_node(&at).map_err(|why| InjectError::Host { path: path.clone(), why })?;
        if !node.kind.is_empty() && !node.kind.starts_with(kind) {
            let why = format!("device type {:?} differs from the host's {kind:?}", node.kind);
            return Err(InjectError::Host { path: path.clone(), why });
        }
        (kind, major, minor)
    };
    Ok(DeviceNode { path: node.path.clone(), kind, major, minor, permissions: permissions.to_owned() })
}

/// Type and numbers of a host's device node. On a simulated node, where only root could make a real one, a file
/// with the text `c <major>:<minor>` stands for it.
fn host_node(path: &Path) -> Result<(char, u32, u32), String> {
    let meta = fs::symlink_metadata(path).map_err(|err| err.to_string())?;
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    if meta.file_type().is_char_device() {
        return Ok(('c', major, minor));
    }
    if meta.file_type().is_block_device() {
        return Ok(('b', major, minor));
    }
    let text = fs::read_to_string(path).map_err(|err| err.to_string())?;
    text.trim()
        .strip_prefix("c ")
        .and_then(|numbers| numbers.split_once(':'))
        .and_then(|(major, minor)| Some(('c', major.parse().ok()?, minor.parse().ok()?)))
        .ok_or_else(|| "not a device node".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inject(edits: &str, host: &Path) -> Result<Edits, InjectError> {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            r#"{{"cdiVersion":"0.5.0","kind":"example.com/claim","devices":[{{"name":"a","containerEdits":{edits}}}]}}"#
        );
        fs::write(dir.path().join("a.json"), text).unwrap();
        let ids = ["example.com/claim=a".to_owned()];
        Edits::inject(&Catalog::read(&[dir.path().into()]), &ids, host)
    }

    #[test]
    fn type_and_major_need_no_host_node() {
        let host = tempfile::tempdir().unwrap();
        let edits =
            inject(r#"{"deviceNodes":[{"path":"/dev/channel0","type":"c","major":505}]}"#, host.path()).unwrap();
        let expected =
            DeviceNode { path: "/dev/channel0".into(), kind: 'c', major: 505, minor: 0, permissions: "rwm".into() };
        assert_eq!(edits.devices, [expected]);
    }

    #[test]
    fn without_a_major_the_host_node_must_be_there() {
        let host = tempfile::tempdir().unwrap();
        let spec = r#"{"deviceNodes":[{"path":"/dev/nvidia0"}]}"#;
        let err = inject(spec, host.path()).unwrap_err().to_string();
        assert!(err.contains("/dev/nvidia0"), "{err}");
        fs::create_dir(host.path().join("dev")).unwrap();
        fs::write(host.path().join("dev/nvidia0"), "c 195:0\n").unwrap();
        assert_eq!(inject(spec, host.path()).unwrap().devices[0].major, 195);
    }

    #[test]
    fn a_device_named_twice_is_there_once() {
        let spec = r#"{"deviceNodes":[{"path":"/dev/x","type":"c","major":5,"minor":1},
            {"path":"/dev/x","type":"c","major":5,"minor":2}],"env":["A=b=c"]}"#;
        let edits = inject(spec, Path::new("/")).unwrap();
        assert_eq!(edits.devices.len(), 1);
        assert_eq!(edits.devices[0].minor, 2);
        assert_eq!(edits.env["A"], "b=c");
    }
}
