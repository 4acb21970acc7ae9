use heddle_core::container_runtime::Kind;

/// Where files of the host are looked for, and what NVIDIA's runtime is called. Paths are the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Configuration files of container runtimes; a `*` stands for any names.
    pub container_runtime: Vec<(Kind, String)>,
    /// Configuration files of the NVIDIA Container Toolkit, the one of the packages first.
    pub toolkit: Vec<String>,
    /// Names of NVIDIA's runtime programs.
    pub programs: Vec<String>,
}

/// Distributions that configure containerd elsewhere: k3s, RKE2, k0s, MicroK8s, Talos.
const CONTAINERD: [&str; 6] = [
    "/etc/containerd/config.toml",
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
    "/etc/cri/containerd.toml",
];
/// `crio.conf(5)`, `crio.conf.d(5)`.
const CRIO: [&str; 2] = ["/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"];

/// The toolkit's packages, and its container that the GPU Operator runs.
pub const TOOLKIT: [&str; 2] = [
    "/etc/nvidia-container-runtime/config.toml",
    "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
];
/// With what may follow a dot: `.cdi`, `.legacy`, `.experimental`.
pub const PROGRAMS: [&str; 1] = ["nvidia-container-runtime"];

impl Default for Places {
    fn default() -> Self {
        let containerd = CONTAINERD.map(|path| (Kind::Containerd, path.to_owned()));
        let crio = CRIO.map(|path| (Kind::CriO, path.to_owned()));
        Self {
            container_runtime: containerd.into_iter().chain(crio).collect(),
            toolkit: TOOLKIT.map(str::to_owned).to_vec(),
            programs: PROGRAMS.map(str::to_owned).to_vec(),
        }
    }
}

impl Places {
    /// The usual ones, but for those that are given. A configuration of a container runtime is CRI-O's if its path says
    /// so, else containerd's.
    pub fn given(container_runtime: Vec<String>, toolkit: Vec<String>, programs: Vec<String>) -> Self {
        let usual = Self::default();
        let or = |given: Vec<String>, usual| if given.is_empty() { usual } else { given };
        let kind = |path: &String| if path.contains("crio") { Kind::CriO } else { Kind::Containerd };
        let container_runtime: Vec<_> = container_runtime.into_iter().map(|path| (kind(&path), path)).collect();
        Self {
            container_runtime: if container_runtime.is_empty() { usual.container_runtime } else { container_runtime },
            toolkit: or(toolkit, usual.toolkit),
            programs: or(programs, usual.programs),
        }
    }
}
