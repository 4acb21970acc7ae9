use heddle_core::api::{IMEXNodeStatus, NodeChannel};
use heddle_core::claim::checkpoint::{ChannelRecord, Checkpoint, State};
use heddle_core::claim::rebuild::{self, Traces};
use heddle_core::claim::{ClaimKey, cdi};
use heddle_core::names;
use serde_json::Value;

use super::bytes::{Edit, changed};

const UID: &str = "11111111-2222-4333-8444-555555555555";
const TOKEN: &str = "00112233445566778899aabbccddeeff";

fn checkpoint(uid: &str, token: &str, channel: Option<ChannelRecord>) -> Checkpoint {
    Checkpoint {
        claim: ClaimKey { uid: uid.into(), ..ClaimKey::default() },
        driver: names::DRIVER.into(),
        state: State::Prepared,
        boot_id: String::new(),
        compute_domain: None,
        channel,
        cdi_token: Some(token.into()),
        devices: vec![],
    }
}

fn record(channel: u32, all_of: Option<u32>) -> Option<ChannelRecord> {
    Some(ChannelRecord { channel, domain: "shared-0".into(), major: 234, all_of })
}

/// A file may tell whose channel a claim holds only if not a byte of it is changed.
#[test]
fn a_changed_cdi_file_tells_nothing() {
    let entry = |channel| NodeChannel { channel, domain: "shared-0".into(), since: String::new() };
    let node = IMEXNodeStatus {
        channels: (1..200).map(|channel| (format!("cd-{channel}"), entry(channel))).collect(),
        channel_count: 2048,
        ..IMEXNodeStatus::default()
    };
    let files = [record(7, None), record(1, Some(4)), None]
        .map(|channel| cdi::file(&checkpoint(UID, TOKEN, channel)).unwrap().unwrap());
    bolero::check!().with_type::<(u8, Vec<Edit>)>().with_iterations(20_000).for_each(|(which, edits)| {
        let file = &files[*which as usize % files.len()];
        let contents = changed(&file.contents, edits);
        let traces = Traces {
            uid: UID,
            claim: None,
            node: &node,
            node_name: "n1",
            boot_id: "boot-1",
            major: Some(234),
            file: Some((&file.name, &contents)),
            token: TOKEN,
        };
        match rebuild::checkpoint(&traces) {
            Some(found) => {
                assert_eq!(cdi::file(&found).unwrap().unwrap().contents, contents);
                let held = found.channel.map(|channel| channel.channel);
                let entered = found.compute_domain.map(|cd| node.channels[&cd.uid].channel);
                assert_eq!(held, entered, "a channel is held for the ComputeDomain that entered it");
            }
            None => assert_ne!(contents, file.contents),
        }
    });
}

/// A name from the API never becomes a path, nor a CDI id that runtimes refuse or take for another.
#[test]
fn a_file_has_a_valid_name_and_id_or_there_is_none() {
    let written = |uid: &str, token: &str, channel: u32| {
        let Ok(file) = cdi::file(&checkpoint(uid, token, record(channel, None))) else { return false };
        let file = file.unwrap();
        assert!(!file.name.contains(['/', '\0']) && !file.name.starts_with('.') && file.name.ends_with(".json"));
        assert_eq!((cdi::claim_of(&file.name), cdi::token_of(&file.name, uid)), (Some(uid), Some(token)));
        let (kind, name) = file.id.split_once('=').unwrap();
        assert_eq!(kind, "k8s.compute-domain.nvidia.com/claim");
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        assert!(edge(name.as_bytes().first()) && edge(name.as_bytes().last()));
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b)), "{name}");
        let spec: Value = serde_json::from_slice(&file.contents).unwrap();
        assert_eq!(spec["devices"][0]["name"], name);
        assert_eq!(spec["devices"][0]["containerEdits"]["deviceNodes"].as_array().unwrap().len(), 1);
        assert_eq!(spec["devices"][0]["containerEdits"]["deviceNodes"][0]["minor"], channel);
        true
    };
    assert!(written(UID, TOKEN, 7));
    bolero::check!().with_type::<(String, Vec<Edit>, u32)>().with_iterations(20_000).for_each(
        |(text, edits, channel)| {
            written(text, TOKEN, *channel);
            written(UID, text, *channel);
            let uid = changed(UID.as_bytes(), edits);
            written(&String::from_utf8_lossy(&uid), TOKEN, *channel);
        },
    );
}

#[test]
fn a_name_in_the_cdi_directory_is_ours_only_if_we_would_write_it() {
    let good = cdi::file_name(UID, TOKEN);
    bolero::check!().with_type::<(String, Vec<Edit>)>().with_iterations(20_000).for_each(|(text, edits)| {
        for name in [text.clone(), String::from_utf8_lossy(&changed(good.as_bytes(), edits)).into_owned()] {
            assert!(!cdi::is_ours(&name) || cdi::claim_of(&name).is_some());
            if let Some(uid) = cdi::claim_of(&name) {
                assert_eq!(cdi::file_name(uid, cdi::token_of(&name, uid).unwrap()), name);
            }
        }
    });
}
