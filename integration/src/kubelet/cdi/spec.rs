//! A CDI spec file: its form and the rules that it must keep.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Versions that containerd 2.x knows.
const VERSIONS: &[&str] = &["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0"];

/// One CDI spec file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Version of the format.
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// The devices that it offers.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Applied once if any of its devices is used.
    #[serde(default)]
    pub container_edits: ContainerEdits,
    /// Free text.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// A device of a spec.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Unique in its spec's kind.
    pub name: String,
    /// What a container that uses it gets.
    #[serde(default)]
    pub container_edits: ContainerEdits,
    /// Free text.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// What a container gets. Hooks, groups and network devices are read, so that a spec with them counts as not empty,
/// and have no effect on a container that runs no processes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(default)]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(default)]
    pub device_nodes: Vec<SpecDeviceNode>,
    /// Bind mounts.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Programs that the runtime would run.
    #[serde(default)]
    pub hooks: Vec<serde_json::Value>,
    /// Group ids.
    #[serde(default, rename = "additionalGids")]
    pub additional_gids: Vec<u32>,
    /// Network interfaces.
    #[serde(default)]
    pub net_devices: Vec<serde_json::Value>,
    /// Resource director settings.
    #[serde(default)]
    pub intel_rdt: Option<serde_json::Value>,
}

/// A device node as a spec names it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecDeviceNode {
    /// Where the container sees it.
    pub path: String,
    /// Where the host has it, if elsewhere.
    #[serde(default)]
    pub host_path: String,
    /// `b`, `c`, `u` or `p`.
    #[serde(default, rename = "type")]
    pub kind: String,
    /// Major number.
    #[serde(default)]
    pub major: i64,
    /// Minor number; 0 is left out in JSON.
    #[serde(default)]
    pub minor: i64,
    /// What the container's device cgroup allows, of `rwm`.
    #[serde(default)]
    pub permissions: String,
}

/// A bind mount.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// Mount options.
    #[serde(default)]
    pub options: Vec<String>,
    /// File system type.
    #[serde(default, rename = "type")]
    pub kind: String,
}

impl ContainerEdits {
    fn is_empty(&self) -> bool {
        self.env.is_empty()
            && self.device_nodes.is_empty()
            && self.mounts.is_empty()
            && self.hooks.is_empty()
            && self.additional_gids.is_empty()
            && self.net_devices.is_empty()
            && self.intel_rdt.is_none()
    }

    fn check(&self) -> Result<(), String> {
        for entry in &self.env {
            if entry.split_once('=').is_none_or(|(name, _)| name.is_empty()) {
                return Err(format!("invalid environment variable {entry:?}"));
            }
        }
        for node in &self.device_nodes {
            if node.path.is_empty() {
                return Err("invalid (empty) device path".into());
            }
            if !matches!(node.kind.as_str(), "" | "b" | "c" | "u" | "p") {
                return Err(format!("device {:?}: invalid type {:?}", node.path, node.kind));
            }
            if node.permissions.chars().any(|c| !"rwm".contains(c)) {
                return Err(format!("device {:?}: invalid permissions {:?}", node.path, node.permissions));
            }
        }
        for mount in &self.mounts {
            if mount.host_path.is_empty() || mount.container_path.is_empty() {
                return Err("invalid mount, empty host or container path".into());
            }
        }
        Ok(())
    }

    fn minimum_version(&self) -> usize {
        let mut needs = at("0.3.0");
        if self.mounts.iter().any(|mount| !mount.kind.is_empty()) {
            needs = needs.max(at("0.4.0"));
        }
        if self.device_nodes.iter().any(|node| !node.host_path.is_empty()) {
            needs = needs.max(at("0.5.0"));
        }
        if self.intel_rdt.is_some() || !self.additional_gids.is_empty() {
            needs = needs.max(at("0.7.0"));
        }
        if !self.net_devices.is_empty() {
            needs = VERSIONS.len(); // 1.1.0, which containerd 2.x up to 2.2 does not know
        }
        needs
    }
}

impl Spec {
    /// Reads a spec and applies the rules of the format.
    pub fn parse(text: &str) -> Result<Self, String> {
        // JSON is a subset of YAML, but the JSON reader's messages are the better ones.
        let spec: Self = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|err| err.to_string())?
        } else {
            serde_saphyr::from_str(text).map_err(|err| err.to_string())?
        };
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), String> {
        let version = VERSIONS
            .iter()
            .position(|known| *known == self.cdi_version)
            .ok_or_else(|| format!("unknown version {:?}", self.cdi_version))?;
        let (vendor, class) =
            self.kind.split_once('/').ok_or_else(|| format!("invalid kind {:?}: not vendor/class", self.kind))?;
        if !is_qualifier(vendor) || !is_qualifier(class) {
            return Err(format!("invalid kind {:?}", self.kind));
        }
        if self.devices.is_empty() {
            return Err("invalid spec, no devices".into());
        }
        self.container_edits.check()?;
        let mut needs = self.container_edits.minimum_version();
        if !self.annotations.is_empty() || class.contains('.') {
            needs = needs.max(at("0.6.0"));
        }
        for device in &self.devices {
            if !is_device_name(&device.name) {
                return Err(format!("invalid device name {:?}", device.name));
            }
            if device.container_edits.is_empty() {
                return Err(format!("invalid device {:?}, empty device edits", device.name));
            }
            device.container_edits.check()?;
            needs = needs.max(device.container_edits.minimum_version());
            if device.name.starts_with(|first: char| first.is_ascii_digit()) {
                needs = needs.max(at("0.5.0"));
            }
            if !device.annotations.is_empty() {
                needs = needs.max(at("0.6.0"));
            }
        }
        if version < needs {
            let least = VERSIONS.get(needs).copied().unwrap_or("1.1.0");
            return Err(format!("the spec version must be at least v{least}, it is {}", self.cdi_version));
        }
        Ok(())
    }
}

/// Where `version` stands in [`VERSIONS`].
fn at(version: &str) -> usize {
    VERSIONS.iter().position(|known| *known == version).unwrap_or(VERSIONS.len())
}

/// Vendor and class: a letter first, a letter or digit last.
fn is_qualifier(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.ends_with(|last: char| last.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
}

/// Device names may also begin with a digit and contain `:`.
fn is_device_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.ends_with(|last: char| last.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(version: &str, name: &str, edits: &str) -> Result<Spec, String> {
        Spec::parse(&format!(
            r#"{{"cdiVersion":"{version}","kind":"example.com/claim","devices":[{{"name":"{name}","containerEdits":{edits}}}]}}"#
        ))
    }

    #[test]
    fn a_channel_at_its_own_path_needs_only_the_base_version() {
        let edits = r#"{"deviceNodes":[{"path":"/dev/x","type":"c","major":505,"minor":3}]}"#;
        assert_eq!(spec("0.3.0", "channel-3", edits).unwrap().devices[0].container_edits.device_nodes[0].minor, 3);
    }

    #[test]
    fn a_name_with_a_digit_first_needs_0_5_0() {
        let edits = r#"{"env":["A=b"]}"#;
        assert!(spec("0.3.0", "3-channel", edits).unwrap_err().contains("at least v0.5.0"));
        assert!(spec("0.5.0", "3-channel", edits).is_ok());
    }

    #[test]
    fn a_device_without_edits_is_refused() {
        assert!(spec("0.5.0", "empty", "{}").unwrap_err().contains("empty device edits"));
    }

    #[test]
    fn unknown_versions_names_and_kinds_are_refused() {
        let edits = r#"{"env":["A=b"]}"#;
        assert!(spec("9.0.0", "a", edits).unwrap_err().contains("unknown version"));
        assert!(spec("0.5.0", "a/b", edits).unwrap_err().contains("invalid device name"));
        let text = r#"{"cdiVersion":"0.5.0","kind":"nokind","devices":[]}"#;
        assert!(Spec::parse(text).unwrap_err().contains("invalid kind"));
    }

    #[test]
    fn yaml_is_read_too() {
        let text =
            "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    env: [A=b]\n";
        assert_eq!(Spec::parse(text).unwrap().devices[0].name, "all");
    }
}
