//! Names that users, other drivers and other processes see. Those of the existing driver are kept, so that
//! workloads need no change.

/// DRA driver name of the slots.
pub const DRIVER: &str = "compute-domain.nvidia.com";
/// DRA driver name of whole GPUs.
pub const GPU_DRIVER: &str = "gpu.nvidia.com";
/// DeviceClass that a workload's channel request names.
pub const CHANNEL_DEVICE_CLASS: &str = "compute-domain-default-channel.nvidia.com";
/// API group and version of ComputeDomain and of the opaque config.
pub const COMPUTE_DOMAIN_API_VERSION: &str = "resource.nvidia.com/v1beta1";
/// Kind of the opaque config in a channel claim.
pub const CHANNEL_CONFIG_KIND: &str = "ComputeDomainChannelConfig";
/// Name of the one request in a generated ResourceClaimTemplate.
pub const CHANNEL_REQUEST: &str = "channel";
/// Finalizer of ComputeDomains and of their generated templates.
pub const FINALIZER: &str = "resource.nvidia.com/computeDomain";
/// Finalizer of IMEXDomains: their channel map must outlive every use of it.
pub const DOMAIN_FINALIZER: &str = "imex.heddle.dev/channels";
/// Label with the UID of the ComputeDomain, on templates and on the claims made from them.
pub const COMPUTE_DOMAIN_LABEL: &str = "resource.nvidia.com/computeDomain";
/// Label that says what a generated template is for.
pub const TARGET_LABEL: &str = "resource.nvidia.com/computeDomainTarget";
/// Value of [`TARGET_LABEL`] on the template that workloads use.
pub const TARGET_WORKLOAD: &str = "Workload";

/// CDI vendor of channel devices.
pub const CDI_VENDOR: &str = "k8s.compute-domain.nvidia.com";
/// CDI class of channel devices.
pub const CDI_CLASS: &str = "claim";
/// CDI kind under which the NVIDIA Container Toolkit publishes GPUs.
pub const TOOLKIT_GPU_CDI_KIND: &str = "nvidia.com/gpu";

/// Folder of the channel device nodes, as CUDA looks for them inside a container.
pub const CHANNEL_DEVICE_DIR: &str = "/dev/nvidia-caps-imex-channels";
/// Name of the channels' character-device major in `/proc/devices`.
pub const CHANNEL_MAJOR_NAME: &str = "nvidia-caps-imex-channels";
/// Environment variable in a container whose node has no NVLink fabric and so gives no channel.
pub const NO_CHANNEL_ENV: &str = "HEDDLE_IMEX_CHANNEL";

/// Slots that a node publishes when nothing else is set.
pub const DEFAULT_SLOTS: u32 = 16;
/// Most slots a node may publish: one claim holds at most 32 devices, and `Domain` mode takes all slots at once.
pub const MAX_SLOTS: u32 = 31;
/// Members of an IMEX domain when nothing else is set: the nodes of an NVL72 rack.
pub const DEFAULT_MAX_MEMBERS: u32 = 18;
/// `ImexChannelCount` of the NVIDIA kernel module when nothing else is set.
pub const DEFAULT_CHANNEL_COUNT: u32 = 2048;

/// Attribute of the slots of a node whose IMEX daemon is the host's, and of no others.
pub const HOST_MANAGED: &str = "hostManaged";

/// Key of the taint of slots that cannot be used; its value is the [reason](crate::fault::reason).
pub const SLOT_TAINT: &str = "compute-domain.nvidia.com/not-usable";

/// Name of the CustomResourceDefinition of ComputeDomains.
pub const COMPUTE_DOMAIN_CRD: &str = "computedomains.resource.nvidia.com";
/// On a ComputeDomain that was made while its CRD was not ours: what it asked for may have been dropped.
pub const DOUBT_ANNOTATION: &str = "imex.heddle.dev/made-under-foreign-crd";
/// Where `kubectl apply` keeps the manifest that it was given.
pub const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Field manager of the CRDs.
pub const CRD_MANAGER: &str = "heddle";
/// Who writes our Events, and the field manager of our writes.
pub const CONTROLLER: &str = "heddle-controller";
/// Who writes a node's Events, and the field manager of its writes.
pub const AGENT: &str = "heddle-agent";

/// ValidatingAdmissionPolicies that tie an agent's token to its own node's objects, and their bindings; the Helm chart has them.
pub const POLICIES: [&str; 6] = [
    "heddle-agent-certificates",
    "heddle-agent-events",
    "heddle-agent-imexdomains",
    "heddle-agent-imexnodes",
    "heddle-agent-resourceclaims",
    "heddle-agent-resourceslices",
];

/// Whether objects may have the name: a DNS subdomain (RFC 1123), which is itself in the path of a request. What tenants or
/// objects say is asked for only if it is one.
pub fn is_object_name(name: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|c| alphanumeric(*c) || *c == b'-')
            && bytes.first().copied().is_some_and(alphanumeric)
            && bytes.last().copied().is_some_and(alphanumeric)
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_is_a_name() {
        for name in ["a", "green-2.a", "team-1", &"a".repeat(253)] {
            assert!(is_object_name(name), "{name}");
        }
        for bad in
            ["", ".", "..", "../x", "a/b", "a?b", "A", "a%2fb", "a b", "a\n", "-a", "a-", "a..b", "ä", &"a".repeat(254)]
        {
            assert!(!is_object_name(bad), "{bad:?}");
        }
    }
}
