//! Where the kernel says a PCI device is.

use std::path::PathBuf;

use heddle_core::inventory::Reading;

/// A reader of `/sys`.
#[derive(Clone, Debug)]
pub struct Sysfs {
    /// `/sys`, or what stands for it.
    pub root: PathBuf,
}

impl Sysfs {
    /// Below this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Adds to each GPU where it is, as far as the kernel says so: inside of virtual machines it often does not.
    pub fn add_places(&self, reading: &mut Reading) {
        for gpu in &mut reading.gpus {
            let Some(device) = self.device(&gpu.pci_bus_id) else { continue };
            gpu.pcie_root = pcie_root(&device);
            // The kernel writes -1 where there is one node, or none is known.
            let node = std::fs::read_to_string(device.join("numa_node")).ok();
            gpu.numa_node = node.and_then(|text| text.trim().parse().ok());
        }
    }

    /// The device's own folder, links followed: `…/devices/pci0000:00/0000:00:01.0/0000:01:00.0`.
    fn device(&self, bus_id: &str) -> Option<PathBuf> {
        // NVML gives the domain eight digits, the kernel four.
        let (domain, rest) = bus_id.split_once(':')?;
        let domain = u32::from_str_radix(domain, 16).ok()?;
        let address = format!("{domain:04x}:{}", rest.to_lowercase());
        let plain = address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
        let path = self.root.join("bus/pci/devices").join(address);
        plain.then(|| path.canonicalize().ok())?
    }
}

/// `pci<domain>:<bus>`: the first part of the path that is a root complex.
fn pcie_root(device: &std::path::Path) -> Option<String> {
    let part = |part: std::path::Component<'_>| {
        let name = part.as_os_str().to_str()?;
        let (domain, bus) = name.strip_prefix("pci")?.split_once(':')?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        (digits(domain) && digits(bus)).then(|| name.to_owned())
    };
    device.components().find_map(part)
}

#[cfg(test)]
mod tests {
    use heddle_core::inventory::GpuReading;

    use super::*;

    fn tree(numa: &str) -> (tempfile::TempDir, Sysfs) {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("devices/pci0008:00/0008:00:00.0/0008:01:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("numa_node"), numa).unwrap();
        let bus = folder.path().join("bus/pci/devices");
        std::fs::create_dir_all(&bus).unwrap();
        std::os::unix::fs::symlink(&device, bus.join("0008:01:00.0")).unwrap();
        let sysfs = Sysfs::new(folder.path());
        (folder, sysfs)
    }

    fn place(sysfs: &Sysfs, bus_id: &str) -> (Option<String>, Option<u32>) {
        let gpu = GpuReading { pci_bus_id: bus_id.into(), ..GpuReading::default() };
        let mut reading = Reading { gpus: vec![gpu], ..Reading::default() };
        sysfs.add_places(&mut reading);
        (reading.gpus[0].pcie_root.clone(), reading.gpus[0].numa_node)
    }

    #[test]
    fn a_gpu_is_found_by_nvmls_spelling() {
        let (_folder, sysfs) = tree("1\n");
        assert_eq!(place(&sysfs, "00000008:01:00.0"), (Some("pci0008:00".into()), Some(1)));
    }

    #[test]
    fn what_the_kernel_does_not_say_is_left_out() {
        let (_folder, sysfs) = tree("-1\n");
        assert_eq!(place(&sysfs, "00000008:01:00.0"), (Some("pci0008:00".into()), None));
        for unknown in ["00000009:01:00.0", "", "x:y", "0008:../../..", "00000008:"] {
            assert_eq!(place(&sysfs, unknown), (None, None), "{unknown}");
        }
    }
}
