//! CDI specs of prepared claims.
//!
//! One file and one CDI device per claim, with exactly what the claim may use. No hooks. The type and the numbers of
//! a device node are given, so that it need not exist on the host; `rw` withholds mknod from the container.

use serde_json::{Value, json};

use super::checkpoint::{ChannelRecord, Checkpoint};
use crate::fault::{Fault, reason};
use crate::names;

/// Format of the files. 0.5.0 is the first that lets a device name start with a digit, as many UIDs do.
const CDI_VERSION: &str = "0.5.0";

/// The CDI file of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CdiFile {
    /// Name in the CDI directory.
    pub name: String,
    /// Its bytes.
    pub contents: Vec<u8>,
    /// What the container runtime is told: `vendor/class=device`.
    pub id: String,
}

/// Whether a file name in the CDI directory is one that [`file`] makes. The existing driver's files have the same
/// vendor and class, but no token: those are not ours to remove.
pub fn is_ours(file_name: &str) -> bool {
    parts(file_name).is_some_and(|(uid, _)| !uid.is_empty())
}

/// Name of the file of the claim `uid` whose unguessable part is `token`.
pub fn file_name(uid: &str, token: &str) -> String {
    format!("{}{uid}-{token}.json", file_prefix())
}

/// The unguessable part of a file name, if the file is of this claim.
pub fn token_of<'a>(file_name: &'a str, uid: &str) -> Option<&'a str> {
    parts(file_name).filter(|(found, _)| *found == uid).map(|(_, token)| token)
}

/// The UID of the claim that a file is of, by its name.
pub fn claim_of(file_name: &str) -> Option<&str> {
    parts(file_name).map(|(uid, _)| uid)
}

fn parts(file_name: &str) -> Option<(&str, &str)> {
    let rest = file_name.strip_prefix(&file_prefix())?.strip_suffix(".json")?;
    rest.rsplit_once('-').filter(|(_, token)| is_token(token))
}

/// The CDI file of `checkpoint`; none for a claim that needs none (GPUs, whose files are the container toolkit's).
///
/// # Errors
/// A permanent fault if a name breaks the rules of CDI.
pub fn file(checkpoint: &Checkpoint) -> Result<Option<CdiFile>, Fault> {
    let Some(token) = &checkpoint.cdi_token else { return Ok(None) };
    if !is_token(token) {
        return Err(Fault::permanent(reason::NODE_IO, format!("{token:?} cannot be part of a CDI file's name")));
    }
    let uid = &checkpoint.claim.uid;
    let device = match &checkpoint.channel {
        None => format!("{uid}-{token}-no-channel"),
        Some(ChannelRecord { all_of: Some(_), .. }) => format!("{uid}-{token}-channel-all"),
        Some(record) => format!("{uid}-{token}-channel-{}", record.channel),
    };
    check_device_name(&device)?;
    let spec = json!({
        "cdiVersion": CDI_VERSION,
        "kind": format!("{}/{}", names::CDI_VENDOR, names::CDI_CLASS),
        "devices": [{"name": device, "containerEdits": edits(checkpoint.channel.as_ref())}],
    });
    Ok(Some(CdiFile {
        name: file_name(uid, token),
        contents: format!("{spec}\n").into_bytes(),
        id: format!("{}/{}={device}", names::CDI_VENDOR, names::CDI_CLASS),
    }))
}

fn edits(channel: Option<&ChannelRecord>) -> Value {
    let Some(record) = channel else {
        return json!({"env": [format!("{}=none", names::NO_CHANNEL_ENV)]});
    };
    let nodes: Vec<Value> = match record.all_of {
        // Channel 0 is nobody's: the driver can make its node by itself, with mode 0666, on every host.
        Some(count) => (1..count).map(|channel| device_node(channel, record.major)).collect(),
        None => vec![device_node(record.channel, record.major)],
    };
    json!({"deviceNodes": nodes})
}

fn device_node(channel: u32, major: u32) -> Value {
    json!({
        "path": format!("{}/channel{channel}", names::CHANNEL_DEVICE_DIR),
        "type": "c",
        "major": major,
        "minor": channel,
        "fileMode": 0o666,
        "permissions": "rw",
    })
}

fn file_prefix() -> String {
    format!("{}-{}_", names::CDI_VENDOR, names::CDI_CLASS)
}

fn is_token(token: &str) -> bool {
    token.len() == 32 && token.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A CDI device name starts and ends with a letter or digit, and has only `_ - . :` besides.
fn check_device_name(name: &str) -> Result<(), Fault> {
    let bytes = name.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(b));
    if edge(bytes.first()) && edge(bytes.last()) && inner {
        Ok(())
    } else {
        let shown: String = name.chars().take(120).collect();
        Err(Fault::permanent(reason::NODE_IO, format!("{shown:?} cannot be the name of a CDI device")))
    }
}

/// The CDI id under which the NVIDIA Container Toolkit publishes a GPU.
pub fn gpu_id(uuid: &str) -> Result<String, Fault> {
    check_device_name(uuid)?;
    Ok(format!("{}={uuid}", names::TOOLKIT_GPU_CDI_KIND))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::claim::ClaimKey;
    use crate::claim::checkpoint::State;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";
    const UID: &str = "11111111-2222-4333-8444-555555555555";

    fn checkpoint(channel: Option<ChannelRecord>) -> Checkpoint {
        Checkpoint {
            claim: ClaimKey { namespace: "team".into(), name: "c".into(), uid: UID.into() },
            driver: names::DRIVER.into(),
            state: State::Preparing,
            boot_id: String::new(),
            compute_domain: None,
            channel,
            cdi_token: Some(TOKEN.into()),
            devices: vec![],
        }
    }

    fn record(channel: u32, all_of: Option<u32>) -> Option<ChannelRecord> {
        Some(ChannelRecord { channel, domain: "shared-0".into(), major: 234, all_of })
    }

    fn spec(checkpoint: &Checkpoint) -> (CdiFile, Value) {
        let file = file(checkpoint).unwrap().unwrap();
        let spec = serde_json::from_slice(&file.contents).unwrap();
        (file, spec)
    }

    #[test]
    fn one_claim_gets_one_channel_node_and_nothing_else() {
        let (file, spec) = spec(&checkpoint(record(7, None)));
        assert_eq!(
            spec,
            json!({
                "cdiVersion": "0.5.0",
                "kind": "k8s.compute-domain.nvidia.com/claim",
                "devices": [{"name": format!("{UID}-{TOKEN}-channel-7"), "containerEdits": {"deviceNodes": [{
                    "path": "/dev/nvidia-caps-imex-channels/channel7", "type": "c", "major": 234, "minor": 7,
                    "fileMode": 438, "permissions": "rw"}]}}]
            })
        );
        assert_eq!(file.name, format!("k8s.compute-domain.nvidia.com-claim_{UID}-{TOKEN}.json"));
        assert_eq!(file.id, format!("k8s.compute-domain.nvidia.com/claim={UID}-{TOKEN}-channel-7"));
    }

    #[test]
    fn all_channels_are_those_from_1_to_the_last() {
        let (_, spec) = spec(&checkpoint(record(3, Some(2048))));
        let nodes = spec["devices"][0]["containerEdits"]["deviceNodes"].as_array().unwrap();
        let minors: BTreeSet<u64> = nodes.iter().map(|node| node["minor"].as_u64().unwrap()).collect();
        assert_eq!(minors, (1..2048).collect());
        assert_eq!(nodes.len(), 2047);
    }

    #[test]
    fn without_a_fabric_there_is_no_node_and_the_environment_says_so() {
        let (_, spec) = spec(&checkpoint(None));
        assert_eq!(spec["devices"][0]["containerEdits"], json!({"env": ["HEDDLE_IMEX_CHANNEL=none"]}));
    }

    #[test]
    fn a_claim_without_token_has_no_file() {
        assert_eq!(file(&Checkpoint { cdi_token: None, ..checkpoint(None) }), Ok(None));
    }

    #[test]
    fn no_path_gets_into_a_name() {
        for bad in ["", "../../etc/passwd", "x", &TOKEN.to_uppercase(), "0011223344556677/899aabbccddeeff"] {
            assert!(file(&Checkpoint { cdi_token: Some(bad.into()), ..checkpoint(None) }).is_err(), "{bad}");
        }
        let mut other = checkpoint(None);
        for bad in ["", "../x", "a/b", "a\nb", "-a", "a b"] {
            other.claim.uid = bad.into();
            assert!(file(&other).is_err(), "{bad}");
        }
        assert!(gpu_id("GPU-1/../x").is_err());
        assert_eq!(gpu_id("GPU-1").unwrap(), "nvidia.com/gpu=GPU-1");
    }

    #[test]
    fn our_files_are_told_from_those_of_others() {
        let (file, _) = spec(&checkpoint(record(1, None)));
        assert!(is_ours(&file.name));
        for other in [
            "nvidia.yaml",
            "k8s.compute-domain.nvidia.com-claim_11111111-2222-4333-8444-555555555555.json",
            "k8s.gpu.nvidia.com-claim_11111111-2222-4333-8444-555555555555.json",
            ".tmp",
            "",
        ] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
