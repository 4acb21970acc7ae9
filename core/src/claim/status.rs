//! What a claim's own status says of its prepared devices: `status.devices`.

use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

use super::checkpoint::{Checkpoint, PreparedDevice};

/// The merge patch that puts the prepared devices into the status of `claim`, guarded by the version that was read;
/// none if they stand there already. Entries of other drivers stay as they are.
pub fn patch(claim: &ResourceClaim, checkpoint: &Checkpoint, now: &str) -> Option<Value> {
    let existing: Vec<Value> = claim
        .status
        .iter()
        .flat_map(|status| status.devices.iter().flatten())
        .filter_map(|entry| serde_json::to_value(entry).ok())
        .collect();
    let is_ours = |entry: &Value| entry["driver"] == checkpoint.driver.as_str();
    let ours: Vec<Value> = checkpoint
        .devices
        .iter()
        .map(|device| {
            let fresh = entry(checkpoint, device, now);
            let same = existing.iter().find(|old| is_ours(old) && same_but_for_time(old, &fresh));
            same.cloned().unwrap_or(fresh)
        })
        .collect();
    let mut devices: Vec<Value> = existing.iter().filter(|entry| !is_ours(entry)).cloned().collect();
    devices.extend(ours);
    let unchanged = devices.len() == existing.len() && devices.iter().all(|device| existing.contains(device));
    (!unchanged).then(
        || json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": {"devices": devices}}),
    )
}

fn entry(checkpoint: &Checkpoint, device: &PreparedDevice, now: &str) -> Value {
    let (message, data) = match (&checkpoint.channel, &checkpoint.compute_domain) {
        (Some(channel), _) => (
            format!("IMEX channel {} of {}", channel.channel, channel.domain),
            json!({"channel": channel.channel, "domain": channel.domain}),
        ),
        (None, Some(_)) => ("the node has no NVLink fabric: no channel is needed".to_owned(), json!({"channel": null})),
        (None, None) => {
            ("the GPU is injected by the NVIDIA Container Toolkit".to_owned(), json!({"cdi": device.cdi_ids}))
        }
    };
    let mut entry = json!({
        "driver": checkpoint.driver,
        "pool": device.pool,
        "device": device.device,
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Prepared", "message": message, "lastTransitionTime": now,
        }],
        "data": data,
    });
    if let Some(share) = &device.share_id {
        entry["shareID"] = json!(share);
    }
    entry
}

fn same_but_for_time(old: &Value, new: &Value) -> bool {
    let mut old = old.clone();
    old["conditions"][0]["lastTransitionTime"] = new["conditions"][0]["lastTransitionTime"].clone();
    old == *new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ComputeDomainRef;
    use crate::claim::ClaimKey;
    use crate::claim::checkpoint::{ChannelRecord, State};
    use crate::names;

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            claim: ClaimKey::default(),
            driver: names::DRIVER.into(),
            state: State::Prepared,
            boot_id: String::new(),
            compute_domain: Some(ComputeDomainRef::default()),
            channel: Some(ChannelRecord { channel: 7, domain: "shared-0".into(), major: 234, all_of: None }),
            cdi_token: None,
            devices: vec![PreparedDevice {
                request_names: vec!["channel".into()],
                pool: "n1".into(),
                device: "slot-3".into(),
                share_id: None,
                cdi_ids: vec![],
            }],
        }
    }

    fn claim(devices: Value) -> ResourceClaim {
        serde_json::from_value(
            json!({"metadata": {"resourceVersion": "5"}, "spec": {}, "status": {"devices": devices}}),
        )
        .unwrap()
    }

    #[test]
    fn the_status_names_channel_and_domain_and_keeps_what_others_say() {
        let other = json!({"driver": "net.example.com", "pool": "p", "device": "eth1"});
        let patch = patch(&claim(json!([other])), &checkpoint(), "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(
            patch,
            json!({"metadata": {"resourceVersion": "5"}, "status": {"devices": [other, {
                "driver": "compute-domain.nvidia.com", "pool": "n1", "device": "slot-3",
                "conditions": [{"type": "Ready", "status": "True", "reason": "Prepared",
                    "message": "IMEX channel 7 of shared-0", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "data": {"channel": 7, "domain": "shared-0"}}]}})
        );
    }

    #[test]
    fn nothing_is_written_twice() {
        let first = patch(&claim(json!([])), &checkpoint(), "2026-01-01T00:00:00Z").unwrap();
        let written = claim(first["status"]["devices"].clone());
        assert_eq!(patch(&written, &checkpoint(), "2026-01-02T00:00:00Z"), None);
        let mut moved = checkpoint();
        moved.channel.as_mut().unwrap().channel = 8;
        assert!(patch(&written, &moved, "2026-01-02T00:00:00Z").is_some());
    }
}
