use serde_json::json;

use super::*;

const UID: &str = "11111111-2222-4333-8444-555555555555";
const GREEN: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";
const TOKEN: &str = "00112233445566778899aabbccddeeff";

fn original(all_of: Option<u32>) -> Checkpoint {
    Checkpoint {
        claim: ClaimKey { namespace: "team".into(), name: "c".into(), uid: UID.into() },
        driver: names::DRIVER.into(),
        state: State::Prepared,
        boot_id: "boot-1".into(),
        compute_domain: Some(ComputeDomainRef { namespace: "team".into(), name: "green".into(), uid: GREEN.into() }),
        channel: Some(ChannelRecord { channel: 7, domain: "shared-0".into(), major: 234, all_of }),
        cdi_token: Some(TOKEN.into()),
        devices: vec![],
    }
}

fn node(entries: &[(&str, u32)]) -> IMEXNodeStatus {
    let entry = |channel| NodeChannel { channel, domain: "shared-0".into(), since: String::new() };
    let channels = entries.iter().map(|(cd, channel)| ((*cd).to_owned(), entry(*channel))).collect();
    IMEXNodeStatus { channels, channel_count: 2048, ..IMEXNodeStatus::default() }
}

fn claim(mode: &str) -> ResourceClaim {
    let parameters = json!({"apiVersion": names::COMPUTE_DOMAIN_API_VERSION, "kind": names::CHANNEL_CONFIG_KIND,
        "domainID": GREEN, "allocationMode": mode});
    serde_json::from_value(json!({
        "metadata": {"namespace": "team", "name": "c", "uid": UID},
        "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}], "allocation": {"devices": {
            "results": [{"request": "channel", "driver": names::DRIVER, "pool": "n1", "device": "slot-0"}],
            "config": [{"source": "FromClaim", "opaque": {"driver": names::DRIVER, "parameters": parameters}}]}}}
    }))
    .unwrap()
}

fn traces<'a>(
    claim: Option<&'a ResourceClaim>,
    node: &'a IMEXNodeStatus,
    file: Option<(&'a str, &'a [u8])>,
) -> Traces<'a> {
    let token = "ffffffffffffffffffffffffffffffff";
    Traces { uid: UID, claim, node, node_name: "n1", boot_id: "boot-1", major: Some(234), file, token }
}

#[test]
fn issue_1080_the_claim_and_the_node_tell_the_channel_whatever_the_file_says() {
    let node = node(&[(GREEN, 7), ("blue", 8)]);
    for (mode, all_of) in [("Single", None), ("All", Some(2048))] {
        let (claim, original) = (claim(mode), original(all_of));
        let file = cdi::file(&original).unwrap().unwrap();
        let forged = String::from_utf8(file.contents.clone()).unwrap().replace("channel7", "channel8");
        let forged = forged.replace("channel-7", "channel-8").replace("\"minor\":7", "\"minor\":8");
        for contents in [&file.contents[..], forged.as_bytes(), b"", b"{"] {
            let rebuilt = checkpoint(&traces(Some(&claim), &node, Some((&file.name, contents)))).unwrap();
            assert_eq!(rebuilt.held(), original.held());
            assert_eq!(cdi::file(&rebuilt).unwrap().unwrap(), file);
            assert_eq!((rebuilt.state, &rebuilt.claim), (State::Preparing, &original.claim));
        }
        let without_file = checkpoint(&traces(Some(&claim), &node, None)).unwrap();
        assert_eq!(without_file.held(), original.held());
    }
}

#[test]
fn where_the_claim_cannot_tell_its_file_does_if_it_is_whole() {
    let node = node(&[(GREEN, 7)]);
    let mut unreserved = claim("Single");
    unreserved.status.as_mut().unwrap().reserved_for = None;
    for all_of in [None, Some(2048)] {
        let original = original(all_of);
        let file = cdi::file(&original).unwrap().unwrap();
        for claim in [None, Some(&unreserved)] {
            let rebuilt = checkpoint(&traces(claim, &node, Some((&file.name, &file.contents)))).unwrap();
            assert_eq!(rebuilt.held(), original.held());
            assert_eq!(cdi::file(&rebuilt).unwrap().unwrap(), file);
        }
    }
    let file = cdi::file(&original(None)).unwrap().unwrap();
    for at in 0..file.contents.len() {
        let mut bad = file.contents.clone();
        bad[at] ^= 1;
        assert_eq!(checkpoint(&traces(None, &node, Some((&file.name, &bad)))), None, "byte {at}");
        assert_eq!(checkpoint(&traces(None, &node, Some((&file.name, &file.contents[..at])))), None, "cut at {at}");
    }
}

#[test]
fn no_fabric_is_told_by_the_file() {
    let (claim, node) = (claim("Single"), node(&[]));
    let none = Checkpoint { channel: None, ..original(None) };
    let file = cdi::file(&none).unwrap().unwrap();
    let rebuilt = checkpoint(&traces(Some(&claim), &node, Some((&file.name, &file.contents)))).unwrap();
    assert_eq!((rebuilt.held(), rebuilt.channel), (None, None));
}

#[test]
fn a_channel_that_the_node_has_not_entered_for_the_claim_s_compute_domain_is_nobody_s() {
    let file = cdi::file(&original(None)).unwrap().unwrap();
    let of_claim = claim("Single");
    for (claim, entries) in [(None, &[(GREEN, 8)][..]), (Some(&of_claim), &[("blue", 7)]), (None, &[])] {
        assert_eq!(checkpoint(&traces(claim, &node(entries), Some((&file.name, &file.contents)))), None);
    }
    let node = node(&[(GREEN, 7)]);
    let of_another = Traces { uid: "another", ..traces(None, &node, Some((&file.name, &file.contents))) };
    assert_eq!(checkpoint(&of_another), None);
}
