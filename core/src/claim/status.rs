//! What a claim's own status says of its prepared devices: `status.devices`.

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::core::Status;
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

/// What to grant, if `answer` says that the agent may not write the status: the rule, in words.
///
/// From Kubernetes 1.36 on, a change of `status.devices` needs a rule on the synthetic resource `resourceclaims/driver`
/// (kubernetes `pkg/registry/resource/utils.go`). A denial comes as 422 with a forbidden field, not as 403.
pub fn denied(answer: &Status, driver: &str) -> Option<String> {
    let forbidden_field = || {
        let causes = answer.details.iter().flat_map(|details| &details.causes);
        causes
            .into_iter()
            .any(|cause| cause.reason == "FieldValueForbidden" && cause.field.starts_with("status.devices"))
    };
    let rule = match answer.code {
        403 => "verb patch on resourceclaims/status".to_owned(),
        422 if forbidden_field() => {
            format!("verb associated-node:patch on resourceclaims/driver, resource name {driver}")
        }
        _ => return None,
    };
    Some(format!("this agent may not write status.devices of ResourceClaims; grant {rule}, API group resource.k8s.io"))
}

fn entry(checkpoint: &Checkpoint, device: &PreparedDevice, now: &str) -> Value {
    let (message, data) = match (&checkpoint.channel, &checkpoint.compute_domain) {
        (Some(channel), _) => (
            format!("IMEX channel {} of {}", channel.channel, channel.domain),
            json!({"channel": channel.channel, "domain": channel.domain}),
        ),
        (None, Some(_)) => ("the node has no NVLink fabric: no channel is needed".to_owned(), json!({"channel": null})),
        (None, None) => {
            let uuids = device.cdi_ids.iter().filter_map(|id| id.split_once('=')).map(|(_, uuid)| uuid);
            let uuid = uuids.collect::<Vec<_>>().join(",");
            let message = format!("{uuid}, injected by the NVIDIA Container Toolkit");
            (message, json!({"uuid": uuid, "cdi": device.cdi_ids}))
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
    fn a_gpu_is_told_by_its_uuid() {
        let device = PreparedDevice { cdi_ids: vec!["nvidia.com/gpu=GPU-7".into()], ..checkpoint().devices.remove(0) };
        let gpu = Checkpoint { compute_domain: None, channel: None, devices: vec![device], ..checkpoint() };
        let patch = patch(&claim(json!([])), &gpu, "2026-01-01T00:00:00Z").unwrap();
        assert_eq!(patch["status"]["devices"][0]["data"], json!({"uuid": "GPU-7", "cdi": ["nvidia.com/gpu=GPU-7"]}));
        let message = patch["status"]["devices"][0]["conditions"][0]["message"].as_str().unwrap();
        assert!(message.starts_with("GPU-7"), "{message}");
    }

    #[test]
    fn a_denial_names_the_rule_that_is_missing() {
        let answer = |code: u16, reason: &str, field: &str| -> Status {
            let causes = json!([{"reason": reason, "message": "m", "field": field}]);
            serde_json::from_value(json!({"status": "Failure", "code": code, "details": {"causes": causes}})).unwrap()
        };
        let forbidden = answer(422, "FieldValueForbidden", "status.devices[0]");
        assert!(denied(&forbidden, names::DRIVER).unwrap().contains("associated-node:patch on resourceclaims/driver"));
        assert!(denied(&answer(403, "", ""), names::DRIVER).unwrap().contains("resourceclaims/status"));
        for other in [
            answer(422, "FieldValueInvalid", "status.devices[0]"),
            answer(422, "FieldValueForbidden", "spec"),
            answer(409, "", ""),
        ] {
            assert_eq!(denied(&other, names::DRIVER), None, "{other:?}");
        }
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
