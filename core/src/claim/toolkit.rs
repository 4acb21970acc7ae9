//! What the NVIDIA Container Toolkit has described of the node's GPUs. Claims on GPUs are answered with its CDI devices: the
//! kubelet checks no id, and one that nobody has described fails the container later, with words that name no cause.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::checkpoint::PreparedDevice;
use crate::fault::{Fault, reason};
use crate::names;

/// The GPUs that have a CDI device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolkit {
    /// Names of the devices of kind `nvidia.com/gpu`; whole GPUs are named by UUID, and by index too.
    pub devices: BTreeSet<String>,
    /// Where was looked, for people.
    pub folders: Vec<String>,
    /// Files there that could not be read, and why.
    pub unreadable: Vec<String>,
}

/// As much of a CDI spec file as tells which GPUs it describes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SpecFile {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    devices: Vec<SpecDevice>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct SpecDevice {
    name: String,
}

impl SpecFile {
    /// The names of the GPUs that it describes; none if it describes something else.
    pub fn gpus(self) -> BTreeSet<String> {
        if self.kind != names::TOOLKIT_GPU_CDI_KIND {
            return BTreeSet::new();
        }
        self.devices.into_iter().map(|device| device.name).collect()
    }
}

impl Toolkit {
    /// Checks that every GPU among `devices` has a CDI device.
    ///
    /// # Errors
    /// A retryable fault that names the first one without, where was looked, and how it is made.
    pub fn check(&self, node: &str, devices: &[PreparedDevice]) -> Result<(), Fault> {
        let prefix = format!("{}=", names::TOOLKIT_GPU_CDI_KIND);
        let ids = devices.iter().flat_map(|device| device.cdi_ids.iter().map(move |id| (device, id)));
        for (device, id) in ids {
            let Some(uuid) = id.strip_prefix(&prefix).filter(|uuid| !self.devices.contains(*uuid)) else { continue };
            let mut message = format!(
                "{} ({uuid}) of node {node} has no CDI device {id} in {}: let the NVIDIA Container Toolkit make it, by its \
                 service nvidia-cdi-refresh or nvidia-ctk cdi generate --device-name-strategy=uuid --output={}/nvidia.yaml",
                device.device,
                self.folders.join(" or "),
                self.folders.first().map_or("/etc/cdi", String::as_str),
            );
            if !self.unreadable.is_empty() {
                message.push_str(&format!("; not readable: {}", self.unreadable.join(", ")));
            }
            return Err(Fault::retryable(reason::NO_TOOLKIT_ENTRY, message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str) -> PreparedDevice {
        PreparedDevice {
            request_names: vec!["gpu".into()],
            pool: "n1".into(),
            device: "gpu-2".into(),
            share_id: None,
            cdi_ids: vec![format!("nvidia.com/gpu={uuid}")],
        }
    }

    #[test]
    fn a_gpu_without_an_entry_says_so_and_what_to_do() {
        let toolkit = Toolkit {
            devices: ["GPU-1".to_owned()].into(),
            folders: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            unreadable: vec!["/etc/cdi/nvidia.yaml: not YAML".into()],
        };
        assert_eq!(toolkit.check("n1", &[gpu("GPU-1")]), Ok(()));
        let fault = toolkit.check("n1", &[gpu("GPU-1"), gpu("GPU-2")]).unwrap_err();
        assert_eq!(fault.class, crate::fault::Class::Retryable);
        for words in ["GPU-2", "gpu-2", "/etc/cdi or /var/run/cdi", "nvidia-ctk cdi generate", "nvidia.yaml: not YAML"]
        {
            assert!(fault.message.contains(words), "{fault}");
        }
    }

    #[test]
    fn what_is_not_the_toolkits_is_not_asked_of_it() {
        let mut channel = gpu("x");
        channel.cdi_ids = vec!["k8s.compute-domain.nvidia.com/claim=x".into()];
        assert_eq!(Toolkit::default().check("n1", &[channel]), Ok(()));
    }

    #[test]
    fn only_specs_of_gpus_count() {
        let read = |text: &str| serde_json::from_str::<SpecFile>(text).unwrap().gpus();
        let gpus = r#"{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [
            {"name": "0", "containerEdits": {}}, {"name": "GPU-1"}]}"#;
        assert_eq!(read(gpus), ["0".to_owned(), "GPU-1".to_owned()].into());
        assert_eq!(read(&gpus.replace("nvidia.com/gpu", "nvidia.com/gds")), BTreeSet::new());
        assert_eq!(read("{}"), BTreeSet::new());
    }
}
