//! What the reference library of CDI makes of our files. `just cdi-check` builds it and runs this.

use std::path::Path;
use std::process::Command;

use heddle_core::claim::checkpoint::{ChannelRecord, Checkpoint, State};
use heddle_core::claim::{ClaimKey, cdi};
use heddle_core::names;
use serde_json::{Value, json};

/// The file of a claim that holds this, in a folder of its own, and what a container gets by its id.
fn injected(channel: Option<ChannelRecord>) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = file(channel);
    std::fs::write(folder.path().join(&file.name), &file.contents).unwrap();
    serde_json::from_str(&check(folder.path(), &file.id).unwrap()).unwrap()
}

fn file(channel: Option<ChannelRecord>) -> cdi::CdiFile {
    let uid = "11111111-2222-4333-8444-555555555555";
    let checkpoint = Checkpoint {
        claim: ClaimKey { namespace: "team".into(), name: "c".into(), uid: uid.into() },
        driver: names::DRIVER.into(),
        state: State::Prepared,
        boot_id: String::new(),
        compute_domain: None,
        channel,
        cdi_token: Some("00112233445566778899aabbccddeeff".into()),
        devices: vec![],
    };
    cdi::file(&checkpoint).unwrap().unwrap()
}

fn check(folder: &Path, id: &str) -> Result<String, String> {
    let program =
        std::env::var_os("HEDDLE_CDI_CHECK").expect("HEDDLE_CDI_CHECK names the program that `just cdi-check` builds");
    let output = Command::new(program).arg(folder).arg(id).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn record(channel: u32, all_of: Option<u32>) -> Option<ChannelRecord> {
    Some(ChannelRecord { channel, domain: "shared-0".into(), major: 234, all_of })
}

/// Device node and cgroup rule of one channel. No `m` in the rule: the container cannot make nodes of other channels.
fn expected(channels: impl Iterator<Item = u32> + Clone) -> Value {
    let nodes = channels.clone().map(|channel| {
        let path = format!("/dev/nvidia-caps-imex-channels/channel{channel}");
        json!({"path": path, "type": "c", "major": 234, "minor": channel, "fileMode": 0o666})
    });
    let rules =
        channels.map(|channel| json!({"allow": true, "type": "c", "major": 234, "minor": channel, "access": "rw"}));
    json!({"devices": nodes.collect::<Vec<_>>(), "resources": {"devices": rules.collect::<Vec<_>>()}})
}

#[test]
#[ignore = "needs Go: just cdi-check"]
fn a_claim_is_one_node_and_one_rule_without_mknod() {
    let container = injected(record(7, None));
    assert_eq!(container["linux"], expected(7..8));
    assert_eq!(container["process"], Value::Null, "nothing else");
    assert_eq!(container["hooks"], Value::Null);
    assert_eq!(container["mounts"], Value::Null);
}

#[test]
#[ignore = "needs Go: just cdi-check"]
fn all_channels_are_all_but_0() {
    assert_eq!(injected(record(1, Some(2048)))["linux"], expected(1..2048));
}

#[test]
#[ignore = "needs Go: just cdi-check"]
fn no_fabric_is_no_node_and_a_word_in_the_environment() {
    let container = injected(None);
    assert_eq!(container["linux"], Value::Null);
    assert_eq!(container["process"]["env"], json!(["HEDDLE_IMEX_CHANNEL=none"]));
}

#[test]
#[ignore = "needs Go: just cdi-check"]
fn the_check_refuses_what_is_not_a_strict_spec() {
    let good = file(record(7, None));
    let text = String::from_utf8(good.contents).unwrap();
    for (from, to) in [
        (r#""kind":"#, r#""unknown": 1, "kind":"#),
        ("0.5.0", "0.2.0"),
        (r#""permissions":"rw""#, r#""permissions":"rwx""#),
        (r#""type":"c""#, r#""type":"channel""#),
        ("}\n", "\n"),
    ] {
        assert!(text.contains(from), "{from}");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(&good.name), text.replace(from, to)).unwrap();
        assert!(check(folder.path(), &good.id).is_err(), "{to}");
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(check(folder.path(), &good.id).unwrap_err().contains("unresolvable"));
}
