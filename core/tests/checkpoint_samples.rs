//! Checkpoints as every released version wrote them: each stays readable, and means what it meant.

use std::collections::BTreeMap;
use std::path::PathBuf;

use heddle_core::api::ComputeDomainRef;
use heddle_core::claim::checkpoint::{ChannelRecord, Checkpoint, DecodeError, PreparedDevice, State, VERSION};
use heddle_core::claim::{ClaimKey, cdi};
use heddle_core::names;

const UID: &str = "11111111-2222-4333-8444-555555555555";
const TOKEN: &str = "00112233445566778899aabbccddeeff";

/// What the samples of a version say, by file name.
fn meant() -> BTreeMap<&'static str, Checkpoint> {
    let device = |request: &[&str], device: &str, share: Option<&str>, id: String| PreparedDevice {
        request_names: request.iter().map(|&name| name.to_owned()).collect(),
        pool: "n1".into(),
        device: device.into(),
        share_id: share.map(str::to_owned),
        cdi_ids: if id.is_empty() { vec![] } else { vec![id] },
    };
    let id = |what: &str| format!("{}/{}={UID}-{TOKEN}-{what}", names::CDI_VENDOR, names::CDI_CLASS);
    let green = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";
    let reference = ComputeDomainRef { namespace: "team".into(), name: "green".into(), uid: green.into() };
    let record = |all_of| ChannelRecord { channel: 7, domain: "shared-0011223344".into(), major: 234, all_of };
    let channel = Checkpoint {
        claim: ClaimKey { namespace: "team".into(), name: "job-0-channel".into(), uid: UID.into() },
        driver: names::DRIVER.into(),
        state: State::Prepared,
        boot_id: "9f2c51d4-0a5e-4f43-8f0b-1b8b8a3a9e77".into(),
        compute_domain: Some(reference),
        channel: Some(record(None)),
        cdi_token: Some(TOKEN.into()),
        devices: vec![device(&["channel"], "slot-3", None, id("channel-7"))],
    };
    let all = Checkpoint {
        channel: Some(record(Some(16))),
        devices: vec![
            device(&["all", "all/sub"], "slot-0", None, id("channel-all")),
            device(&["all", "all/sub"], "slot-1", None, String::new()),
        ],
        ..channel.clone()
    };
    let no_fabric = Checkpoint {
        channel: None,
        devices: vec![device(&["channel"], "slot-3", None, id("no-channel"))],
        ..channel.clone()
    };
    let gpu = Checkpoint {
        driver: names::GPU_DRIVER.into(),
        compute_domain: None,
        channel: None,
        cdi_token: None,
        devices: vec![
            device(&["gpus"], "gpu-0", Some("5f0c7f0e-0000-4000-8000-000000000001"), "nvidia.com/gpu=GPU-0a".into()),
            device(&["gpus"], "gpu-1", None, "nvidia.com/gpu=GPU-0b".into()),
        ],
        ..channel.clone()
    };
    [
        ("preparing.json", channel.with_state(State::Preparing)),
        ("tombstone.json", channel.with_state(State::Tombstone)),
        ("channel.json", channel),
        ("all.json", all),
        ("no-fabric.json", no_fabric),
        ("gpu.json", gpu),
    ]
    .into()
}

fn folder(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/samples/checkpoint/v{version}"))
}

fn samples(version: u32) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder(version)).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn issue_1134_samples_of_every_version_are_read_and_mean_what_they_meant() {
    for version in 1..=VERSION {
        let (samples, meant) = (samples(version), meant());
        assert_eq!(samples.keys().collect::<Vec<_>>(), meant.keys().collect::<Vec<_>>(), "version {version}");
        for (name, bytes) in samples {
            let read = Checkpoint::decode(&bytes).unwrap_or_else(|error| panic!("v{version}/{name}: {error}"));
            assert_eq!(read, meant[name.as_str()], "v{version}/{name}");
            assert_eq!(cdi::file(&read).unwrap().is_some(), name != "gpu.json", "v{version}/{name}");
        }
    }
}

/// A change of the format without a new version would make a downgrade take good files for corrupt ones.
#[test]
fn what_is_written_today_is_what_the_samples_of_this_version_are() {
    for (name, checkpoint) in meant() {
        let written = String::from_utf8(checkpoint.encode()).unwrap();
        if std::env::var_os("HEDDLE_WRITE_SAMPLES").is_some() {
            std::fs::create_dir_all(folder(VERSION)).unwrap();
            std::fs::write(folder(VERSION).join(name), &written).unwrap();
        }
        let sample = std::fs::read_to_string(folder(VERSION).join(name)).expect("a new version has samples of its own");
        assert_eq!(written, sample, "the format has changed: see tests/samples/checkpoint/README.md");
    }
}

#[test]
fn issue_1079_a_version_that_is_not_known_is_told_as_such() {
    let newer = format!(r#"{{"version":{},"sha256":"x","checkpoint":{{"later":true}}}}"#, VERSION + 1);
    assert_eq!(Checkpoint::decode(newer.as_bytes()), Err(DecodeError::Newer(VERSION + 1)));
    let zero = String::from_utf8(meant()["channel.json"].encode()).unwrap().replace("\"version\":1", "\"version\":0");
    assert!(matches!(Checkpoint::decode(zero.as_bytes()), Err(DecodeError::Corrupt(_))));
}
